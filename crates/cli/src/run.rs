//! `penfold run`: what it does.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use penfold_state::{Contain, Detach, Id, Outcome, OwnerExit, Spec, Status};
use penfold_supervisor::{Detached, Front};
use penfold_teardown::Cause;

use crate::args::run::{self, RunArgs};
use crate::args::{Global, bounds};
use crate::failure::Failure;
use crate::sandboxes::conclude::{conclude, explain};
use crate::text::summary;
use crate::value::EnvSetting;
use crate::{exit_codes, output, replace, surroundings};

/// Runs a command to its end and that of all it started.
pub(crate) fn run(global: &Global, args: RunArgs) -> Result<u8, Failure> {
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let (preserve, fail_on_leak, detached) = (args.bounds.preserve_status, args.fail_on_leak, args.detach);
    let directory = args.bounds.workdir.clone();
    if detached {
        bounds::refuse_code_flags(preserve, fail_on_leak)?;
    }
    refuse_detached_flags(&args)?;
    let spec = spec(global, args)?;
    let front = penfold_supervisor::start(spec).map_err(|error| {
        Failure::new(exit_codes::NOT_STARTED, format!("cannot run `{name}`")).because(error)
    })?;
    if detached {
        return run_detached(front, &name, directory);
    }
    let watched = !global.quiet && std::io::stderr().is_terminal();
    let slow = |progress| {
        if watched {
            output::talk(&summary::progress(progress));
        }
    };
    let outcome = front
        .wait(slow)
        .map_err(|error| Failure::new(exit_codes::UNVERIFIED, "the end was not seen").because(error))?;
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
        Some(Status::Signal(signal))
            if report.findings.verified
                && report.cause != Cause::Timeout
                && !rustix::process::getpid().is_init() =>
        {
            Some(signal)
        }
        _ => None,
    }
}

/// Flags that mean nothing for a sandbox in the foreground.
fn refuse_detached_flags(args: &RunArgs) -> Result<(), Failure> {
    let flags = [
        (args.tty, "--tty"),
        (args.ttl.is_some(), "--ttl"),
        (args.idle_timeout.is_some(), "--idle-timeout"),
        (args.rm, "--rm"),
    ];
    match flags.into_iter().find(|(given, _)| *given && !args.detach) {
        None => Ok(()),
        Some((_, flag)) => {
            let sentence = format!("`{flag}` is for detached sandboxes");
            Err(Failure::new(exit_codes::NOT_STARTED, sentence).hint("add `--detach`"))
        }
    }
}

/// Where the report is written.
fn report_file(args: &RunArgs) -> Result<Option<File>, Failure> {
    let Some(path) = &args.report else { return Ok(None) };
    let cannot = |sentence: &str| Failure::new(exit_codes::NOT_STARTED, sentence);
    let opened = if path.as_os_str() != "-" {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).open(path)
    } else if args.detach {
        return Err(cannot("`--report -` writes to a standard output that `--detach` does not keep")
            .hint("`--report FILE`, or `penfold report ID` after the end"));
    } else {
        std::io::stdout().as_fd().try_clone_to_owned().map(File::from)
    };
    let file = opened.map_err(|error| {
        let name = if path.as_os_str() == "-" { Path::new("standard output") } else { path };
        cannot(&format!("cannot write the report to `{}`", name.display())).because(error)
    })?;
    Ok(Some(file))
}

/// Starts a detached sandbox: its id once its command runs.
fn run_detached(front: Front, name: &str, directory: Option<PathBuf>) -> Result<u8, Failure> {
    let id = front.id();
    let lost = |error| {
        Failure::new(exit_codes::UNVERIFIED, format!("cannot run `{name}`: something of {id} may be left"))
            .because(error)
            .hint("`penfold doctor` shows what is left, `penfold gc` ends it")
    };
    let outcome = match front.wait_running().map_err(lost)? {
        Detached::Over(outcome) => *outcome,
        Detached::Running(front) => {
            let let_go = front.let_go().map_err(|error| {
                Failure::new(exit_codes::NOT_STARTED, format!("cannot let {id} go on by itself"))
                    .because(error)
            });
            let told =
                let_go.and_then(|()| output::data(format!("{id}\n").as_bytes(), exit_codes::NOT_STARTED));
            match told {
                Ok(()) => return Ok(exit_codes::SUCCESS),
                Err(failure) => {
                    let outcome = front.abandon("its id cannot be told").map_err(lost)?;
                    output::talk(&summary::survivors(&outcome));
                    let verified = outcome.report.findings.verified;
                    return Err(if verified { failure } else { failure.with_exit(exit_codes::UNVERIFIED) });
                }
            }
        }
    };
    let failure = outcome.report.failure.as_ref().map_or_else(
        || {
            let sentence = format!("cannot run `{name}`: {id} was ended before its id was printed");
            Failure::new(exit_codes::NOT_STARTED, sentence)
        },
        |failure| explain(failure, name, directory),
    );
    if outcome.report.findings.verified {
        return Err(failure);
    }
    output::talk(&summary::survivors(&outcome));
    Err(failure.with_exit(exit_codes::UNVERIFIED))
}

