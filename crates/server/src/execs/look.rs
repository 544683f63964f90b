//! Looks at an exec, and at its end.

use std::io;

use penfold_control::Scope;
use penfold_control::execs::{self, ExecStatus, ExecView};
use penfold_state::Files;
use penfold_state::outcome::ExitStatus;
use penfold_teardown::Cause;

use crate::records::{RecordError, find_record};

/// An exec of a sandbox, as it was observed.
#[derive(Debug, Clone)]
pub struct FoundExec {
    /// The record of the sandbox.
    pub files: Files,
    /// The exec.
    pub view: ExecView,
}

/// Why an exec was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindExecError {
    /// There is no such sandbox, or it has no record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The records of the execs cannot be read.
    #[error("cannot read the execs")]
    Unreadable(#[source] io::Error),
    /// The sandbox has no exec with this number.
    #[error("there is no exec {number} in sandbox {id}")]
    Missing {
        /// The number.
        number: u32,
        /// The id of the sandbox.
        id: String,
    },
}

/// Finds an exec by a word for its sandbox and its number.
///
/// # Errors
/// When there is no such sandbox or exec.
pub fn find_exec(scope: &Scope, word: &str, number: u32) -> Result<FoundExec, FindExecError> {
    FoundExec::of(find_record(scope, word)?, number)
}

impl FoundExec {
    /// Looks at an exec of this sandbox.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn of(files: Files, number: u32) -> Result<FoundExec, FindExecError> {
        match execs::find_exec(&files, number).map_err(FindExecError::Unreadable)? {
            Some(view) => Ok(FoundExec { files, view }),
            None => Err(FindExecError::Missing { number, id: files.name().to_owned() }),
        }
    }

    /// Tells whether the end of the exec was not observed yet.
    pub fn is_running(&self) -> bool {
        self.view.status == ExecStatus::Running
    }
}

/// How an exec ended, once nothing of it is left; nothing is known of an exec whose record is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedEnd {
    /// How the command ended.
    pub exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub cause: Option<Cause>,
}

impl ObservedEnd {
    /// Looks at an exec. Returns its end, if that is verified or its record is gone.
    pub fn of(files: &Files, number: u32) -> Option<ObservedEnd> {
        if !execs::has_ended(files, number) {
            return None;
        }
        let mut seen = execs::find_exec(files, number).ok()?;
        if seen.as_ref().is_some_and(|view| view.status == ExecStatus::Ended && view.report.is_none()) {
            // The record may have been removed during the look. The next look does not take that for an end.
            seen = execs::find_exec(files, number).ok()?;
        }
        match seen {
            Some(view) if view.status == ExecStatus::Running => None,
            Some(view) => Some(ObservedEnd { exit: view.exit, cause: view.cause }),
            None => Some(ObservedEnd { exit: None, cause: None }),
        }
    }
}
