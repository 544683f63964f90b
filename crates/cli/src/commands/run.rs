//! `penfold run`.

pub(crate) mod definition;
pub(crate) mod detached;
mod end;
mod messages;
mod on_server;
pub(crate) mod profile;
pub(crate) mod request;
pub(crate) mod restart;
pub(crate) mod spec_file;

pub(crate) mod stdin_close;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_launch::caller::{Caller, Codes};
use penfold_launch::{EndedSandbox, StartedSandbox, check_request, start_sandbox};
pub(crate) use penfold_request::OwnerAction as OnOwnerExit;
use penfold_request::{Containment, Ipc, SandboxSpec, Unit};
use penfold_state::{ExitStatus, Intent, Outcome, Registry, Spec};
use penfold_supervisor::LauncherProgress;
use penfold_teardown::Cause;

use self::messages::Messages;
use crate::args::bounds::{self, Bounds};
use crate::args::event_log::EventLogArgs;
use crate::args::limits::LimitArgs;
use crate::args::patience::Patience;
use crate::args::rare::Rare;
use crate::args::resources::ResourceArgs;
use crate::args::user::UserArgs;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output::WriteError;
use crate::sandboxes::conclude::exit_code;
use crate::text::live_line::LiveLine;
use crate::text::summary;
use crate::value::{self, Label};
use crate::{exit_codes, output, outside, surroundings};

/// The verb `run`.
pub(crate) const VERB: Verb = Verb {
    name: "run",
    aliases: &[],
    about: "Run a command; when it ends, nothing of it is left",
    description: "Runs CMD in the foreground as a sandbox. CMD gets penfold's standard input, output and error, terminal \
        and inherited descriptors. The sandbox ends when CMD exits, at a time limit, on an interrupt, or when penfold or \
        its caller dies. penfold then ends every process that CMD started, verifies that none is left, and exits with \
        CMD's exit code. With --detach the sandbox keeps running without its caller; other commands use its id or name. With --ready, \
        penfold returns only when the sandbox is ready; if it is not ready in time, penfold ends it, shows the end of its log and \
        exits with 125. \
        Ctrl-C goes to CMD. If CMD exits or dies of INT, penfold stops the remaining processes. If CMD handles INT and \
        keeps running, the sandbox keeps running too; Ctrl-\\ or three times Ctrl-C within a second kill it. If CMD \
        ignores INT, penfold stops the sandbox, and a second Ctrl-C kills it. Options of penfold end at CMD: all words \
        after CMD belong to CMD, even `--help`.",
    examples: &[
        ("penfold run -- npm test", "run the tests and end the servers that they leave behind"),
        (
            "penfold run --memory 2G --cpus 1.5 --timeout 10m --grace 5s make -j8",
            "limit all processes together; stop after ten minutes: TERM, 5 s later KILL",
        ),
        (
            "penfold run -d --name web --ttl 8h --ready port:3000 npm start",
            "run in the background; return once it listens on port 3000; `penfold stop web` ends it",
        ),
        (
            "penfold run -d --name vm --profile vmm --grace 60s --tap qemu-system-x86_64 -hda disk.img",
            "a virtual machine; `penfold stop vm` presses its power button first",
        ),
        (
            "penfold run --on-stdin-close stop -- npx some-mcp-server",
            "a server that ends with the pipe of its client, even if it ignores the end of its input",
        ),
        (
            "penfold run --spare ssh-agent --spare sccache -- ./setup.sh",
            "leave these two daemons alone; everything else ends",
        ),
        (
            "penfold run --profile jail -w src -- make test",
            "in a jail that may write to src only, without network",
        ),
    ],
    usage_failure: FailureKind::NotStarted,
    define: definition::all,
    places: Places::All(|global, client, matches| {
        let (spec, caller) = spec_file::request(global, matches)?;
        on_server::run(global, &client, spec, &caller)
    }),
    call: |global, matches| {
        let (spec, caller) = spec_file::request(global, matches)?;
        run(global, global.config.with_event_log(spec), &caller)
    },
};

