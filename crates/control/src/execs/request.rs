//! The request to run a command in a sandbox, as each client of an exec makes it.

use std::os::fd::{AsFd as _, BorrowedFd};

use penfold_state::intent::shorten_command;
use penfold_state::wire::{Answer, ExecMessage, Request};
use penfold_state::{ExecSpec, Files, Outcome};
use penfold_teardown::Cause;

use super::{ExecError, unanswered};
use crate::client::{SupervisorClient, SupervisorClientError, ended_or};

/// A running exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedExec {
    /// The number of the exec in its sandbox.
    pub number: u32,
    /// The pid of the command in penfold's pid namespace; `None` if unknown.
    pub pid: Option<i32>,
}

/// What a supervisor says about a command that a client has requested.
#[derive(Debug)]
pub enum ExecReply {
    /// The command runs, and ends with the connection unless it is detached.
    Running,
    /// The command runs as a recorded exec.
    Recorded(StartedExec),
    /// Its tree has ended, or the command could not be run.
    Ended(Box<Outcome>),
}

/// Sends the request. `command` is shown to people; the descriptors are those of the standard streams.
///
/// # Errors
/// The command was not started then.
pub fn send_exec(
    client: &SupervisorClient,
    files: &Files,
    spec: &ExecSpec,
    command: Vec<String>,
    streams: &[BorrowedFd<'_>],
) -> Result<(), ExecError> {
    let sealed = spec.sealed().map_err(ExecError::io("describe an exec"))?;
    let command = shorten_command(command);
    let request =
        Request::Exec(ExecMessage { command, detached: spec.detached, recorded: spec.recorded.is_some() });
    let fds: Vec<BorrowedFd<'_>> = std::iter::once(sealed.as_fd()).chain(streams.iter().copied()).collect();
    penfold_sys::crash_point!("exec-connected");
    client.send(&request, &fds).map_err(|error| ExecError::Client(ended_or(files, error)))
}

/// Reads a message that came after the request, or why none comes; `None` if it says nothing about the command.
///
/// # Errors
/// After [`ExecError::Unanswered`], the command may run.
pub fn exec_reply(
    files: &Files,
    message: Result<Answer, SupervisorClientError>,
) -> Result<Option<ExecReply>, ExecError> {
    match message.map_err(|error| unanswered(files, error))? {
        Answer::Running => Ok(Some(ExecReply::Running)),
        Answer::ExecStarted { number, leader } => {
            Ok(Some(ExecReply::Recorded(StartedExec { number, pid: leader })))
        }
        Answer::Refused(reason) => Err(ExecError::Refused(reason)),
        // A supervisor of an older build does not set `of_exec`.
        Answer::Outcome(outcome) if outcome.of_exec || outcome.report.cause == Cause::StartFailed => {
            Ok(Some(ExecReply::Ended(outcome)))
        }
        Answer::Outcome(_) => {
            Err(ExecError::Client(SupervisorClientError::Ended { id: files.name().to_owned() }))
        }
        _ => Ok(None),
    }
}
