//! `penfold run`.

pub(crate) mod definition;
pub(crate) mod detached;
mod on_server;
pub(crate) mod profile;
pub(crate) mod ready;
mod replace;
pub(crate) mod request;
pub(crate) mod restart;
pub(crate) mod spec;
pub(crate) mod spec_file;
pub(crate) mod stdin_close;
mod stop_channel;
pub(crate) mod unit;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
pub(crate) use penfold_request::OwnerAction as OnOwnerExit;
use penfold_request::{Containment, Ipc, SandboxSpec, StartRequest, Unit};
use penfold_state::{ExitStatus, Intent, Outcome, Registry, ScratchSpec, Spec};
use penfold_supervisor::{Detached, Launcher, Progress};
use penfold_teardown::Cause;

use self::request::Caller;
use super::as_user;
use crate::args::bounds::{self, Bounds};
use crate::args::event_log::EventLogArgs;
use crate::args::limits::LimitArgs;
use crate::args::patience::Patience;
use crate::args::rare::Rare;
use crate::args::resources::ResourceArgs;
use crate::args::spare::{self, SpareArgs};
use crate::args::user::{self, UserArgs};
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, NotStarted, OrFail as _};
use crate::sandboxes::conclude::conclude;
use crate::text::live_line::LiveLine;
use crate::text::summary;
use crate::value::{self, Label};
use crate::{exit_codes, output, outside};

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
    pub(crate) ready: Rare<ready::ReadyArgs>,
    #[command(flatten)]
    pub(crate) user: Rare<UserArgs>,
    #[command(flatten)]
    pub(crate) limits: Rare<LimitArgs>,
    #[command(flatten)]
    pub(crate) resources: Rare<ResourceArgs>,
    #[command(flatten)]
    pub(crate) profile: Rare<profile::ProfileArgs>,
    #[command(flatten)]
    pub(crate) stop: Rare<stop_channel::StopArgs>,
    #[command(flatten)]
    pub(crate) spare: Rare<SpareArgs>,
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
        let print_id = |id: &str| output::data(format!("{id}\n").as_bytes()).map_err(Failure::not_started);
        run_detached(global, asked, caller, change, print_id)?;
        return Ok(exit_codes::SUCCESS);
    }
    let ended = wait(global, start(global, asked, caller, change)?)?;
    match tell(global, &ended.outcome, &ended.name, ended.directory, codes) {
        // The caller has read the failure from its descriptor, and words it itself.
        Err(failure) if has_status => Ok(failure.exit_code()),
        told => told.map_err(|failure| unit::explain(&ended.plan, &ended.asked, failure)),
    }
}

/// Starts a detached sandbox, and tells its id when the command runs, and is ready if that was asked for. If the id cannot be told, nothing is
/// left of the sandbox.
pub(crate) fn run_detached(
    global: &Global,
    asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
    tell_id: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    bounds::refuse_code_flags(caller.codes.preserve, caller.codes.fail_on_leak)?;
    let Started { launcher, name, directory, plan, asked, ready } = start(global, asked, caller, change)?;
    let id = launcher.id();
    follow_start(launcher, &name, directory, ready, tell_id)
        .map_err(|failure| unit::explain(&plan, &asked, failure))?;
    unit::warn(global, &plan, &id, true);
    Ok(())
}

/// A sandbox that was started.
struct Started {
    launcher: Launcher,
    /// The command, for messages.
    name: String,
    directory: Option<PathBuf>,
    plan: unit::Plan,
    asked: unit::CgroupNeeds,
    /// What the start waits for.
    ready: Option<ready::Wait>,
}

/// A sandbox in the foreground that has ended.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// The command, for messages.
    pub(crate) name: String,
    pub(crate) directory: Option<PathBuf>,
    plan: unit::Plan,
    asked: unit::CgroupNeeds,
}

/// Refuses what belongs to penfold's user alone, together with another user for the command.
fn refuse_for_users(spec: &SandboxSpec, is_jailed: bool) -> Result<(), Failure> {
    let flags = [
        (is_jailed, "--profile jail"),
        (spec.workspace.is_some(), "--workspace"),
        (spec.sockets.is_some(), "--sockets"),
    ];
    match flags.into_iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, flag)) => Err(Failure::new(
            FailureKind::NotStarted,
            format!("`--user` cannot be used together with `{flag}`: its directory belongs to the caller"),
        )),
    }
}