fn spec(global: &Global, args: RunArgs) -> Result<Spec, Failure> {
    let not_started = |sentence: String| Failure::new(exit_codes::NOT_STARTED, sentence);
    let report = report_file(&args)?;
    let report_is_shared = args.report.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let detach = detach(&args)?;
    let id = Id::new().map_err(|error| not_started("cannot make an id".to_owned()).because(error))?;
    let signal = penfold_sys::signal::signal(args.bounds.signal())
        .ok_or_else(|| not_started("signals 32 and 33 belong to the C library".to_owned()))?;
    let state_root = surroundings::root(global);
    let environment = environment(&args.bounds.env);
    // Last: another sandbox is ended for it.
    let name = args.name.as_deref().filter(|_| args.replace);
    let claim = name.map(|name| replace::take(global, &state_root, name, &id)).transpose()?;
    Ok(Spec {
        id,
        timeout: args.bounds.timeout(),
        environment,
        scratch_in: args.scratch.then(surroundings::temporary),
        contain: match args.contain {
            run::Contain::Auto => Contain::Auto,
            run::Contain::Cgroup => Contain::Cgroup,
            run::Contain::Pidns => Contain::Pidns,
            run::Contain::Subreaper => Contain::Subreaper,
        },
        on_owner_exit: match args.on_owner_exit {
            None if args.detach => OwnerExit::Keep,
            None | Some(run::OnOwnerExit::Kill) => OwnerExit::Kill,
            Some(run::OnOwnerExit::Stop) => OwnerExit::Stop,
            Some(run::OnOwnerExit::Keep) => OwnerExit::Keep,
        },
        signal,
        grace: args.bounds.grace,
        patience: args.patience.patience,
        state_root,
        labels: args.label.into_iter().map(|label| (label.key, label.value)).collect(),
        name: args.name,
        claim,
        directory: args.bounds.workdir,
        command: args.command,
        report,
        stop_on_interrupt: args.stop_on_interrupt,
        report_is_shared,
        detach,
    })
}

/// How a sandbox is to live that goes on without its caller; none of one in the foreground.
fn detach(args: &RunArgs) -> Result<Option<Detach>, Failure> {
    let not_started = |sentence: &str| Failure::new(exit_codes::NOT_STARTED, sentence);
    let keep = args.on_supervisor_exit == run::OnSupervisorExit::Keep;
    if keep && !args.detach {
        return Err(
            not_started("`--on-supervisor-exit keep` is for detached sandboxes").hint("add `--detach`")
        );
    }
    if keep && args.contain == run::Contain::Pidns {
        return Err(not_started(
            "a pid namespace ends with its supervisor: `--contain pidns` and `--on-supervisor-exit keep` \
             exclude each other",
        ));
    }
    Ok(args.detach.then(|| Detach {
        ttl: args.ttl.filter(|ttl| !ttl.is_zero()),
        idle: args.idle_timeout.filter(|idle| !idle.is_zero()),
        keep,
        remove: args.rm,
        terminal: args.tty,
        log_limit: args.log_size,
    }))
}

/// The caller's environment with the settings of the command line, the last of a name winning.
fn environment(settings: &[EnvSetting]) -> Vec<(OsString, OsString)> {
    // What is to open penfold's own doors is not for the command, unless it is named.
    let (own, mut environment): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(key, _)| {
        let key = key.as_encoded_bytes();
        key.starts_with(b"PENFOLD_") && key.ends_with(b"TOKEN")
    });
    for setting in settings {
        // Without a value the caller's is meant, which is there already, or is not.
        let named = || own.iter().find(|(key, _)| *key == setting.key).map(|(_, value)| value.clone());
        if let Some(value) = setting.value.clone().or_else(named) {
            environment.retain(|(key, _)| *key != setting.key);
            environment.push((setting.key.clone(), value));
        }
    }
    environment
}
