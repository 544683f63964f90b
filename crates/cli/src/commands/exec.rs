//! `penfold exec`.

use std::ffi::{CStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Args;
use penfold_control::{ANSWER, Client, ClientError};
use penfold_state::intent::shortened;
use penfold_state::record;
use penfold_state::time::millis;
use penfold_state::wire::{self, Answer, Request};
use penfold_state::{ExecSpec, Outcome};
use penfold_supervisor::{Launcher, LauncherError};
use penfold_sys::signal::{self, SignalSet};
use penfold_teardown::Cause;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::Signal;
use rustix::termios::tcsetwinsize;

use crate::args::bounds::{self, Bounds};
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::relay::{self, Raw, Relay};
use crate::sandboxes::conclude::conclude;
use crate::sandboxes::connect::connect;
use crate::text::summary;
use crate::{exit_codes, output, surroundings};

/// The verb `exec`.
pub(crate) const VERB: Verb = Verb {
    name: "exec",
    aliases: &[],
    about: "Run a command in a running sandbox",
    description: "Runs CMD in a detached sandbox, with the environment and directory that the sandbox was started with. \
        CMD has a group of its own: when it exits, is interrupted or loses its caller, all that it started is ended, and \
        nothing else of the sandbox. When the sandbox ends, CMD ends with it. Without --signal it is asked to end as the \
        sandbox is; where neither says how, with what penfold itself is sent, INT or TERM. Exits with CMD's code; \
        with 125 when ID means no sandbox or several, or CMD cannot be put into it.",
    examples: &[
        ("penfold exec web ls -l", "run a command where the sandbox runs"),
        ("penfold exec -it web bash", "a shell in it, with a terminal"),
        ("penfold exec -d web ./worker.sh", "start another process in it and go on"),
        ("penfold exec -i db psql <dump.sql", "with standard input"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: ExecArgs::augment_args,
    call: |global, matches| exec(global, &usage::read(&VERB, matches)?),
};

/// What `penfold exec` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExecArgs {
    /// Pass standard input on.
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal of its own.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Do not wait: the command goes on until it ends or the sandbox does.
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// How long a person who wants to end it waits for that.
const SOON: Duration = Duration::from_secs(1);

/// Runs a command in a running sandbox.
pub(crate) fn exec(global: &Global, args: &ExecArgs) -> Result<u8, Failure> {
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if args.detach {
        bounds::refuse_code_flags(args.bounds.preserve_status, false)?;
    }
    let client = connect(global, &args.id)?;
    let id = client.id().to_owned();
    let refused = |reason: &dyn std::fmt::Display| {
        Failure::new(FailureKind::NotStarted, format!("cannot run `{name}` in {}", args.id))
            .because(reason.to_string())
    };
    let spec = describe(args).map_err(|error| refused(&error))?;
    let (stdio, terminal) = stdio(args).map_err(|error| refused(&error))?;
    let command = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let request = Request::Exec(wire::Exec { command: shortened(command), detached: args.detach });
    let [input, out, error] = &stdio;
    let fds = [spec.as_fd(), input.as_fd(), out.as_fd(), error.as_fd()];
    // Once it was asked for it may run: without an answer nobody knows.
    let unseen = |error: &dyn std::fmt::Display| refused(error).with_kind(FailureKind::Unverified);
    // From then on it may run, and is to be asked politely: a signal that would end this process waits until it can be passed on.
    let mask = signal::block(&SignalSet::of([Signal::INT.as_raw(), Signal::TERM.as_raw()])).ok();
    client.send(&request, &fds).map_err(|error| refused(&error))?;
    let answer = await_answer(&client, mask).map_err(|error| unseen(&error))?;
    drop(stdio);
    let outcome = match answer {
        Answer::Refused(reason) => return Err(refused(&reason)),
        // A supervisor of an older build does not say whose it is.
        Answer::Outcome(outcome) if outcome.of_exec || outcome.report.cause == Cause::StartFailed => {
            Some(*outcome)
        }
        Answer::Outcome(_) => return Err(refused(&"the sandbox has ended")),
        _ if args.detach => None,
        _ => {
            let left: &[Signal] = if terminal.is_some() { &[Signal::WINCH] } else { &[] };
            let launcher =
                Launcher::of_exec(client.into(), id.clone(), left).map_err(|error| unseen(&error))?;
            let outcome = wait(launcher, &id, terminal, args.interactive)
                .or_fail(FailureKind::Unverified, "the end was not seen")?;
            Some(outcome)
        }
    };
    let Some(mut outcome) = outcome else { return Ok(exit_codes::SUCCESS) };
    // The sandbox goes on; what is said here is said of this command.
    outcome.report.id = format!("exec in {}", outcome.report.id);
    if !args.tty {
        output::talk(&summary::of(&outcome, global.verbose > 0, global.quiet));
    }
    conclude(&outcome, &name, args.bounds.workdir.clone(), args.bounds.preserve_status, false)
}

/// Waits until the command that was asked for runs. Signals wait in the meantime, but not for a supervisor that takes its time:
/// then they act as the caller's `mask` says.
fn await_answer(client: &Client, mask: Option<SignalSet>) -> Result<Answer, ClientError> {
    let until = Instant::now() + ANSWER;
    match (client.answer(Instant::now() + SOON), mask) {
        (Err(ClientError::Silent { .. }), Some(mask)) => {
            let _ = signal::set_mask(&mask);
            client.answer(until)
        }
        (answer, _) => answer,
    }
}

/// Waits for the command's end, and copies between its terminal and the caller's if it has one.
fn wait(
    launcher: Launcher,
    id: &str,
    terminal: Option<OwnedFd>,
    interactive: bool,
) -> Result<Outcome, LauncherError> {
    let Some(master) = terminal else { return launcher.wait(|_| ()) };
    let raw = interactive.then(Raw::enter).and_then(Result::ok);
    let typed = raw.is_some();
    let over = eventfd(0, EventfdFlags::CLOEXEC).ok();
    let end = over.as_ref().and_then(|over| over.try_clone().ok());
    let copy = move || {
        let _ = signal::block(&SignalSet::of(1..=64));
        let over = over.as_ref().map(AsFd::as_fd);
        let relay = Relay { inside: master.as_fd(), typed, ends_with_input: false, leave: &[], over };
        relay.run(|size| {
            let _ = tcsetwinsize(&master, relay::window(size));
        })
    };
    // Nobody would see what it writes. Without its launcher it ends.
    let copying = std::thread::Builder::new()
        .spawn(copy)
        .map_err(|source| LauncherError::Wait { id: id.to_owned(), source })?;
    let outcome = launcher.wait(|_| ());
    if let Some(end) = end {
        let _ = rustix::io::write(&end, &1_u64.to_ne_bytes());
    }
    let _ = copying.join();
    drop(raw);
    outcome
}

/// What is to be run, in memory that cannot be changed.
fn describe(args: &ExecArgs) -> io::Result<OwnedFd> {
    let environment = args
        .bounds
        .env
        .iter()
        .filter_map(|setting| {
            let value = setting.value.clone().or_else(|| surroundings::variable(&setting.key))?;
            Some((setting.key.clone(), Some(value)))
        })
        .chain(args.tty.then(own_terminal).flatten())
        .collect();
    let spec = ExecSpec {
        schema: record::SCHEMA,
        command: args.command.clone(),
        environment,
        directory: args.bounds.workdir.clone(),
        timeout_ms: args.bounds.timeout().map(millis),
        signal: args.bounds.signal(),
        as_sandbox: args.bounds.leaves_signal(),
        grace_ms: millis(args.bounds.grace),
        terminal: args.tty,
        detached: args.detach,
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"penfold-exec", flags)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&serde_json::to_vec(&spec)?)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(file.into())
}

/// The kind of the caller's terminal, for the program that is to draw on it.
fn own_terminal() -> Option<(OsString, Option<OsString>)> {
    let key = OsString::from("TERM");
    surroundings::variable(&key).map(|value| (key, Some(value)))
}

/// The standard descriptors of the command, and our side of its terminal if it has one.
fn stdio(args: &ExecArgs) -> io::Result<([OwnedFd; 3], Option<OwnedFd>)> {
    if args.tty {
        if args.interactive && !io::stdin().is_terminal() {
            return Err(io::Error::other("standard input is no terminal: leave out -t"));
        }
        let (master, slave) = relay::pair()?;
        tcsetwinsize(&master, relay::window(relay::size()))?;
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
