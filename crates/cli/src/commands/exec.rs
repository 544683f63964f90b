//! `penfold exec`.

mod on_server;

use std::error::Error;
use std::ffi::{CStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_control::execs::{ExecError, ExecReply, exec_reply, send_exec};
use penfold_control::{ANSWER, SupervisorClient, SupervisorClientError};
use penfold_launch::user::{User, as_user_words, find_user};
use penfold_state::record;
use penfold_state::time::whole_millis;
use penfold_state::{ExecSpec, Files, Outcome};
use penfold_supervisor::{Launcher, LauncherError};
use penfold_sys::signal::{self, SignalSet};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Signal, Uid};
use rustix::termios::tcsetwinsize;

use crate::args::bounds::{self, Bounds};
use crate::args::usage;
use crate::args::user::UserArgs;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::relay::{self, Raw, Relay};
use crate::sandboxes::conclude::conclude;
use crate::sandboxes::connect::connect;
use crate::sandboxes::on_server::OnServer;
use crate::text::summary;
use crate::value::EnvSetting;
use crate::{exit_codes, output, surroundings, variables};

/// The verb `exec`.
pub(crate) const VERB: Verb = Verb {
    name: "exec",
    aliases: &[],
    about: "Run a command in a running sandbox",
    description: "Runs CMD in a detached sandbox: with its environment and working directory, as its user, and in its jail. \
        CMD has a supervisor of its own, and a cgroup if the sandbox has one. When CMD exits, is interrupted or loses its caller, penfold ends \
        everything that CMD started and nothing else of the sandbox. When the sandbox ends, CMD ends with it. A stop \
        sends --signal, else the polite signal of the sandbox, else the signal that penfold received, INT or TERM. \
        The exit code is CMD's code. It is 125 for an unknown or ambiguous ID, or if CMD cannot start in the sandbox.",
    examples: &[
        ("penfold exec web ls -l", "run a command in the sandbox web"),
        ("penfold exec -it web bash", "start a shell with a terminal"),
        ("penfold exec -d web ./worker.sh", "start another process and do not wait"),
        ("penfold exec -i db psql <dump.sql", "pass standard input to the command"),
        ("penfold --host http://127.0.0.1:3000 exec web ls", "run a command in a sandbox of a server"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: ExecArgs::augment_args,
    places: Places::All(|global, client, matches| {
        on_server::exec(global, &OnServer(client), &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| exec(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold exec`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct ExecArgs {
    /// Pass standard input to the command.
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal of its own.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Do not wait: the command runs until it exits or the sandbox ends.
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    #[command(flatten)]
    pub(crate) user: UserArgs,
    /// Run CMD beside the jail of a sandbox with --profile jail: with the files, the network and the rights of penfold's user.
    #[arg(long)]
    pub(crate) beside: bool,
    /// Id, unique prefix of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

const ENDED: &str = "the sandbox has ended";
/// The time for which SIGINT and SIGTERM stay blocked while a supervisor starts the command.
const SIGNALS_BLOCKED: Duration = Duration::from_secs(1);

/// Runs a command in a running sandbox.
pub(crate) fn exec(global: &Global, args: &ExecArgs) -> Result<u8, Failure> {
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if args.detach {
        bounds::refuse_code_flags(args.bounds.preserve_status, false)?;
    }
    let (client, files) = connect(global, &args.id)?;
    let id = client.id().to_owned();
    let refused = |reason: Box<dyn Error>| {
        Failure::new(FailureKind::NotStarted, format!("cannot run `{name}` in {}", args.id)).because(reason)
    };
    let user = args.user.user.as_deref().map(find_user).transpose()?.flatten();
    let login = user.as_ref().map(|user| user.variables.clone()).unwrap_or_default();
    let env = [login, args.bounds.env()?].concat();
    let spec = request(args, user.as_ref(), env);
    let (stdio, terminal) = stdio(args, user.as_ref()).map_err(|error| refused(error.into()))?;
    let command = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let [input, out, error] = &stdio;
    let streams = [input.as_fd(), out.as_fd(), error.as_fd()];
    // After the request was sent the command may run, even if the answer is lost.
    let unseen = |error: Box<dyn Error>| refused(error).with_kind(FailureKind::Unverified);
    let failed = |error: ExecError| match error {
        ExecError::Refused(reason) => refused(reason.into()),
        ExecError::Client(SupervisorClientError::Ended { .. }) => refused(ENDED.into()),
        ExecError::Client(error) => refused(error.into()),
        ExecError::Unanswered(error) => unseen(error.into()),
        error => refused(error.into()),
    };
    // SIGINT and SIGTERM stay pending until they can be forwarded: after the request they must not kill this process,
    // because then the command would end without a polite signal.
    let mask = signal::block_signals(&SignalSet::of([Signal::INT.as_raw(), Signal::TERM.as_raw()])).ok();
    send_exec(&client, &files, &spec, command, &streams).map_err(failed)?;
    let reply = await_reply(&client, &files, mask).map_err(failed)?;
    drop(stdio);
    let outcome = match reply {
        ExecReply::Ended(outcome) => Some(*outcome),
        _ if args.detach => None,
        _ => {
            let left: &[Signal] = if terminal.is_some() { &[Signal::WINCH] } else { &[] };
            let launcher =
                Launcher::of_exec(client.into(), id.clone(), left).map_err(|error| unseen(error.into()))?;
            let outcome = wait(launcher, &id, terminal, args.interactive)
                .or_fail(FailureKind::Unverified, "cannot tell how the command ended")?;
            Some(outcome)
        }
    };
    let Some(mut outcome) = outcome else { return Ok(exit_codes::SUCCESS) };
    // The summary must name the exec: the sandbox itself keeps running.
    outcome.report.id = format!("exec in {}", outcome.report.id);
    if !args.tty {
        output::message(&summary::of(&outcome, global.verbose > 0, global.quiet));
    }
    conclude(&outcome, &name, args.bounds.workdir.clone(), args.bounds.preserve_status, false)
}

/// Waits for the answer of the supervisor. Signals stay blocked for [`SIGNALS_BLOCKED`] at most: after that this function
/// restores the caller's `mask`, so that Ctrl-C works while a supervisor is slow.
fn await_reply(
    client: &SupervisorClient,
    files: &Files,
    mask: Option<SignalSet>,
) -> Result<ExecReply, ExecError> {
    let until = Instant::now() + ANSWER;
    let mut message = client.answer(Instant::now() + SIGNALS_BLOCKED);
    if let (Err(SupervisorClientError::Silent { .. }), Some(mask)) = (&message, mask) {
        let _ = signal::set_mask(&mask);
        message = client.answer(until);
    }
    loop {
        if let Some(reply) = exec_reply(files, message)? {
            return Ok(reply);
        }
        message = client.answer(until);
    }
}

/// Waits for the end of the command. If the command has a terminal, copies between it and the caller's terminal.
fn wait(
    launcher: Launcher,
    id: &str,
    terminal: Option<OwnedFd>,
    interactive: bool,
) -> Result<Outcome, LauncherError> {
    let Some(master) = terminal else { return launcher.wait(|_| false) };
    let raw = interactive.then(Raw::enter).and_then(Result::ok);
    let typed = raw.is_some();
    let over = eventfd(0, EventfdFlags::CLOEXEC).ok();
    let end = over.as_ref().and_then(|over| over.try_clone().ok());
    let copy = move || {
        let _ = signal::block_signals(&SignalSet::of(1..=64));
        let over = over.as_ref().map(AsFd::as_fd);
        let signals = SignalSet::of([Signal::WINCH.as_raw()]);
        let relay =
            Relay { inside: master.as_fd(), typed, ends_with_input: false, leave: &[], over, signals };
        relay.run(|size| {
            let _ = tcsetwinsize(&master, relay::window(size));
        })
    };
    // On failure the launcher is dropped, and the command ends with it: without this thread it would have no reader.
    let copying = std::thread::Builder::new()
        .spawn(copy)
        .map_err(|source| LauncherError::Wait { id: id.to_owned(), source })?;
    let outcome = launcher.wait(|_| false);
    if let Some(end) = end {
        let _ = rustix::io::write(&end, &1_u64.to_ne_bytes());
    }
    let _ = copying.join();
    drop(raw);
    outcome
}

/// Describes the command.
///
/// Every flag is named, so that a new one does not compile before it is sent or done here.
fn request(args: &ExecArgs, user: Option<&User>, env: Vec<EnvSetting>) -> ExecSpec {
    let ExecArgs {
        // This process copies its standard input, and has found the sandbox.
        interactive: _,
        id: _,
        tty,
        detach,
        bounds,
        user: UserArgs { user: own_user },
        beside,
        command,
    } = args;
    // The settings are in `env`, and the exit code is the caller's matter.
    let Bounds { timeout: _, grace, signal: _, preserve_status: _, env: _, env_file: _, workdir } = bounds;
    let environment = env
        .into_iter()
        .filter_map(|EnvSetting { key, value }| {
            let value = value.or_else(|| variables::get(&key))?;
            Some((key, Some(value)))
        })
        .chain(tty.then(own_terminal).flatten())
        .collect();
    ExecSpec {
        schema: record::SCHEMA,
        command: user
            .map(|user| as_user_words(&surroundings::program(), &user.identity, false))
            .into_iter()
            .flatten()
            .chain(command.iter().cloned())
            .collect(),
        environment,
        directory: workdir.clone(),
        timeout_ms: bounds.timeout().map(whole_millis),
        signal: bounds.signal(),
        as_sandbox: bounds.leaves_signal(),
        grace_ms: whole_millis(*grace),
        terminal: *tty,
        detached: *detach,
        own_user: own_user.is_some(),
        beside: *beside,
        recorded: None,
    }
}

/// The caller's `TERM`, for a command with a terminal.
fn own_terminal() -> Option<(OsString, Option<OsString>)> {
    let key = OsString::from("TERM");
    variables::get(&key).map(|value| (key, Some(value)))
}

/// The standard descriptors of the command, and the master side of its terminal if `-t` is given.
fn stdio(args: &ExecArgs, user: Option<&User>) -> io::Result<([OwnedFd; 3], Option<OwnedFd>)> {
    if args.tty {
        if args.interactive && !io::stdin().is_terminal() {
            return Err(io::Error::other("standard input is not a terminal; leave out `-t`"));
        }
        let (master, slave) = relay::pair()?;
        tcsetwinsize(&master, relay::window(relay::size()))?;
        if let Some(User { identity, .. }) = user {
            // So that the user can open the terminal by its name. The supervisor does so for the user of the sandbox.
            let (user, group) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
            rustix::fs::fchown(&slave, Some(user), Some(group))?;
        }
        return Ok(([slave.try_clone()?, slave.try_clone()?, slave], Some(master)));
    }
    let null: &CStr = c"/dev/null";
    let input = if args.interactive {
        io::stdin().as_fd().try_clone_to_owned()?
    } else {
        rustix::fs::open(null, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?
    };
    let (out, error) = if args.detach {
        let null = rustix::fs::open(null, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        (null.try_clone()?, null)
    } else {
        (io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?)
    };
    Ok(([input, out, error], None))
}
