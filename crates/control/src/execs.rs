//! Recorded execs: commands in a running sandbox whose output and end stay on disk.
//!
//! - [`start_exec()`] — runs a command. The exec goes on when this process is gone.
//! - [`send_exec`], [`exec_reply`] — the same for an exec that ends with its client.
//! - [`list_execs`], [`running_execs`], [`find_exec`] — the execs of a sandbox, also after its end; [`open_exec_log`] reads the output.
//! - [`remove_exec_record`], [`forget_oldest`] — remove records of ended execs; [`hold_exec_record`] keeps one for a reader.
//! - [`stop_exec`], [`kill_exec`], [`wait_for_exec`] — return once the end of the exec is verified, or its survivors are known.
//! - [`begin_stop`], [`begin_kill`] — return once the supervisor ends the exec.
//! - [`stop_all`] — the same for many execs of a sandbox at once, on one connection.
//!
//! Any member may write to the files of an exec. An exec counts as ended only if its report exists and the evidence
//! agrees: the supervisor does not list the exec as running, or, without a supervisor that answers, its leaf is gone. Unknown means alive.

mod end;
mod request;
mod retain;
mod start;
mod view;

use std::io;
use std::os::fd::OwnedFd;

use penfold_state::ExecFiles;
use penfold_state::log::{LogError, LogPosition, LogReader};
use penfold_state::state::CommandExit;
use penfold_state::wire::{Answer, Request, Size};
use penfold_state::{Files, StartFailure};

use crate::client::{ANSWER, SupervisorClient, SupervisorClientError, ended_or};

pub use end::{ExecEnd, begin_kill, begin_stop, kill_exec, stop_all, stop_exec, wait_for_exec};
pub use request::{ExecReply, StartedExec, exec_reply, send_exec};
pub use retain::{KEPT, forget_oldest};
pub use start::{ExecStart, start_exec};
pub use view::{ExecStatus, ExecView, find_exec, has_ended, list_execs, running_execs};

/// Why a request about an exec failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such exec in the sandbox.
    #[error("there is no exec {number} in sandbox {id}")]
    NotFound {
        /// The number.
        number: u32,
        /// The id of the sandbox.
        id: String,
    },
    /// The supervisor has refused the request, and nothing was done.
    #[error("refused: {0}")]
    Refused(String),
    /// The command could not be run. The directory of the exec stays.
    #[error("exec {number} cannot run its command")]
    StartFailed {
        /// The number.
        number: u32,
        /// The reason.
        failure: StartFailure,
    },
    /// The request was sent and not answered: it may have been carried out.
    #[error("no answer to a request about an exec")]
    Unanswered(#[source] SupervisorClientError),
    /// The supervisor cannot be asked, and nothing was sent.
    #[error("cannot ask about an exec")]
    Client(#[source] SupervisorClientError),
    /// The exec did not end in time.
    #[error("exec {number} has not ended in time")]
    Unverified {
        /// The number.
        number: u32,
    },
    /// A file operation failed.
    #[error("cannot {act}")]
    Io {
        /// The operation.
        act: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl ExecError {
    fn io(act: &'static str) -> impl FnOnce(io::Error) -> ExecError {
        move |source| ExecError::Io { act, source }
    }
}

/// Sends a signal to the command of an exec.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs, or there is no such signal.
pub fn signal_exec(files: &Files, number: u32, signal: i32) -> Result<(), ExecError> {
    ask(files, &Request::SignalExec { number, signal })
}

/// Sets the size of the terminal of an exec.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs.
pub fn resize_exec(files: &Files, number: u32, size: Size) -> Result<(), ExecError> {
    ask(files, &Request::ResizeExec { number, size })
}

/// Opens the input of an exec that was started with [`ExecStart::open_input`], to write into it without waiting for room; `None` if
/// there is none, or it has ended.
///
/// # Errors
/// When the directory of the exec cannot be read, or a member has put something else in the place of the input.
pub fn open_exec_input(files: &Files, number: u32) -> io::Result<Option<OwnedFd>> {
    ExecFiles::open(files, number)?.map_or(Ok(None), |exec| exec.open_input())
}

/// Ends the open input of an exec without a terminal, once the command has read what was written.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs.
pub fn close_exec_input(files: &Files, number: u32) -> Result<(), ExecError> {
    ask(files, &Request::CloseExecInput(number))
}

/// Opens the log of an exec. To follow it, call [`LogReader::wait`] with [`has_ended`].
///
/// # Errors
/// [`LogError::Missing`] when there is no such exec.
pub fn open_exec_log(files: &Files, number: u32, from: LogPosition) -> Result<LogReader, LogError> {
    match ExecFiles::open(files, number) {
        Ok(Some(exec)) => LogReader::open(exec.dir(), from),
        Ok(None) => Err(LogError::Missing),
        Err(source) => Err(LogError::Io { act: "open", source }),
    }
}

/// Returns how the command of an exec ended, as soon as that is known: members may still live. `None` while it runs, or if there is no
/// such exec.
///
/// # Errors
/// When its directory cannot be opened or read.
pub fn exec_exit(files: &Files, number: u32) -> io::Result<Option<CommandExit>> {
    ExecFiles::open(files, number)?.map_or(Ok(None), |exec| exec.exited())
}

/// Keeps the record of an exec from [`forget_oldest`] as long as the returned descriptor is open, so that a reader of the
/// log also finds the end. `None` when there is no such exec, or it is being removed.
///
/// # Errors
/// When its directory cannot be opened or locked.
pub fn hold_exec_record(files: &Files, number: u32) -> io::Result<Option<OwnedFd>> {
    ExecFiles::open(files, number)?.map_or(Ok(None), |exec| exec.hold())
}

/// Removes the record of an exec that has ended.
///
/// # Errors
/// [`ExecError::Refused`] when the exec may run.
pub fn remove_exec_record(files: &Files, number: u32) -> Result<(), ExecError> {
    let exec = open(files, number)?;
    if !has_ended(files, number) {
        return Err(ExecError::Refused(format!("exec {number} runs")));
    }
    exec.remove(files).map_err(ExecError::io("remove the record of an exec"))
}

fn ask(files: &Files, request: &Request) -> Result<(), ExecError> {
    let client = SupervisorClient::connect(files, ANSWER).map_err(ExecError::Client)?;
    penfold_sys::crash_point!("exec-connected");
    match client.request(request, ANSWER).map_err(|error| unanswered(files, error))? {
        Answer::Refused(reason) => Err(ExecError::Refused(reason)),
        _ => Ok(()),
    }
}

/// The request was sent: it may have been carried out, unless the sandbox has ended.
fn unanswered(files: &Files, error: SupervisorClientError) -> ExecError {
    match ended_or(files, error) {
        error @ SupervisorClientError::Ended { .. } => ExecError::Client(error),
        error => ExecError::Unanswered(error),
    }
}

fn open(files: &Files, number: u32) -> Result<ExecFiles, ExecError> {
    let exec = ExecFiles::open(files, number).map_err(ExecError::io("open the record of an exec"))?;
    exec.ok_or_else(|| ExecError::NotFound { number, id: files.name().to_owned() })
}
