//! Starts a process: a recorded exec beside the session's shell.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use penfold_control::execs::{ExecError, ExecStart, StartedExec};
use penfold_server::execs;
use penfold_server::ids::{Reserved, Spot};
use penfold_session::SessionClient;
use penfold_session::protocol::is_variable;
use penfold_state::{Files, StartFailure, error_chain};
use rustix::io::Errno;

use crate::api::{Api, ApiState};
use crate::claims;
use crate::error::{ApiError, Code};
use crate::ids::{ProcessId, SessionId};
use crate::sessions::{self, Session};

use super::claim::{Claim, taken_error};
use super::labels::{COMMAND, PROCESS};
use super::look;
use super::script::{self, Environment};

/// The bytes of a command that its label keeps: the files of an exec are read up to a size.
const LABEL: usize = 64 << 10;
/// The time between SIGTERM and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// The tries to read a state that the shell has just replaced.
const TRIES: u32 = 10;

/// A process to be started.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(super) command: String,
    env: Environment,
    cwd: Option<String>,
    timeout: Option<Duration>,
}

/// A process that runs.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) session: Session,
    pub(super) started: StartedExec,
    /// Keeps the record for a stream.
    pub(super) held: Option<OwnedFd>,
}

impl Launch {
    /// Checks a command and its settings.
    ///
    /// # Errors
    /// When no shell can run it.
    pub(crate) fn new(
        command: Option<String>,
        env: Option<Environment>,
        cwd: Option<String>,
        timeout_ms: Option<u64>,
    ) -> Result<Launch, ApiError> {
        let command = command.filter(|command| !command.trim().is_empty());
        let invalid = |why: &str| ApiError::new(Code::InvalidCommand, why);
        let command = command.ok_or_else(|| invalid("the command is empty"))?;
        let env = env.unwrap_or_default();
        let cwd = cwd.filter(|cwd| !cwd.is_empty());
        let values = env.values().flatten();
        if values.chain([&command]).chain(&cwd).any(|text| text.contains('\0')) {
            return Err(invalid("the command or its environment contains a NUL"));
        }
        if let Some(name) = env.keys().find(|name| !is_variable(name)) {
            return Err(invalid(&format!("{name:?} is no name of a variable")));
        }
        let timeout = timeout_ms.filter(|&ms| ms > 0).map(Duration::from_millis);
        Ok(Launch { command, env, cwd, timeout })
    }
}

/// Starts a process and returns once its command runs.
///
/// # Errors
/// 409 when a process has the id.
pub(super) async fn launch(
    api: &ApiState,
    session: &SessionId,
    id: &ProcessId,
    launch: Launch,
) -> Result<Launched, ApiError> {
    let session = sessions::obtain(api, session).await?;
    let id = id.clone();
    api.wait(move |api| {
        look::read_all(api)?;
        let reserved = reserve(api, &id).ok_or_else(|| taken_error(&id))?;
        let mut claim = Claim::of(api, &id, session.files.name())?;
        make_room(api, &session.files);
        penfold_sys::crash_point!("serve-process-reserved");
        let started = start(api, &session, &id, launch).inspect_err(|_| {
            claim.withdraw(api, &id, session.files.name());
        })?;
        penfold_sys::crash_point!("serve-process-started");
        reserved.settle(Spot { sandbox: session.files.name().to_owned(), number: started.number });
        let held = penfold_control::execs::hold_exec_record(&session.files, started.number).ok().flatten();
        Ok(Launched { session, started, held })
    })
    .await
}

/// Reserves an id, unless a process on disk has it or is about to get it.
fn reserve<'a>(api: &'a Api, id: &ProcessId) -> Option<Reserved<'a>> {
    // The process of a known id may be gone from the disk: by another server, or by `penfold rm`.
    let is_gone =
        || look::observe_process(api, id.as_str()).is_err_and(|error| error.code() == Code::ProcessNotFound);
    api.places.reserve(id.as_str()).or_else(|| if is_gone() { api.places.reserve(id.as_str()) } else { None })
}