/// Starts a sandbox; `change` changes its specification.
fn start(
    global: &Global,
    mut asked: SandboxSpec,
    caller: &Caller,
    change: impl FnOnce(&mut Spec),
) -> Result<Started, Failure> {
    let command = spec::command(&asked);
    let name = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let (directory, values) = (spec::directory(&asked), spec::Values::of(&asked)?);
    let kept = (caller.detach && caller.id.is_none()).then(|| StartRequest {
        spec: asked.clone(),
        report: caller.report.clone(),
        ..StartRequest::default()
    });
    spec::refuse_detached_flags(&asked, caller)?;
    spec::refuse_limits(&asked)?;
    asked = spec::with_env_files(asked)?;
    let outside = caller.outside.then(|| outside::leave(global, FailureKind::NotStarted)).transpose()?;
    stop_channel::check(&asked)?;
    if asked.contain == Some(Containment::Pidns) {
        spare::refuse_namespace(&asked, "--contain pidns")?;
    }
    stdin_close::check(caller.on_stdin_close)?;
    let mut wrapper = profile::apply(&mut asked, &command)?;
    let jail = profile::jail_of(&asked)?;
    let user = asked.user.as_deref().map(user::find_user).transpose()?.flatten();
    if let Some(user) = &user {
        refuse_for_users(&asked, !wrapper.is_empty())?;
        wrapper = as_user::words(&user.identity, asked.scratch);
    }
    let mut plan = unit::plan(&asked, caller.detach)?;
    let needs = unit::CgroupNeeds::of(&asked);
    unit::check_limits(&plan, &needs, &name)?;
    let probe = values.probe.clone().map(|probe| (probe, values.ready_timeout));
    let (identity, login) = user.map(|user| (user.identity, user.variables)).unzip();
    let login = login.unwrap_or_default();
    let spec = spec::spec(global, spec::Asked { spec: &asked, caller, values, login, command })?;
    let scratch = spec.scratch.map(|asked| ScratchSpec { user: identity.clone(), ..asked });
    let mut spec = Spec { wrapper, outside, identity, scratch, jail, ..spec };
    if let Some(request) = kept {
        restart::keep(&request, &mut spec);
    }
    change(&mut spec);
    let ready = probe.map(|(probe, timeout)| ready::Wait::of(probe, timeout, &spec)).transpose()?;
    let launcher = unit::start(&mut plan, spec).map_err(|error| {
        let failure = Failure::new(FailureKind::NotStarted, format!("cannot run `{name}`"));
        unit::explain(&plan, &needs, failure.because(error))
    })?;
    Ok(Started { launcher, name, directory, plan, asked: needs, ready })
}

/// Waits for the end of a sandbox in the foreground.
fn wait(global: &Global, started: Started) -> Result<Ended, Failure> {
    let Started { launcher, name, directory, plan, asked, ready: _ } = started;
    unit::warn(global, &plan, &launcher.id(), false);
    let slow = progress(global, launcher.state_root().to_owned(), launcher.id());
    let outcome =
        launcher.wait(slow).or_fail(FailureKind::Unverified, "cannot tell how the sandbox ended")?;
    Ok(Ended { outcome, name, directory, plan, asked })
}

/// Runs a command in the foreground for another verb, which prints the result and chooses the exit code. `change` changes the specification.
pub(crate) fn for_verb(
    global: &Global,
    asked: SandboxSpec,
    change: impl FnOnce(&mut Spec),
) -> Result<Ended, Failure> {
    wait(global, start(global, asked, &Caller::default(), change)?)
}

impl Ended {
    /// Returns the failure of a command that did not start.
    ///
    /// # Errors
    /// That failure.
    pub(crate) fn failure(self) -> Result<(), Failure> {
        let Ended { outcome, name, directory, plan, asked } = self;
        conclude(&outcome, &name, directory, false, false)
            .map(drop)
            .map_err(|failure| unit::explain(&plan, &asked, failure))
    }

