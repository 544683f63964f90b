//! The problems of requests about execs.

use penfold_control::execs::ExecError;
use penfold_server::execs::{EndExecError, FindExecError};
use penfold_server::records::RecordError;
use penfold_state::error_chain;
use penfold_state::outcome::StartFailure;

use crate::lease::unanswered_problem;
use crate::problem::{Kind, Problem};

impl From<RecordError> for Problem {
    fn from(error: RecordError) -> Problem {
        match error {
            RecordError::Resolve(error) => error.into(),
            RecordError::Missing { .. } => Problem::new(Kind::NotFound, error.to_string()),
        }
    }
}

impl From<FindExecError> for Problem {
    fn from(error: FindExecError) -> Problem {
        match error {
            FindExecError::Record(error) => error.into(),
            FindExecError::Missing { .. } => Problem::new(Kind::NotFound, error.to_string()),
            FindExecError::Unreadable(_) => Problem::new(Kind::Internal, error_chain(&error)),
        }
    }
}

impl From<EndExecError> for Problem {
    fn from(error: EndExecError) -> Problem {
        let detail = error.to_string();
        match error {
            EndExecError::Engine(error) => error.into(),
            EndExecError::Exec(error) => exec_problem(error),
            EndExecError::Left { survivors, .. } => Problem::remaining(detail, survivors),
        }
    }
}

/// The problem of a request about an exec.
pub(crate) fn exec_problem(error: ExecError) -> Problem {
    let detail = error_chain(&error);
    match error {
        ExecError::NotFound { .. } => Problem::new(Kind::NotFound, detail),
        ExecError::Refused(_) => Problem::new(Kind::Refused.or_no_space(&detail), detail),
        ExecError::Unverified { .. } => Problem::new(Kind::Unverified, detail),
        ExecError::Unanswered(_) => Problem::new(Kind::Unanswered, detail),
        ExecError::Client(error) => unanswered_problem(&error),
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
