//! The exit code of a command that ran in a sandbox.

use std::path::PathBuf;

use penfold_launch::LaunchError;
use penfold_state::{ExitStatus, Outcome};
use penfold_teardown::Cause;

use crate::exit_codes;
use crate::failure::Failure;

/// Returns the exit code of a command that has ended, or the failure of a command that did not start.
pub(crate) fn conclude(
    outcome: &Outcome,
    name: &str,
    directory: Option<PathBuf>,
    preserve: bool,
    fail_on_leak: bool,
) -> Result<u8, Failure> {
    match &outcome.report.failure {
        Some(failure) if outcome.report.findings.verified => {
            Err(LaunchError::of_start_failure(failure, name, directory).into())
        }
        _ => Ok(exit_code(outcome, preserve, fail_on_leak)),
    }
}

/// Returns the exit code of a command that has ended.
pub(crate) fn exit_code(outcome: &Outcome, preserve: bool, fail_on_leak: bool) -> u8 {
    let report = &outcome.report;
    if !report.findings.verified {
        return exit_codes::UNVERIFIED;
    }
    if report.cause == Cause::Timeout && !preserve {
        return exit_codes::TIMED_OUT;
    }
    match report.exit {
        Some(ExitStatus::Code(0)) if fail_on_leak && outcome.totals.strays > 0 => exit_codes::LEAKED,
        Some(status) => status.process_code(),
        // No supervisor saw the exit: penfold does not invent a code.
        None => exit_codes::UNVERIFIED,
    }
}