/// The arguments of `penfold run`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Containment: the way in which penfold knows the members of the sandbox.
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "auto")]
    pub(crate) contain: Containment,
    /// Whether the members share System V and POSIX IPC, and /dev/shm, with the host [default: host].
    #[arg(long, value_enum, value_name = "WITH", hide_possible_values = true)]
    pub(crate) ipc: Option<Ipc>,
    #[arg(
        long,
        value_enum,
        value_name = "UNIT",
        hide_possible_values = true,
        help = "systemd scope for the sandbox: auto, none, user, system [default: $PENFOLD_UNIT; else auto with --detach, \
            --contain cgroup and limits, and none otherwise]"
    )]
    pub(crate) unit: Option<Unit>,
    /// Run in the background: print the id when CMD runs, and keep its output for `penfold logs`.
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Give a detached sandbox a terminal, for `penfold attach`. In the foreground CMD has the caller's: no effect.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Pass standard input to CMD. In the foreground this is always so: no effect.
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Remove the record of a detached sandbox at its end, with log and exit code. In the foreground this is always so.
    #[arg(long)]
    pub(crate) rm: bool,
    #[arg(
        long,
        value_enum,
        value_name = "ACT",
        help = "Action when the caller dies [default: kill; keep with --detach]"
    )]
    pub(crate) on_owner_exit: Option<OnOwnerExit>,
    #[arg(
        long,
        value_name = "PID",
        value_parser = clap::value_parser!(i32).range(1..),
        requires = "on_owner_exit",
        help = "Refuse to start unless the caller is this process; for callers that may die while penfold starts"
    )]
    pub(crate) owner: Option<i32>,
    #[arg(
        long,
        value_enum,
        value_name = "ACT",
        conflicts_with = "detach",
        hide_possible_values = true,
        help = "Action when standard input hangs up. stop: CMD has half of the grace to end by itself, and the other half \
            after the polite signal; kill: at once. Not with --detach"
    )]
    pub(crate) on_stdin_close: Option<stdin_close::OnStdinClose>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Start a detached sandbox outside of the one around this process: it is no member, and lives on. That one must allow it.
    #[arg(long)]
    pub(crate) outside: bool,
    /// Create an empty directory and remove it at the end; it is TMPDIR and, without -w, the working directory.
    #[arg(long)]
    pub(crate) scratch: bool,
    /// Stop the sandbox at the first Ctrl-C and kill it at the second, even if CMD handles INT; not with --detach.
    #[arg(long, conflicts_with = "detach")]
    pub(crate) stop_on_interrupt: bool,
    #[command(flatten)]
    pub(crate) event_log: EventLogArgs,
    /// Exit with 123 if the command succeeded but left processes; not with --detach.
    #[arg(long)]
    pub(crate) fail_on_leak: bool,
    /// Write the teardown report to this file, as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(3..),
        conflicts_with = "detach",
        help = "Write two lines of JSON to the inherited descriptor N, which CMD does not get: one when CMD runs, and at \
            the end the report; not with --detach"
    )]
    pub(crate) status_fd: Option<i32>,
    /// Name of the sandbox, for its record and report.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// First stop the sandbox that has this name, then take the name.
    #[arg(long, requires = "name")]
    pub(crate) replace: bool,
    /// Add a label; may be repeated; the last value of a key counts.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub(crate) label: Vec<Label>,
    /// Read flags and command from this file, TOML or JSON; `-` is standard input. Other flags take precedence.
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) detached: Rare<detached::DetachedArgs>,
    #[command(flatten)]
    pub(crate) ready: Rare<detached::ReadyArgs>,
    #[command(flatten)]
    pub(crate) user: Rare<UserArgs>,
    #[command(flatten)]
    pub(crate) limits: Rare<LimitArgs>,
    #[command(flatten)]
    pub(crate) resources: Rare<ResourceArgs>,
    #[command(flatten)]
    pub(crate) profile: Rare<profile::ProfileArgs>,
    #[command(flatten)]
    pub(crate) stop: Rare<end::StopArgs>,
    #[command(flatten)]
    pub(crate) spare: Rare<end::SpareArgs>,
    /// The command and its arguments.
    #[arg(required_unless_present = "spec", trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Runs a command, and waits for its end and the end of all its descendants.
pub(crate) fn run(global: &Global, spec: SandboxSpec, caller: &Caller) -> Result<u8, Failure> {
    run_with(global, spec, caller, |_| ())
}

/// As [`run`]; `change` changes the specification.
fn run_with(
    global: &Global,
    asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
) -> Result<u8, Failure> {
    let (codes, has_status) = (caller.codes, caller.status_fd.is_some());
    if caller.detach {
        let print_id = |id: &str| output::data(format!("{id}\n").as_bytes());
        run_detached(global, asked, caller, change, print_id)?;
        return Ok(exit_codes::SUCCESS);
    }
    let ended = run_in_front(global, asked, caller, change)?;
    match tell(global, has_status, &ended.outcome, || code(&ended, codes)) {
        // The caller has read the failure from its descriptor, and words it itself.
        Err(failure) if has_status => Ok(failure.exit_code()),
        told => told,
    }
}