/// Removes the records of the oldest ended processes of a sandbox, beyond those that are kept.
pub(crate) fn make_room(api: &Api, files: &Files) {
    let sandbox = files.name();
    for exec in execs::make_room(files) {
        if let Some(id) = exec.labels.get(PROCESS) {
            api.places.forget(id, &Spot { sandbox: sandbox.to_owned(), number: exec.number });
            claims::forget_process_claim(api.app.engine.scope(), id, sandbox);
        }
    }
}

fn start(api: &Api, session: &Session, id: &ProcessId, launch: Launch) -> Result<StartedExec, ApiError> {
    let cwd = launch.cwd.clone();
    let mut start = command_in_session(session, &launch.command, launch.env)?;
    if let Some(cwd) = &cwd {
        // A relative directory begins in that of the shell.
        start.directory = Some(start.directory.take().unwrap_or_default().join(cwd));
    }
    start.timeout = launch.timeout;
    start.grace = GRACE;
    start.log_limit = api.output_limit();
    let mut label = launch.command;
    label.truncate(label.floor_char_boundary(LABEL));
    start.labels.insert(PROCESS.to_owned(), id.as_str().to_owned());
    start.labels.insert(COMMAND.to_owned(), label.clone());
    penfold_control::execs::start_exec(&session.files, start).map_err(|error| {
        let not_started = |why: &str| {
            let error = ApiError::new(
                Code::StreamStartError.or_no_space(why),
                format!("Failed to start '{label}': {why}"),
            );
            error.with("command", label.as_str()).with("processId", id.as_str())
        };
        match error {
            ExecError::StartFailed { number, failure } => {
                execs::discard_exec(&session.files, number, GRACE);
                not_started(&describe(&failure, cwd.as_deref()))
            }
            ExecError::Client(_) | ExecError::Unanswered(_) if session.is_ending() => session.destroyed(),
            ExecError::Refused(reason) => ApiError::overload(Code::StreamStartError, reason),
            error => not_started(&error_chain(&error)),
        }
    })
}

fn describe(failure: &StartFailure, cwd: Option<&str>) -> String {
    match failure {
        StartFailure::NotFound => "there is no bash".to_owned(),
        StartFailure::NotExecutable(errno) => Errno::from_raw_os_error(*errno).to_string(),
        StartFailure::Directory(errno) => {
            let (cwd, errno) = (cwd.unwrap_or("."), Errno::from_raw_os_error(*errno));
            format!("Failed to change directory to '{cwd}': {errno}")
        }
        StartFailure::Other(reason) => reason.clone(),
    }
}

/// Makes a command with the state of the session's shell, if it has one.
///
/// # Errors
/// When the shell does not answer, or there is no memory file.
pub(crate) fn command_in_session(
    session: &Session,
    command: &str,
    env: Environment,
) -> Result<ExecStart, ApiError> {
    if session.id.is_none() {
        return script::plain_command(command, env).map_err(|error| ApiError::internal(&error));
    }
    beside_shell(session, command, &env)
}

/// Makes a command with the state that the session's shell had after its last command.
fn beside_shell(session: &Session, command: &str, env: &Environment) -> Result<ExecStart, ApiError> {
    let mut client = session.connect()?;
    let (state, cwd) = state(session, &mut client)?;
    let start = script::beside_shell(command, env, &state);
    let mut start = start.map_err(|error| ApiError::internal(&error))?;
    start.directory = Some(cwd);
    Ok(start)
}

fn state(session: &Session, client: &mut SessionClient) -> Result<(String, PathBuf), ApiError> {
    for _ in 0..TRIES {
        let snapshot = client.snapshot().map_err(|error| {
            if session.has_ended() { session.destroyed() } else { ApiError::internal(&error) }
        })?;
        // The shell may have replaced it since.
        if let Ok(state) = std::fs::read(client.state_path(&snapshot)) {
            return Ok((String::from_utf8_lossy(&state).into_owned(), snapshot.cwd));
        }
    }
    Err(ApiError::new(Code::StreamStartError, "the state of the session's shell cannot be read"))
}
