//! `penfold run`.

mod replace;
mod spec;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use penfold_state::{ExitStatus, Outcome};
use penfold_supervisor::{Detached, Launcher};
use penfold_teardown::Cause;

use crate::args::bounds::{self, Bounds};
use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, NotStarted, OrFail as _};
use crate::sandboxes::conclude::conclude;
use crate::text::summary;
use crate::value::{self, Label};
use crate::{exit_codes, output};

/// The verb `run`.
pub(crate) const VERB: Verb = Verb {
    name: "run",
    aliases: &[],
    about: "Run a command; when it ends, nothing of it is left",
    description: "Runs CMD in the foreground as a sandbox: standard input, output and error, the terminal and \
        inherited descriptors pass through. The sandbox ends when CMD exits, its time runs out, it is \
        interrupted, or penfold or its caller dies. Then every process that CMD started is ended and looked \
        for, and only when none is left does penfold exit, with CMD's exit code. With --detach it goes on \
        without its caller, and is looked after, stopped and asked by its id or name. Ctrl-C belongs to CMD: if it \
        dies of INT or exits, what it left is stopped; if it handles INT and goes on, so does the sandbox, and \
        Ctrl-\\ or three times Ctrl-C within a second kill it; if it ignores INT, the sandbox is stopped, and a \
        second Ctrl-C kills it. Options end at the first \
        word that is not one: all that follows CMD belongs to CMD, even `--help`.",
    examples: &[
        ("penfold run -- npm test", "run the tests and end the servers that they forget"),
        ("penfold run --timeout 10m --grace 5s make -j8", "give up after ten minutes: TERM, 5 s later KILL"),
        ("penfold run --fail-on-leak --report report.json ./ci.sh", "fail with 123 if processes were left"),
        (
            "penfold run -d --name web --ttl 8h npm start",
            "go on in the background; `penfold stop web` ends it",
        ),
        ("penfold run -d --replace --name web npm start", "the same in the place of the one that runs"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: RunArgs::augment_args,
    call: |global, matches| run(global, usage::read(&VERB, matches)?),
};

/// What `penfold run` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// How the processes of the sandbox are known.
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "auto")]
    pub(crate) contain: Contain,
    /// Go on without the caller: print the id once CMD runs, and keep its output for `penfold logs`.
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Give a detached sandbox a terminal, for `penfold attach`.
    #[arg(short, long)]
    pub(crate) tty: bool,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox after this time, unless `penfold extend` renews it"
    )]
    pub(crate) ttl: Option<Duration>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox that had no output and no exec for this time"
    )]
    pub(crate) idle_timeout: Option<Duration>,
    /// Forget a detached sandbox when it ends, with its log and exit code.
    #[arg(long)]
    pub(crate) rm: bool,
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = value::size,
        default_value = "64M",
        help = "How much output of a detached sandbox is kept; the oldest goes first"
    )]
    pub(crate) log_size: u64,
    #[arg(
        long,
        value_enum,
        value_name = "ACT",
        help = "What happens when the caller dies; kill, unless --detach, then keep"
    )]
    pub(crate) on_owner_exit: Option<OnOwnerExit>,
    /// What happens to a detached sandbox when its supervisor is killed.
    #[arg(long, value_enum, value_name = "ACT", default_value = "kill")]
    pub(crate) on_supervisor_exit: OnSupervisorExit,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Make a new, empty directory that is removed at the end; TMPDIR, and the directory to run in unless -w.
    #[arg(long)]
    pub(crate) scratch: bool,
    /// The first Ctrl-C stops the sandbox and the second kills it, whatever CMD does with INT; not with --detach.
    #[arg(long, conflicts_with = "detach")]
    pub(crate) stop_on_interrupt: bool,
    /// Exit with 123 if the command succeeded but left processes behind; not with --detach.
    #[arg(long)]
    pub(crate) fail_on_leak: bool,
    /// Write what was found and done at the end to this file, as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Name of the sandbox, for its record and report.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Stop the sandbox that has the name first, and take it over.
    #[arg(long, requires = "name")]
    pub(crate) replace: bool,
    /// Attach a label; may be repeated, the last of a key counts.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub(crate) label: Vec<Label>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// How membership in a sandbox is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contain {
    /// The strongest that the host offers.
    Auto,
    /// A cgroup of its own.
    Cgroup,
    /// A pid namespace.
    Pidns,
    /// Descendants of the supervisor.
    Subreaper,
}

