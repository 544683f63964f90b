//! Starts a recorded exec.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_state::log::USUAL_LIMIT;
use penfold_state::record::SCHEMA;
use penfold_state::time::whole_millis;
use penfold_state::wire::Size;
use penfold_state::{ExecSpec, Files, RecordSettings, StartFailure};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use super::ExecError;
use super::request::{ExecReply, StartedExec, exec_reply, send_exec};
use crate::client::{ANSWER, SupervisorClient};

/// The grace of an exec, unless chosen otherwise.
const GRACE: Duration = Duration::from_secs(10);

/// A command to run as a recorded exec.
#[derive(Debug)]
pub struct ExecStart {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Changes to the environment of the sandbox; `None` removes a variable.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// The directory in which the command starts, if not the sandbox's.
    pub directory: Option<PathBuf>,
    /// The standard input; `None` means `/dev/null`. With a terminal, one end of a stream socket: the terminal's output
    /// is written to it, and bytes read from it are typed.
    pub stdin: Option<OwnedFd>,
    /// Whether clients may write input while the command runs, with [`open_exec_input`](super::open_exec_input); not together with `stdin`.
    pub open_input: bool,
    /// The size of the terminal, if the command gets one.
    pub terminal: Option<Size>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The polite signal, if not the sandbox's.
    pub signal: Option<i32>,
    /// The time to end after the polite signal.
    pub grace: Duration,
    /// Whether the command becomes a user by itself: then it does not run as the user of the sandbox.
    pub own_user: bool,
    /// Whether what the command leaves goes on after its end, until the sandbox or a request ends it.
    pub lingers: bool,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The size limit of the log, in bytes.
    pub log_limit: u64,
}

impl ExecStart {
    /// Describes a command without input, terminal, time limit or labels.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> ExecStart {
        ExecStart {
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: None,
            stdin: None,
            open_input: false,
            terminal: None,
            timeout: None,
            signal: None,
            grace: GRACE,
            own_user: false,
            lingers: false,
            labels: BTreeMap::new(),
            log_limit: USUAL_LIMIT,
        }
    }
}

/// Starts a command in a running sandbox. Returns once the command runs.
///
/// # Errors
/// After [`ExecError::Unanswered`], the command may run.
pub fn start_exec(files: &Files, start: ExecStart) -> Result<StartedExec, ExecError> {
    let words: Vec<String> = start.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (spec, input) = describe(start).map_err(ExecError::io("open the input of an exec"))?;
    let client = SupervisorClient::connect(files, ANSWER).map_err(ExecError::Client)?;
    let until = Instant::now() + ANSWER;
    send_exec(&client, files, &spec, words, &[input.as_fd()])?;
    loop {
        match exec_reply(files, client.answer(until))? {
            Some(ExecReply::Recorded(started)) => return Ok(started),
            Some(ExecReply::Ended(outcome)) => {
                let failure = outcome.report.failure;
                let ended = || StartFailure::Other("the exec was ended before its command ran".to_owned());
                return Err(ExecError::StartFailed {
                    number: outcome.exec.unwrap_or(0),
                    failure: failure.unwrap_or_else(ended),
                });
            }
            Some(ExecReply::Running) | None => {}
        }
    }
}

/// Makes the description, and opens the standard input.
fn describe(start: ExecStart) -> io::Result<(ExecSpec, OwnedFd)> {
    let ExecStart {
        command,
        environment,
        directory,
        stdin,
        open_input,
        terminal,
        timeout,
        signal,
        grace,
        own_user,
        lingers,
        labels,
        log_limit,
    } = start;
    let spec = ExecSpec {
        schema: SCHEMA,
        command,
        environment,
        directory,
        timeout_ms: timeout.map(whole_millis),
        signal: signal.unwrap_or(Signal::TERM.as_raw()),
        as_sandbox: signal.is_none(),
        grace_ms: whole_millis(grace),
        terminal: terminal.is_some(),
        detached: true,
        own_user,
        beside: false,
        recorded: Some(RecordSettings { labels, log_limit, open_input, size: terminal, lingers }),
    };
    let null: &CStr = c"/dev/null";
    let input = match stdin {
        Some(stdin) => stdin,
        None => rustix::fs::open(null, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?,
    };
    Ok((spec, input))
}
