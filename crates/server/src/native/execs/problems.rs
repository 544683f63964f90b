//! The problems of requests about execs.

use penfold_control::execs::ExecError;
use penfold_state::outcome::StartFailure;
use penfold_state::{Files, error_chain};

use crate::native::lease::unanswered;
use crate::native::problem::{Kind, Problem};

/// The problem of a number that no exec has.
pub(super) fn missing(files: &Files, number: u32) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no exec {number} in sandbox {}", files.name()))
}

/// The problem of execs that cannot be read.
pub(super) fn unreadable(error: &std::io::Error) -> Problem {
    Problem::new(Kind::Internal, format!("cannot read the execs: {}", error_chain(error)))
}

/// The problem of a request about an exec.
pub(in crate::native) fn problem(error: ExecError) -> Problem {
    let detail = error_chain(&error);
    match error {
        ExecError::NotFound { .. } => Problem::new(Kind::NotFound, detail),
        ExecError::Refused(_) => Problem::new(Kind::Refused.or_no_space(&detail), detail),
        ExecError::Unverified { .. } => Problem::new(Kind::Unverified, detail),
        ExecError::Unanswered(_) => Problem::new(Kind::Unanswered, detail),
        ExecError::Client(error) => unanswered(&error),
        ExecError::Io { .. } => Problem::new(Kind::Internal.or_no_space(&detail), detail),
        ExecError::StartFailed { failure, .. } => match failure {
            StartFailure::NotFound => Problem::new(Kind::CommandNotFound, detail),
            StartFailure::NotExecutable(_) => Problem::new(Kind::CommandNotExecutable, detail),
            StartFailure::Directory(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                Problem::new(Kind::NotStarted, format!("{detail}: the directory cannot be entered: {error}"))
            }
            StartFailure::Other(sentence) => {
                Problem::new(Kind::NotStarted.or_no_space(&sentence), format!("{detail}: {sentence}"))
            }
        },
    }
}
