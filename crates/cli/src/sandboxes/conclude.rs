//! The exit code of a command that ran in a sandbox.

use std::path::PathBuf;

use penfold_state::{Outcome, StartFailure, Status};
use penfold_teardown::Cause;

use crate::exit_codes;
use crate::failure::Failure;

/// The exit code of a command that has ended, or why it did not run.
pub(crate) fn conclude(
    outcome: &Outcome,
    name: &str,
    directory: Option<PathBuf>,
    preserve: bool,
    fail_on_leak: bool,
) -> Result<u8, Failure> {
    match &outcome.report.failure {
        Some(failure) if outcome.report.findings.verified => Err(explain(failure, name, directory)),
        _ => Ok(exit_code(outcome, preserve, fail_on_leak)),
    }
}

/// Why a command did not run.
pub(crate) fn explain(failure: &StartFailure, name: &str, directory: Option<PathBuf>) -> Failure {
    let system = |errno: i32| std::io::Error::from_raw_os_error(errno);
    match failure {
        StartFailure::NotFound if name.contains('/') => {
            // execve(2) says the same of a script whose interpreter, or a program whose loader, is missing.
            let file = directory.unwrap_or_default().join(name);
            let why =
                if file.is_file() { "the interpreter that it names is missing" } else { "no such file" };
            Failure::new(exit_codes::NOT_FOUND, format!("cannot run `{name}`: {why}"))
        }
        StartFailure::NotFound => {
            Failure::new(exit_codes::NOT_FOUND, format!("cannot run `{name}`: not found in PATH"))
        }
        StartFailure::NotExecutable(_) if directory.clone().unwrap_or_default().join(name).is_dir() => {
            Failure::new(exit_codes::NOT_EXECUTABLE, format!("cannot run `{name}`: it is a directory"))
        }
        StartFailure::NotExecutable(errno) => {
            Failure::new(exit_codes::NOT_EXECUTABLE, format!("cannot run `{name}`")).because(system(*errno))
        }
        StartFailure::Directory(errno) => {
            let directory = directory.unwrap_or_default();
            let sentence = format!("cannot enter the working directory `{}`", directory.display());
            Failure::new(exit_codes::NOT_STARTED, sentence).because(system(*errno))
        }
        StartFailure::Other(reason) => {
            Failure::new(exit_codes::NOT_STARTED, format!("cannot run `{name}`")).because(reason.clone())
        }
    }
}

fn exit_code(outcome: &Outcome, preserve: bool, fail_on_leak: bool) -> u8 {
    let report = &outcome.report;
    if !report.findings.verified {
        return exit_codes::UNVERIFIED;
    }
    if report.cause == Cause::Timeout && !preserve {
        return exit_codes::TIMED_OUT;
    }
    match report.exit {
        Some(Status::Code(0)) if fail_on_leak && outcome.totals.strays > 0 => exit_codes::LEAKED,
        Some(Status::Code(code)) => u8::try_from(code).unwrap_or(exit_codes::FAILURE),
        Some(Status::Signal(signal)) => {
            u8::try_from(signal).unwrap_or(0).saturating_add(exit_codes::SIGNALLED)
        }
        // Never invented: who must know asks the report.
        None => exit_codes::UNVERIFIED,
    }
}