/// Starts a detached sandbox, and tells its id when the command runs, and is ready if that was asked for. If the id cannot be told, nothing is
/// left of the sandbox.
pub(crate) fn run_detached(
    global: &Global,
    asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
    tell_id: impl FnOnce(&str) -> Result<(), WriteError>,
) -> Result<(), Failure> {
    bounds::refuse_code_flags(caller.codes.preserve, caller.codes.fail_on_leak)?;
    let started = start(global, asked, caller, change)?;
    started.follow(&mut Messages(global), tell_id).map_err(|error| {
        messages::print_remains(&error);
        error.into()
    })
}

/// Starts a sandbox; `change` changes its specification.
fn start(
    global: &Global,
    asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
) -> Result<StartedSandbox, Failure> {
    let around = surroundings::for_launch(global);
    let request = check_request(asked, caller, &around.variables)?;
    let outside = caller.outside.then(|| outside::leave(global, FailureKind::NotStarted)).transpose()?;
    let request = request.outside_of(outside);
    Ok(start_sandbox(request, caller, &around, &mut Messages(global), change)?)
}

/// Runs a sandbox in the foreground to its end.
fn run_in_front(
    global: &Global,
    asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
) -> Result<EndedSandbox, Failure> {
    let started = start(global, asked, caller, change)?;
    let slow = progress(global, started.state_root().to_owned(), started.id());
    Ok(started.wait(&mut Messages(global), slow)?)
}

/// Runs a command in the foreground for another verb, which prints the result and chooses the exit code. `change` changes the specification.
pub(crate) fn for_verb(
    global: &Global,
    asked: SandboxSpec,
    change: impl FnOnce(&mut Spec),
) -> Result<EndedSandbox, Failure> {
    run_in_front(global, asked, &Caller::default(), change)
}

/// Returns the exit code of a sandbox in the foreground, or the failure of a command that did not start.
fn code(ended: &EndedSandbox, codes: Codes) -> Result<u8, Failure> {
    match ended.failure() {
        Some(error) => Err(error.into()),
        None => Ok(exit_code(&ended.outcome, codes.preserve, codes.fail_on_leak)),
    }
}

/// Returns the exit code of a sandbox that another verb ran. Dies of the signal that ended the command.
pub(crate) fn code_or_die(ended: &EndedSandbox, codes: Codes) -> Result<u8, Failure> {
    let code = code(ended, codes)?;
    if let Some(signal) = died_of(&ended.outcome) {
        penfold_sys::signal::die_of(signal);
    }
    Ok(code)
}

/// Returns a callback that shows the progress of the end on a terminal.
fn progress(global: &Global, root: PathBuf, id: String) -> impl FnMut(LauncherProgress) -> bool {
    let mut line = LiveLine::new(global.quiet);
    let mut intent = None;
    move |progress| {
        if !line.is_wanted() {
            return false;
        }
        match progress {
            LauncherProgress::Awaiting(_) => {
                // The record is the last thing to go, and may be gone by the second look.
                intent = intent.take().or_else(|| read_intent(&root, &id));
                line.show(|| match &intent {
                    Some(intent) => penfold_control::describe_remains(intent),
                    None => "waiting for the end".to_owned(),
                });
            }
            LauncherProgress::Ending(_) | LauncherProgress::PassedOn => {
                output::message(&summary::progress(progress));
            }
        }
        true
    }
}

fn read_intent(root: &Path, id: &str) -> Option<Intent> {
    Registry::open_existing(root).ok()??.look(id).ok()??.intent().ok()
}

/// Prints the summary of a foreground sandbox, and returns the exit code. Dies of the signal that ended the command. A caller with a
/// descriptor for the status has read there that a time limit struck.
fn tell(
    global: &Global,
    has_status: bool,
    outcome: &Outcome,
    code: impl FnOnce() -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    output::message(&if global.quiet && has_status {
        summary::losses(outcome)
    } else {
        summary::of(outcome, global.verbose > 0, global.quiet)
    });
    let code = code()?;
    if let Some(signal) = died_of(outcome) {
        penfold_sys::signal::die_of(signal);
    }
    Ok(code)
}

/// The signal that ended the command, if penfold must die of the same signal.
///
/// Shells, make and systemd distinguish death by a signal from an exit with 128+N. If penfold chose the exit code
/// itself, such as 124, it exits with that code.
fn died_of(outcome: &Outcome) -> Option<i32> {
    let report = &outcome.report;
    match report.exit {
        Some(ExitStatus::Signal(signal))
            if report.findings.verified
                && report.cause != Cause::Timeout
                && !rustix::process::getpid().is_init() =>
        {
            Some(signal)
        }
        _ => None,
    }
}
