//! Starts a detached sandbox by executing penfold, for processes with threads: these must not fork a supervisor.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use penfold_request::{Refusal, RefusalKind, StartAnswer, StartRequest};
use penfold_state::exit_codes::NOT_STARTED;
use rustix::io::Errno;

/// The verb that reads a [`StartRequest`] from its standard input and writes a [`StartAnswer`] to its standard output.
pub const START_REQUEST: &str = "start-request";

/// Why a detached sandbox was not started. Nothing of it is left, unless its kind is [`RefusalKind::Unverified`].
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// penfold cannot be executed.
    #[error("cannot execute `{}`", program.display())]
    Execute {
        /// The path of the program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// penfold has refused the request, or was killed.
    #[error("{}", .0.sentence)]
    Refused(Refusal),
}

impl StartError {
    /// The kind of the refusal; `None` if penfold was not executed.
    #[must_use]
    pub fn kind(&self) -> Option<RefusalKind> {
        match self {
            StartError::Execute { .. } => None,
            StartError::Refused(refusal) => Some(refusal.kind),
        }
    }
}

/// Starts the sandbox, without a configuration and with this environment, and returns the id once the command runs.
///
/// `program` is the path of penfold.
///
/// # Errors
/// When the command does not run.
pub fn start_detached(
    program: &Path,
    root: &Path,
    request: &StartRequest,
    environment: &[(OsString, OsString)],
) -> Result<String, StartError> {
    let mut command = Command::new(program);
    command.arg0("penfold").arg("--root").arg(root).arg(START_REQUEST);
    command.env_clear().envs(environment.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A thread of a runtime may have signals blocked. The command would inherit that, and no polite signal would end it.
    let _ = penfold_sys::signal::set_mask(&penfold_sys::signal::SignalSet::empty());
    match conversation(&mut command, request) {
        Ok(output) => answer(&output),
        Err(error) if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) => {
            Err(refused(RefusalKind::TooLarge, "the command and its environment are too large for execve(2)"))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(refused(RefusalKind::NotStarted, "the command or its environment contains a NUL"))
        }
        Err(source) => Err(StartError::Execute { program: program.to_owned(), source }),
    }
}

fn conversation(command: &mut Command, request: &StartRequest) -> io::Result<Output> {
    let text = serde_json::to_vec(request)?;
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // A process that has died without reading is seen by its end.
        let _ = input.write_all(&text);
    }
    child.wait_with_output()
}

fn refused(kind: RefusalKind, sentence: &str) -> StartError {
    StartError::Refused(Refusal { kind, sentence: sentence.to_owned(), holder: None, exit_code: NOT_STARTED })
}

fn answer(output: &Output) -> Result<String, StartError> {
    match serde_json::from_slice(&output.stdout) {
        Ok(StartAnswer::Started { id }) => Ok(id),
        Ok(StartAnswer::Refused(refusal)) => Err(StartError::Refused(refusal)),
        // It was killed, or it is another program.
        Err(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().map_or_else(|| output.status.to_string(), str::to_owned);
            let sentence = format!("penfold ended without an answer: {said}");
            // Whether it was killed before or after it has made something, nobody has said.
            Err(refused(RefusalKind::Unverified, &sentence))
        }
    }
}
