//! Starts a process: a recorded exec beside the session's shell.

use std::collections::BTreeMap;
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
use serde_json::json;

use crate::api::{Api, ApiState};
use crate::end_tree::GRACE;
use crate::error::{ApiError, Code};
use crate::forget::forget_exec;
use crate::ids::{PROCESS, ProcessId, SessionId};
use crate::sessions::{self, Session};

use super::claim::{Claim, taken_error};
use super::labels::{COMMAND, CWD, WORDS};
use super::look;
use super::script::{self, Environment};

/// The bytes of a command that its label keeps: the files of an exec are read up to a size.
const LABEL: usize = 64 << 10;
/// The tries to read a state that the shell has just replaced.
const TRIES: u32 = 10;

/// A process to be started.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command for a shell, or the words as one text.
    pub(super) command: String,
    /// The words of a command that no shell reads.
    words: Option<Vec<String>>,
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
        Ok(Launch { command, words: None, env, cwd, timeout })
    }

    /// Checks a command of words and its settings.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub(crate) fn of_words(
        words: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<String>,
        timeout_ms: Option<f64>,
    ) -> Result<Launch, ApiError> {
        let invalid = |why: &str| Err(ApiError::new(Code::InvalidCommand, why));
        if words.first().is_none_or(String::is_empty) {
            return invalid("the command has no program");
        }
        if words.iter().any(|word| word.contains('\0')) {
            return invalid("the command contains a NUL");
        }
        let is_bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
        if let Some((name, _)) = env.iter().find(|(name, value)| is_bad_name(name) || value.contains('\0')) {
            let reason = format!("{name:?} is no name of a variable, or its value contains a NUL");
            let error = ApiError::new(Code::InvalidProcessEnvironment, reason.as_str());
            return Err(error.with("name", name.as_str()).with("reason", reason));
        }
        if let Some(cwd) = cwd.as_ref().filter(|cwd| cwd.is_empty() || cwd.contains('\0')) {
            return Err(bad_directory(cwd, "the directory is empty, or contains a NUL"));
        }
        let timeout = match timeout_ms.map(|ms| Duration::try_from_secs_f64(ms / 1000.0)) {
            Some(Ok(timeout)) if !timeout.is_zero() => Some(timeout),
            None => None,
            Some(_) => return invalid("the timeout is no positive number"),
        };
        let env = env.into_iter().map(|(name, value)| (name, Some(value))).collect();
        Ok(Launch { command: words.join(" "), words: Some(words), env, cwd, timeout })
    }

    /// Describes the exec.
    ///
    /// # Errors
    /// When the session's shell does not answer.
    pub(crate) fn describe(&mut self, api: &Api, session: &Session) -> Result<ExecStart, ApiError> {
        let env = std::mem::take(&mut self.env);
        let mut start = match &self.words {
            None => command_in_session(session, &self.command, env)?,
            Some(words) => {
                let mut start = ExecStart::new(words);
                start.environment =
                    env.into_iter().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
                start.directory = Some(sessions::usual_directory(api));
                start.labels.insert(WORDS.to_owned(), words_label(words));
                start.labels.extend(self.cwd.clone().map(|cwd| (CWD.to_owned(), cwd)));
                start
            }
        };
        if let Some(cwd) = &self.cwd {
            // A relative directory begins in that of the shell.
            start.directory = Some(start.directory.take().unwrap_or_default().join(cwd));
        }
        Ok(start)
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
    for exec in execs::make_room(files) {
        let spot = Spot { sandbox: files.name().to_owned(), number: exec.number };
        forget_exec(api, &spot, &exec.labels);
    }
}

/// Writes words for a label, as many as it can have.
fn words_label(words: &[String]) -> String {
    let mut length = 0;
    let fit = words.iter().take_while(|word| {
        length += json!(word).to_string().len() + 1;
        length <= LABEL
    });
    json!(fit.collect::<Vec<_>>()).to_string()
}

fn bad_directory(cwd: &str, reason: &str) -> ApiError {
    ApiError::new(Code::InvalidProcessCwd, reason).with("cwd", cwd).with("reason", reason)
}

fn start(api: &Api, session: &Session, id: &ProcessId, mut launch: Launch) -> Result<StartedExec, ApiError> {
    let cwd = launch.cwd.clone();
    let has_words = launch.words.is_some();
    let mut start = launch.describe(api, session)?;
    start.timeout = launch.timeout;
    start.grace = GRACE;
    start.log_limit = api.output_limit();
    let mut label = launch.command;
    label.truncate(label.floor_char_boundary(LABEL));
    start.labels.insert(PROCESS.to_owned(), id.as_str().to_owned());
    start.labels.insert(COMMAND.to_owned(), label.clone());
    penfold_control::execs::start_exec(&session.files, start).map_err(|error| {
        let not_started = |why: &str| {
            let code = if has_words { Code::ProcessSpawnFailed } else { Code::StreamStartError };
            let error = ApiError::new(code.or_no_space(why), format!("Failed to start '{label}': {why}"));
            error.with("command", label.as_str()).with("processId", id.as_str())
        };
        match error {
            ExecError::StartFailed { number, failure } => {
                execs::discard_exec(&session.files, number, GRACE);
                let why = describe(&failure, cwd.as_deref());
                match failure {
                    StartFailure::Directory(_) if has_words => {
                        bad_directory(cwd.as_deref().unwrap_or("."), &why).with("processId", id.as_str())
                    }
                    StartFailure::NotFound if has_words => not_started("there is no such program"),
                    _ => not_started(&why),
                }
            }
            ExecError::Client(_) | ExecError::Unanswered(_) if session.is_ending(&error) => {
                session.destroyed()
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(
        words: &[&str],
        variable: &str,
        cwd: Option<&str>,
        timeout: Option<f64>,
    ) -> Result<Launch, Code> {
        let env = BTreeMap::from([(variable.to_owned(), "x".to_owned())]);
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Launch::of_words(words, env, cwd.map(str::to_owned), timeout).map_err(|error| error.code())
    }

    #[test]
    fn words_and_their_settings_are_checked() {
        assert_eq!(words(&["a", "", "b c"], "A.b", Some("/"), Some(1.5)).unwrap().command, "a  b c");
        for (bad, code) in [
            (words(&[], "A", None, None), Code::InvalidCommand),
            (words(&["", "a"], "A", None, None), Code::InvalidCommand),
            (words(&["a\0"], "A", None, None), Code::InvalidCommand),
            (words(&["a"], "", None, None), Code::InvalidProcessEnvironment),
            (words(&["a"], "A=", None, None), Code::InvalidProcessEnvironment),
            (words(&["a"], "A", Some(""), None), Code::InvalidProcessCwd),
            (words(&["a"], "A", None, Some(0.0)), Code::InvalidCommand),
            (words(&["a"], "A", None, Some(-1.0)), Code::InvalidCommand),
            (words(&["a"], "A", None, Some(1e300)), Code::InvalidCommand),
        ] {
            assert_eq!(bad.unwrap_err(), code);
        }
    }

    #[test]
    fn a_label_has_as_many_words_as_fit() {
        let long = "\u{1}".repeat(LABEL / 12);
        let kept: Vec<String> =
            serde_json::from_str(&words_label(&["a".to_owned(), long.clone(), long.clone()])).unwrap();
        assert_eq!(kept, ["a".to_owned(), long]);
    }
}