/// What the death of the owner does to the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOwnerExit {
    /// End it at once.
    Kill,
    /// End it politely first.
    Stop,
    /// Leave it running until it ends by itself.
    Keep,
}

/// What the death of the supervisor does to a detached sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSupervisorExit {
    /// End it at once.
    Kill,
    /// Let it go on under another supervisor.
    Keep,
}

/// Runs a command to its end and that of all it started.
pub(crate) fn run(global: &Global, args: RunArgs) -> Result<u8, Failure> {
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let (preserve, fail_on_leak, detached) = (args.bounds.preserve_status, args.fail_on_leak, args.detach);
    let directory = args.bounds.workdir.clone();
    if detached {
        bounds::refuse_code_flags(preserve, fail_on_leak)?;
    }
    spec::refuse_detached_flags(&args)?;
    let spec = spec::spec(global, args)?;
    let launcher = penfold_supervisor::start(spec).map_err(|error| {
        Failure::new(FailureKind::NotStarted, format!("cannot run `{name}`")).because(error)
    })?;
    if detached {
        return run_detached(launcher, &name, directory);
    }
    let watched = !global.quiet && std::io::stderr().is_terminal();
    let slow = |progress| {
        if watched {
            output::talk(&summary::progress(progress));
        }
    };
    let outcome = launcher.wait(slow).or_fail(FailureKind::Unverified, "the end was not seen")?;
    output::talk(&summary::of(&outcome, global.verbose > 0, global.quiet));
    let code = conclude(&outcome, &name, directory, preserve, fail_on_leak)?;
    if let Some(signal) = died_of(&outcome) {
        penfold_sys::signal::die_of(signal);
    }
    Ok(code)
}

/// The signal that ended the command, where penfold is to die of it, too: shells, make and systemd treat that otherwise
/// than an exit with 128+N. A code that penfold has chosen stays a code.
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

/// Starts a detached sandbox: its id once its command runs.
fn run_detached(launcher: Launcher, name: &str, directory: Option<PathBuf>) -> Result<u8, Failure> {
    let id = launcher.id();
    let lost = |error| {
        Failure::new(FailureKind::Unverified, format!("cannot run `{name}`: something of {id} may be left"))
            .because(error)
            .hint("`penfold doctor` shows what is left, `penfold gc` ends it")
    };
    let outcome = match launcher.wait_running().map_err(lost)? {
        Detached::Over(outcome) => *outcome,
        Detached::Running(launcher) => {
            let let_go = launcher.let_go().map_err(|error| {
                Failure::new(FailureKind::NotStarted, format!("cannot let {id} go on by itself"))
                    .because(error)
            });
            let told = let_go
                .and_then(|()| output::data(format!("{id}\n").as_bytes()).map_err(Failure::not_started));
            match told {
                Ok(()) => return Ok(exit_codes::SUCCESS),
                Err(failure) => {
                    let outcome = launcher.abandon("its id cannot be told").map_err(lost)?;
                    output::talk(&summary::survivors(&outcome));
                    let verified = outcome.report.findings.verified;
                    return Err(if verified { failure } else { failure.with_kind(FailureKind::Unverified) });
                }
            }
        }
    };
    let failure = outcome.report.failure.as_ref().map_or_else(
        || {
            let sentence = format!("cannot run `{name}`: {id} was ended before its id was printed");
            Failure::new(FailureKind::NotStarted, sentence)
        },
        |failure| NotStarted { failure, command: name, directory }.into(),
    );
    if outcome.report.findings.verified {
        return Err(failure);
    }
    output::talk(&summary::survivors(&outcome));
    Err(failure.with_kind(FailureKind::Unverified))
}
