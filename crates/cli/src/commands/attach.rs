//! `penfold attach`.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_control::{ANSWER, SupervisorClient};
use penfold_state::wire::{Answer, ReceiveResult, Request};
use penfold_state::{Outcome, Report};
use penfold_sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::relay::{self, End, Raw, Relay};
use crate::sandboxes::connect::connect;
use crate::sandboxes::find::Miss;
use crate::sandboxes::on_server::terminal::{Left, RemoteTerminal, terminal_path};
use crate::sandboxes::on_server::{OnServer, path, tell_removed, wait_for_end};
use crate::sandboxes::{Sandboxes as _, conclude, find};
use crate::text::summary;
use crate::value::{self, Keys};
use crate::{exit_codes, output, surroundings};

/// The verb `attach`.
pub(crate) const VERB: Verb = Verb {
    name: "attach",
    aliases: &[],
    about: "Connect to the terminal of a detached sandbox",
    description: "Connects this terminal to the terminal of a sandbox that `penfold run -d -t` started. \
        Ctrl-P Ctrl-Q, or the keys of --detach-keys, disconnect, and the sandbox keeps running. Every other key, Ctrl-C \
        included, goes to the program in the sandbox. EOF on standard input also disconnects, after all input was \
        delivered. The sandbox's terminal has the size of the smallest attached terminal. When the sandbox ends, penfold \
        exits with the command's code. The exit code is 125 for an unknown or ambiguous ID, for a sandbox without a \
        terminal, and if penfold runs inside that sandbox.",
    examples: &[
        ("penfold attach shell", "attach; Ctrl-P Ctrl-Q disconnects"),
        ("penfold attach --no-stdin shell", "watch the output only"),
        ("penfold attach --detach-keys ctrl-x,d shell", "use other keys to disconnect"),
        ("penfold --host http://127.0.0.1:3000 attach shell", "attach to a sandbox of a server"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: AttachArgs::augment_args,
    places: Places::All(|global, client, matches| {
        attach_on_server(global, &OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| attach(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold attach`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// Show the output only; do not send input.
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[arg(
        long,
        value_name = "KEYS",
        value_parser = value::keys,
        default_value = "ctrl-p,ctrl-q",
        help = "The keys that disconnect; an empty value for none"
    )]
    pub(crate) detach_keys: Keys,
    /// Id, unique prefix of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Attaches to the terminal of a sandbox; attaches again after a takeover.
pub(crate) fn attach(global: &Global, args: &AttachArgs) -> Result<u8, Failure> {
    let (client, _) = connect(global, &args.id)?;
    refuse_inside(global, client.id())?;
    let mut attached = AttachClient::take(client)?;
    let id = attached.client.id().to_owned();
    let failed = |error: io::Error| failed(&id, error);
    let signals = relay::block_signals(true);
    let typed = !args.no_stdin;
    let raw = (typed && io::stdin().is_terminal()).then(Raw::enter).and_then(Result::ok);
    loop {
        if let Some(outcome) = attached.outcome.take() {
            return conclude(global, &outcome, &id);
        }
        let mut received = None;
        let relay = Relay {
            inside: attached.stream.as_fd(),
            typed,
            ends_with_input: true,
            leave: &args.detach_keys.0,
            over: None,
            signals,
        };
        let end = relay.run(|size| {
            let _ = attached.client.send(&Request::Resize(size), &[]);
            read_answers(&attached.client, &mut received);
        });
        let why = match end.map_err(failed)? {
            End::Closed => None,
            End::Signalled(signal) => {
                drop(raw);
                return Ok(died_of(signal));
            }
            End::Left => Some(""),
            End::InputEnded => Some(" at EOF on standard input"),
        };
        if let Some(why) = why {
            drop(raw);
            output::message(&format!("penfold: left {id}{why}; the sandbox keeps running\n"));
            return Ok(exit_codes::SUCCESS);
        }
        let received = received.take().map(|outcome| *outcome);
        let received = received.map_or_else(|| outcome(&attached.client), |outcome| Ok(Some(outcome)));
        if let Some(outcome) = received.map_err(failed)? {
            drop(raw);
            return conclude(global, &outcome, &id);
        }
        let Some(next) = reattach(global, &id) else {
            return Err(Failure::new(
                FailureKind::Unverified,
                format!("lost the supervisor of sandbox {id}"),
            )
            .hint(format!("`penfold wait {id}` prints the exit code")));
        };
        attached = next;
    }
}

/// Attaches to the terminal of a sandbox on a server.
fn attach_on_server(global: &Global, sandboxes: &OnServer, args: &AttachArgs) -> Result<u8, Failure> {
    let client = &sandboxes.0;
    let id = sandboxes.find(&args.id).map_err(Miss::into_failure)?.id;
    let typed = !args.no_stdin;
    let terminal = RemoteTerminal {
        client,
        path: terminal_path(&id),
        from_start: false,
        typed,
        is_viewer: true,
        keys: &args.detach_keys.0,
    };
    let left = terminal.show()?;
    if let Left::Viewer(End::Signalled(signal)) = left {
        return Ok(died_of(signal));
    }
    if let Left::Viewer(end) = left {
        let why = if end == End::InputEnded { " at EOF on standard input" } else { "" };
        output::message(&format!("penfold: left {id}{why}; the sandbox keeps running\n"));
        return Ok(exit_codes::SUCCESS);
    }
    let lost = |error| Failure::from(error).with_kind(FailureKind::Unverified);
    let ended = wait_for_end(client, &id, None)
        .and_then(|_| client.persist(false, |client| client.get::<Report>(&format!("{}/report", path(&id)))));
    let report = match ended {
        Ok(report) => report,
        Err(error) => return tell_removed(client, &id).ok_or_else(|| lost(error)),
    };
    let outcome = Outcome::of(&report, None);
    conclude(global, &outcome, &id)
}

/// Dies of the signal that came; the code is for the first process of a pid namespace, which does not.
fn died_of(signal: i32) -> u8 {
    signal::die_of(signal);
    u8::try_from(signal).map_or(exit_codes::SIGNALLED, |signal| exit_codes::SIGNALLED + signal)
}

/// Refuses a caller inside the sandbox: its output would come back as new output of the sandbox, endlessly.
fn refuse_inside(global: &Global, id: &str) -> Result<(), Failure> {
    let leads = || {
        let known = find::resolver(global).resolve(id).ok()?;
        let leader = known.record?.state().ok()??.leader?;
        // The leader of a sandbox with a terminal leads the session of that terminal.
        Some(leader.pid.as_raw_pid() == penfold_sys::fork::own_session())
    };
    if !surroundings::outer_sandboxes().iter().any(|outer| outer == id) && !leads().unwrap_or(false) {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::NotStarted,
        format!("cannot attach to {id}: this command runs in that sandbox"),
    )
    .hint(format!("`penfold exec -it {id} sh` opens another terminal in the sandbox")))
}

/// Prints how the sandbox ended unless its command exited by itself; returns the command's exit code.
fn conclude(global: &Global, outcome: &Outcome, id: &str) -> Result<u8, Failure> {
    if !global.quiet
        && let Some(how) = summary::for_viewer(&outcome.report)
    {
        let name = outcome.report.name.as_deref().unwrap_or(id);
        output::message(&format!("penfold: `{name}` {how}\n"));
    }
    conclude::conclude(outcome, id, None, false, false)
}

/// A connection to the terminal of a sandbox.
struct AttachClient {
    client: SupervisorClient,
    stream: OwnedFd,
    /// The outcome, if the sandbox ended during the request.
    outcome: Option<Box<Outcome>>,
}

impl AttachClient {
    fn take(client: SupervisorClient) -> Result<AttachClient, Failure> {
        let id = client.id().to_owned();
        let (stream, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed(&id, error.into()))?;
        let answer = client
            .request_with(&Request::Attach(relay::size()), &[theirs.as_fd()], ANSWER)
            .map_err(|error| failed(&id, io::Error::other(error)))?;
        match answer {
            Answer::Refused(reason) => Err(Failure::new(
                FailureKind::NotStarted,
                format!("cannot attach to {id}: {reason}"),
            )
            .hint(format!(
                "`penfold logs -f {id}` follows its output; `penfold run -d -t` starts one with a terminal"
            ))),
            Answer::Outcome(outcome) => Ok(AttachClient { client, stream, outcome: Some(outcome) }),
            _ => Ok(AttachClient { client, stream, outcome: None }),
        }
    }
}

/// Attaches to the supervisor after a takeover; `None` if there is none within [`TAKEOVER`].
fn reattach(global: &Global, id: &str) -> Option<AttachClient> {
    let begun = Instant::now();
    while begun.elapsed() < TAKEOVER {
        if let Ok(attached) = connect(global, id).and_then(|(client, _)| AttachClient::take(client)) {
            return Some(attached);
        }
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }
    None
}

/// The time that a takeover may take.
const TAKEOVER: Duration = Duration::from_secs(1);

fn failed(id: &str, error: io::Error) -> Failure {
    Failure::new(FailureKind::NotStarted, format!("cannot attach to {id}")).because(error)
}

/// Reads the pending answers, so that the socket's queue does not fill up. The outcome can arrive at any time, also while
/// a request waits for its answer.
fn read_answers(client: &SupervisorClient, outcome: &mut Option<Box<Outcome>>) {
    while let Ok(ReceiveResult::Message(answer)) = client.take() {
        if let Answer::Outcome(received) = answer {
            *outcome = Some(received);
        }
    }
}

/// Waits for the outcome of the sandbox; `None` if the supervisor closes the connection without one.
fn outcome(client: &SupervisorClient) -> io::Result<Option<Outcome>> {
    loop {
        match client.take().map_err(io::Error::other)? {
            ReceiveResult::Message(Answer::Outcome(outcome)) => return Ok(Some(*outcome)),
            ReceiveResult::Message(_) => {}
            ReceiveResult::End => return Ok(None),
            ReceiveResult::Nothing => {
                let mut fds = [PollFd::new(client, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            }
        }
    }
}
