//! `penfold attach`.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_control::{ANSWER, Client};
use penfold_state::Outcome;
use penfold_state::wire::{Answer, Received, Request};
use penfold_sys::signal::{self, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::relay::{self, End, Raw, Relay};
use crate::sandboxes::connect::connect;
use crate::sandboxes::{conclude, find};
use crate::text::summary;
use crate::value::{self, Keys};
use crate::{exit_codes, output, surroundings};

/// The verb `attach`.
pub(crate) const VERB: Verb = Verb {
    name: "attach",
    aliases: &[],
    about: "Sit down at the terminal of a detached sandbox",
    description: "Connects the terminal that penfold is called from with that of a sandbox started with `penfold run -d -t`. \
        Ctrl-P Ctrl-Q, or what --detach-keys says, leaves it, and the sandbox goes on; every other key, Ctrl-C included, goes to the program in it. The end \
        of standard input leaves it, too, once all of that was typed. The terminal inside is as large as the smallest that \
        is attached. When the sandbox ends, penfold exits with its command's code; with 125 when ID means no sandbox or \
        several, when it has no terminal, or when penfold runs in that very sandbox.",
    examples: &[
        ("penfold attach shell", "sit down; Ctrl-P Ctrl-Q leaves"),
        ("penfold attach --no-stdin shell", "only look on"),
        ("penfold attach --detach-keys ctrl-x,d shell", "where Ctrl-P is needed for something else"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: AttachArgs::augment_args,
    call: |global, matches| attach(global, &usage::read(&VERB, matches)?),
};

/// What `penfold attach` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// Only look: what is typed stays here.
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[arg(
        long,
        value_name = "KEYS",
        value_parser = value::keys,
        default_value = "ctrl-p,ctrl-q",
        help = "What to type to leave it; an empty word for nothing"
    )]
    pub(crate) detach_keys: Keys,
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Sits down at the terminal of a sandbox, and again where another supervisor goes on in the place of one that was killed.
pub(crate) fn attach(global: &Global, args: &AttachArgs) -> Result<u8, Failure> {
    let client = connect(global, &args.id)?;
    refuse_inside(global, client.id())?;
    let mut attached = AttachClient::take(client)?;
    let id = attached.client.id().to_owned();
    let failed = |error: io::Error| failed(&id, error);
    let _ = signal::block(&SignalSet::of([Signal::WINCH.as_raw()]));
    let typed = !args.no_stdin;
    let raw = (typed && io::stdin().is_terminal()).then(Raw::enter).and_then(Result::ok);
    loop {
        if let Some(outcome) = attached.told.take() {
            return conclude(global, &outcome, &id);
        }
        let mut told = None;
        let relay = Relay {
            inside: attached.stream.as_fd(),
            typed,
            ends_with_input: true,
            leave: &args.detach_keys.0,
            over: None,
        };
        let end = relay.run(|size| {
            let _ = attached.client.send(&Request::Resize(size), &[]);
            hear(&attached.client, &mut told);
        });
        let why = match end.map_err(failed)? {
            End::Closed => None,
            End::Left => Some(""),
            End::InputEnded => Some(" at the end of the input"),
        };
        if let Some(why) = why {
            drop(raw);
            output::talk(&format!("penfold: left {id}{why}, which goes on\n"));
            return Ok(exit_codes::SUCCESS);
        }
        let told = told.take().map(|outcome| *outcome);
        let told = told.map_or_else(|| outcome(&attached.client), |outcome| Ok(Some(outcome)));
        if let Some(outcome) = told.map_err(failed)? {
            drop(raw);
            return conclude(global, &outcome, &id);
        }
        let Some(next) = successor(global, &id) else {
            return Err(Failure::new(FailureKind::Unverified, format!("the supervisor of {id} is gone"))
                .hint(format!("`penfold wait {id}` tells how it ended")));
        };
        attached = next;
    }
}

/// Refuses who sits at that very terminal: all that is shown would be shown again, for ever.
fn refuse_inside(global: &Global, id: &str) -> Result<(), Failure> {
    let leads = || {
        let known = find::resolver(global).resolve(id).ok()?;
        let leader = known.record?.state().ok()??.leader?;
        // The leader of a sandbox with a terminal leads the session that has it.
        Some(leader.pid.as_raw_pid() == penfold_sys::fork::session())
    };
    if !surroundings::outer_sandboxes().iter().any(|outer| outer == id) && !leads().unwrap_or(false) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::NotStarted, format!("cannot attach to {id}: this command runs in it"))
        .hint(format!("`penfold exec -it {id} sh` gives another terminal in it")))
}

/// Says how a sandbox ended that did not end by itself; the exit code is its command's.
fn conclude(global: &Global, outcome: &Outcome, id: &str) -> Result<u8, Failure> {
    if !global.quiet
        && let Some(how) = summary::for_viewer(&outcome.report)
    {
        let name = outcome.report.name.as_deref().unwrap_or(id);
        output::talk(&format!("penfold: `{name}` {how}\n"));
    }
    conclude::conclude(outcome, id, None, false, false)
}

/// A place at the terminal of a sandbox.
struct AttachClient {
    client: Client,
    stream: OwnedFd,
    /// The sandbox ended while a place was asked for.
    told: Option<Box<Outcome>>,
}

impl AttachClient {
    fn take(client: Client) -> Result<AttachClient, Failure> {
        let id = client.id().to_owned();
        let (stream, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed(&id, error.into()))?;
        let seated = client
            .request_with(&Request::Attach(relay::size()), &[theirs.as_fd()], ANSWER)
            .map_err(|error| failed(&id, io::Error::other(error)))?;
        match seated {
            Answer::Refused(reason) => {
                Err(Failure::new(FailureKind::NotStarted, format!("cannot attach to {id}: {reason}"))
                    .hint("a terminal is given with `penfold run -d -t`"))
            }
            Answer::Outcome(outcome) => Ok(AttachClient { client, stream, told: Some(outcome) }),
            _ => Ok(AttachClient { client, stream, told: None }),
        }
    }
}

/// A attached with the supervisor that goes on in the place of one that is gone; none if nobody does.
fn successor(global: &Global, id: &str) -> Option<AttachClient> {
    let begun = Instant::now();
    while begun.elapsed() < SUCCESSION {
        if let Ok(attached) = connect(global, id).and_then(AttachClient::take) {
            return Some(attached);
        }
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }
    None
}

/// How long another supervisor may take to go on.
const SUCCESSION: Duration = Duration::from_secs(1);

fn failed(id: &str, error: io::Error) -> Failure {
    Failure::new(FailureKind::NotStarted, format!("cannot attach to {id}")).because(error)
}

/// Takes the answers that have come, so that they do not pile up. The end may be told at any time, also where a request
/// waits for its answer.
fn hear(client: &Client, told: &mut Option<Box<Outcome>>) {
    while let Ok(Received::Message(answer)) = client.take() {
        if let Answer::Outcome(outcome) = answer {
            *told = Some(outcome);
        }
    }
}

/// Waits for the outcome of the sandbox; none if its supervisor goes without telling.
fn outcome(client: &Client) -> io::Result<Option<Outcome>> {
    loop {
        match client.take().map_err(io::Error::other)? {
            Received::Message(Answer::Outcome(outcome)) => return Ok(Some(*outcome)),
            Received::Message(_) => {}
            Received::End => return Ok(None),
            Received::Nothing => {
                let mut fds = [PollFd::new(client, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            }
        }
    }
}
