//! Recorded execs: commands in a running sandbox whose output and end stay on disk.
//!
//! - [`start()`] — runs a command. The exec goes on when this process is gone.
//! - [`list`], [`get`] — the execs of a sandbox, also after its end; [`log`] reads the output.
//! - [`stop`], [`kill`], [`wait`] — return once the end of the exec is verified, or its survivors are known.
//!
//! Any member may write to the files of an exec. An exec counts as ended only if its report exists and the evidence
//! agrees: the supervisor does not list the exec as running, or, without a supervisor that answers, its leaf is gone. Unknown means alive.

mod start;
mod view;

use std::io;
use std::time::{Duration, Instant};

use penfold_state::ExecFiles;
use penfold_state::log::{From, LogError, Reader};
use penfold_state::time::millis;
use penfold_state::wire::{Answer, Request, Size};
use penfold_state::{ExitStatus, Files, Report, StartFailure};
use penfold_teardown::{Cause, Survivor};

use crate::client::{ANSWER, Client, ClientError};
use crate::timeout::pause;

pub use start::{ExecStart, Started, start};
use view::Evidence;
pub use view::{ExecStatus, ExecView, get, has_ended, list};

/// The interval of looks without a supervisor that would report the end, and with one.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_ASKED: Duration = Duration::from_millis(100);

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
    Unanswered(#[source] ClientError),
    /// The supervisor cannot be asked, and nothing was sent.
    #[error("cannot ask about an exec")]
    Client(#[source] ClientError),
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

/// The end of an exec.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecEnd {
    /// The number of the exec.
    pub number: u32,
    /// How the command ended; `None` if unknown.
    pub exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub cause: Option<Cause>,
    /// The time of the end, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// The report of the verified end; `None` with survivors.
    pub report: Option<Report>,
    /// The survivors after the patience.
    pub remaining: Vec<Survivor>,
}

/// Stops an exec politely, and waits for its verified end. Without `signal` or `grace`, the exec's own apply.
///
/// # Errors
/// [`ExecError::Unverified`] when the exec has not ended within its grace and `patience`.
pub fn stop(
    files: &Files,
    number: u32,
    signal: Option<i32>,
    grace: Option<Duration>,
    patience: Duration,
) -> Result<ExecEnd, ExecError> {
    let request = Request::StopExec { number, signal: signal.unwrap_or(0), grace_ms: grace.map(millis) };
    end(files, number, &request, patience)
}

/// Kills an exec at once, and waits for its verified end.
///
/// # Errors
/// [`ExecError::Unverified`] when the exec has not ended within `patience`.
pub fn kill(files: &Files, number: u32, patience: Duration) -> Result<ExecEnd, ExecError> {
    end(files, number, &Request::KillExec(number), patience)
}

fn end(files: &Files, number: u32, request: &Request, patience: Duration) -> Result<ExecEnd, ExecError> {
    let began = Instant::now();
    let mut awaited = Awaited::open(files, number)?;
    if let Some(end) = awaited.end(files)? {
        return Ok(end);
    }
    let client = Client::connect(files, ANSWER).map_err(ExecError::Client)?;
    // A refusal: the exec has ended meanwhile, or its end is not on disk so far.
    client.request(request, ANSWER).map_err(ExecError::Unanswered)?;
    awaited.ask(client);
    awaited.wait(files, began.checked_add(patience))?.ok_or(ExecError::Unverified { number })
}

/// Waits for the end of an exec. `None` when the exec has not ended at the deadline.
///
/// # Errors
/// [`ExecError::NotFound`] when there is no such exec, also when it is removed meanwhile.
pub fn wait(files: &Files, number: u32, deadline: Option<Instant>) -> Result<Option<ExecEnd>, ExecError> {
    Awaited::open(files, number)?.wait(files, deadline)
}

/// Sends a signal to the command of an exec.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs, or there is no such signal.
pub fn signal(files: &Files, number: u32, signal: i32) -> Result<(), ExecError> {
    ask(files, &Request::SignalExec { number, signal })
}

/// Sets the size of the terminal of an exec.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs.
pub fn resize(files: &Files, number: u32, size: Size) -> Result<(), ExecError> {
    ask(files, &Request::ResizeExec { number, size })
}

/// Opens the log of an exec. To follow it, call [`Reader::wait`] with [`has_ended`].
///
/// # Errors
/// [`LogError::Missing`] when there is no such exec.
pub fn log(files: &Files, number: u32, from: From) -> Result<Reader, LogError> {
    match ExecFiles::open(files, number) {
        Ok(Some(exec)) => Reader::open(exec.dir(), from),
        Ok(None) => Err(LogError::Missing),
        Err(source) => Err(LogError::Io { act: "open", source }),
    }
}

/// Removes the record of an exec that has ended.
///
/// # Errors
/// [`ExecError::Refused`] when the exec may run.
pub fn forget(files: &Files, number: u32) -> Result<(), ExecError> {
    let awaited = Awaited::open(files, number)?;
    if !has_ended(files, number) {
        return Err(ExecError::Refused(format!("exec {number} runs")));
    }
    awaited.exec.remove(files).map_err(ExecError::io("remove the record of an exec"))
}

fn ask(files: &Files, request: &Request) -> Result<(), ExecError> {
    let client = Client::connect(files, ANSWER).map_err(ExecError::Client)?;
    match client.request(request, ANSWER).map_err(ExecError::Unanswered)? {
        Answer::Refused(reason) => Err(ExecError::Refused(reason)),
        _ => Ok(()),
    }
}

/// An exec whose end is awaited.
struct Awaited {
    exec: ExecFiles,
    supervisor: Asked,
}

/// The supervisor's word about the end of an exec.
enum Asked {
    /// The supervisor has not been asked, or cannot be.
    Never,
    /// The supervisor will answer on this connection.
    Pending(Client),
    /// The supervisor has confirmed the end.
    Ended,
}

impl Awaited {
    fn open(files: &Files, number: u32) -> Result<Awaited, ExecError> {
        let exec = ExecFiles::open(files, number).map_err(ExecError::io("open the record of an exec"))?;
        let exec = exec.ok_or_else(|| ExecError::NotFound { number, id: files.name().to_owned() })?;
        Ok(Awaited { exec, supervisor: Asked::Never })
    }

    /// Asks the supervisor for a message at the end of the exec.
    fn ask(&mut self, client: Client) {
        let sent = client.send(&Request::AwaitExec(self.exec.number()), &[]);
        self.supervisor = if sent.is_ok() { Asked::Pending(client) } else { Asked::Never };
    }

    /// Returns the end of the exec, if it has ended or has survivors.
    fn end(&self, files: &Files) -> Result<Option<ExecEnd>, ExecError> {
        let number = self.exec.number();
        let mut evidence = match &self.supervisor {
            Asked::Never => Evidence::default(),
            Asked::Pending(_) => Evidence::of_supervisor(number, false),
            Asked::Ended => Evidence::of_supervisor(number, true),
        };
        let view = view::of(files, &self.exec, &mut evidence);
        let removed = rustix::fs::fstat(self.exec.dir()).is_ok_and(|stat| stat.st_nlink == 0);
        if removed && view.report.is_none() {
            return Err(ExecError::NotFound { number, id: files.name().to_owned() });
        }
        if view.status == ExecStatus::Running && view.remaining.is_empty() {
            return Ok(None);
        }
        let ExecView { exit, cause, ended_at_ms, report, remaining, .. } = view;
        Ok(Some(ExecEnd { number, exit, cause, ended_at_ms, report, remaining }))
    }

    fn wait(&mut self, files: &Files, deadline: Option<Instant>) -> Result<Option<ExecEnd>, ExecError> {
        loop {
            if let Some(end) = self.end(files)? {
                return Ok(Some(end));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(None);
            }
            let until = |pause| deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
            match &self.supervisor {
                Asked::Pending(client) => match client.answer(until(LOOK_ASKED)) {
                    Ok(Answer::ExecEnded(_)) => self.supervisor = Asked::Ended,
                    Err(ClientError::Silent { .. }) => {}
                    Ok(Answer::Refused(_)) | Err(_) => {
                        self.supervisor = Asked::Never;
                        pause(LOOK);
                    }
                    Ok(_) => {}
                },
                Asked::Never | Asked::Ended => {
                    let left = until(LOOK_ASKED).saturating_duration_since(now);
                    match Client::connect(files, left) {
                        Ok(client) => self.ask(client),
                        Err(_) => pause(LOOK.min(left)),
                    }
                }
            }
        }
    }
}