    /// Returns the exit code. Dies of the signal that ended the command.
    pub(crate) fn code(self, codes: Codes) -> Result<u8, Failure> {
        let Ended { outcome, name, directory, plan, asked } = self;
        let code = conclude(&outcome, &name, directory, codes.preserve, codes.fail_on_leak)
            .map_err(|failure| unit::explain(&plan, &asked, failure))?;
        if let Some(signal) = died_of(&outcome) {
            penfold_sys::signal::die_of(signal);
        }
        Ok(code)
    }
}

/// Returns a callback that shows the progress of the end on a terminal.
fn progress(global: &Global, root: PathBuf, id: String) -> impl FnMut(Progress) -> bool {
    let mut line = LiveLine::new(global.quiet);
    let mut intent = None;
    move |progress| {
        if !line.is_wanted() {
            return false;
        }
        match progress {
            Progress::Awaiting(_) => {
                // The record is the last thing to go, and may be gone by the second look.
                intent = intent.take().or_else(|| read_intent(&root, &id));
                line.show(|| match &intent {
                    Some(intent) => penfold_control::awaited(intent),
                    None => "waiting for the end".to_owned(),
                });
            }
            Progress::Ending(_) | Progress::PassedOn => output::message(&summary::progress(progress)),
        }
        true
    }
}

fn read_intent(root: &Path, id: &str) -> Option<Intent> {
    Registry::open_existing(root).ok()??.look(id).ok()??.intent().ok()
}

/// How the exit code is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codes {
    /// `--preserve-status`.
    pub(crate) preserve: bool,
    /// `--fail-on-leak`.
    pub(crate) fail_on_leak: bool,
}

/// Prints the summary of a foreground sandbox, and returns the exit code. Dies of the signal that ended the command.
pub(crate) fn tell(
    global: &Global,
    outcome: &Outcome,
    name: &str,
    directory: Option<PathBuf>,
    codes: Codes,
) -> Result<u8, Failure> {
    output::message(&summary::of(outcome, global.verbose > 0, global.quiet));
    let code = conclude(outcome, name, directory, codes.preserve, codes.fail_on_leak)?;
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

/// Waits until the command of a detached sandbox runs, and is ready if that was asked for, and tells its id.
fn follow_start(
    launcher: Launcher,
    name: &str,
    directory: Option<PathBuf>,
    ready: Option<ready::Wait>,
    tell_id: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let id = launcher.id();
    let lost = |error| {
        Failure::new(FailureKind::Unverified, format!("cannot run `{name}`: sandbox {id} may be left"))
            .because(error)
            .hint("`penfold doctor` lists leaks, `penfold gc` ends them")
    };
    let outcome = match launcher.wait_running().map_err(lost)? {
        Detached::Over(outcome) => *outcome,
        Detached::Running(launcher) => {
            let detached = launcher.detach().map_err(|error| {
                Failure::new(FailureKind::NotStarted, format!("cannot detach from sandbox {id}"))
                    .because(error)
            });
            if let (Ok(()), Some(ready)) = (&detached, ready) {
                ready::wait(&ready, &id, launcher.state_root(), launcher.signals())?;
            }
            match detached.and_then(|()| tell_id(&id)) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    let outcome = launcher.abandon("the id cannot be printed").map_err(lost)?;
                    output::message(&summary::survivors(&outcome));
                    let verified = outcome.report.findings.verified;
                    return Err(if verified { failure } else { failure.with_kind(FailureKind::Unverified) });
                }
            }
        }
    };
    let failure = outcome.report.failure.as_ref().map_or_else(
        || {
            let sentence = format!("cannot run `{name}`: sandbox {id} was ended before its id was printed");
            Failure::new(FailureKind::NotStarted, sentence)
        },
        |failure| Failure::from(NotStarted { failure, command: name, directory }),
    );
    let failure = failure.refused_by(&outcome);
    if outcome.report.findings.verified {
        return Err(failure);
    }
    output::message(&summary::survivors(&outcome));
    Err(failure.with_kind(FailureKind::Unverified))
}
