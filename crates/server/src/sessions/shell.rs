//! The life of a session: create, find, end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_control::Scope;
use penfold_control::execs::{self, ExecStart, ExecStatus, ExecView};
use penfold_state::log::{LogPosition as LogFrom, Stream};
use penfold_state::{Files, Report, error_chain};

use super::error::SessionError;
use super::place::{DirectoryPlace, Held};
use crate::app::AppState;
use crate::engine::EngineError;
use crate::execs::make_room;
use crate::records::{find_record, last_words};

/// The label of the exec that holds a session.
const LABEL: &str = "penfold.session";
/// The time that a new session may take.
const START: Duration = Duration::from_secs(10);
/// The time that the kill of a session may take until survivors are reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session to be made.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// The name, which is valid as the name of a sandbox is.
    pub name: String,
    /// The first directory; default: that of the sandbox.
    pub directory: Option<PathBuf>,
    /// Changes to the environment of the sandbox; `None` removes a variable.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// The shell, a bash; default `bash`.
    pub shell: Option<String>,
}

/// A living session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellSession {
    /// The name.
    pub name: String,
    /// The number of the exec that holds it.
    pub holder: u32,
    /// The start, in milliseconds since 1970.
    pub started_at_ms: u64,
}

impl ShellSession {
    fn of(view: &ExecView, name: &str) -> ShellSession {
        ShellSession { name: name.to_owned(), holder: view.number, started_at_ms: view.started_at_ms }
    }
}

/// Makes a session in a sandbox, and returns the sandbox's id with it once the shell is ready. A client that goes away does not
/// end the work.
///
/// # Errors
/// When there is a session with this name, or the shell does not start; then nothing of it is left, as far as it could be
/// observed.
pub async fn create_session(
    app: &AppState,
    sandbox: String,
    new: NewSession,
) -> Result<(String, ShellSession), SessionError> {
    let app = AppState::clone(app);
    // One at a time: the loser of a race would connect to the host of the winner.
    let made = tokio::spawn(async move {
        let _turn = app.engine.creating().await;
        let program = app.config.program.clone();
        let begin = move |scope: &Scope| {
            let files = find_record(scope, &sandbox)?;
            let begun = begin(scope.root(), program.into(), &files, new);
            let session = begun.map_err(|error| error.beside_end(&files))?;
            Ok::<_, SessionError>((files.name().to_owned(), session))
        };
        app.engine.call(begin).await?
    });
    made.await.map_err(|_| EngineError::Abandoned)?
}

fn begin(
    root: &Path,
    program: OsString,
    files: &Files,
    new: NewSession,
) -> Result<ShellSession, SessionError> {
    let NewSession { name, directory, environment, shell } = new;
    let place = DirectoryPlace::of(files)?;
    let mut command = place.host_words(program, root);
    command.extend([OsString::from(format!("--name={name}"))]);
    command.extend(shell.map(|shell| OsString::from(format!("--shell={shell}"))));
    let labels = BTreeMap::from([(LABEL.to_owned(), name.clone())]);
    let own_user = place == DirectoryPlace::OfUser;
    let start = ExecStart { environment, directory, labels, own_user, ..ExecStart::new(command) };
    if let Some(view) = living_shell(files, &name)? {
        return Err(SessionError::Exists { holder: view.number });
    }
    make_room(files);
    let number = execs::start_exec(files, start)?.number;
    penfold_sys::crash_point!("serve-host-started");
    let has_ended = || files.has_ended() || execs::has_ended(files, number);
    let connected = place.connect(files, Held { holder: Some(number), name: &name }, START, has_ended);
    let view =
        execs::find_exec(files, number).ok().flatten().filter(|view| view.status == ExecStatus::Running);
    match (connected, view) {
        (Ok(_), Some(view)) => Ok(ShellSession::of(&view, &name)),
        (Ok(_), None) => Err(SessionError::NotAlone(said(files, number))),
        (Err(error), _) => {
            let sentence = format!("{}: {}", error_chain(&error), said(files, number));
            let _ = execs::kill_exec(files, number, PATIENCE);
            Err(SessionError::NotStarted(sentence))
        }
    }
}

/// What a session host said on standard error.
fn said(files: &Files, number: u32) -> String {
    let log = execs::open_exec_log(files, number, LogFrom::Last { lines: 3, of: Some(Stream::Stderr) });
    log.map(last_words).unwrap_or_default()
}

/// Returns the living sessions of a sandbox, the youngest last.
///
/// # Errors
/// When the records of the execs cannot be read.
pub fn list_sessions(files: &Files) -> Result<Vec<ShellSession>, SessionError> {
    let mut held = holders(files)?;
    held.retain(|view| view.status == ExecStatus::Running);
    let session = |view: &ExecView| {
        ShellSession::of(view, view.labels.get(LABEL).map(String::as_str).unwrap_or_default())
    };
    Ok(held.iter().map(session).collect())
}

/// Finds a living session.
///
/// # Errors
/// When there is none with this name.
pub fn find_session(files: &Files, name: &str) -> Result<ShellSession, SessionError> {
    let view = living_shell(files, name)?.ok_or_else(|| SessionError::Missing { name: name.to_owned() })?;
    Ok(ShellSession::of(&view, name))
}

/// How the end of a session went, with the report of its end.
#[derive(Debug, Clone)]
pub enum SessionEnding {
    /// It had ended before.
    AlreadyGone(Option<Report>),
    /// Everything was observed gone.
    Gone(Option<Report>),
}

/// Kills a session with everything that it started, also while a command runs.
///
/// # Errors
/// When there was no session with this name, or something of it is left.
pub fn end_session(files: &Files, name: &str) -> Result<SessionEnding, SessionError> {
    let mut held: Vec<ExecView> = holders(files)?;
    held.retain(|view| view.labels.get(LABEL).is_some_and(|held| held == name));
    let last = held.pop().ok_or_else(|| SessionError::Missing { name: name.to_owned() })?;
    if last.status == ExecStatus::Ended {
        return Ok(SessionEnding::AlreadyGone(last.report));
    }
    penfold_sys::crash_point!("serve-host-kill-wanted");
    let end = execs::kill_exec(files, last.number, PATIENCE)?;
    penfold_sys::crash_point!("serve-host-killed");
    if end.remaining.is_empty() {
        return Ok(SessionEnding::Gone(end.report));
    }
    Err(SessionError::Left { name: name.to_owned(), survivors: end.remaining })
}

/// The execs that hold or held sessions, by number.
fn holders(files: &Files) -> Result<Vec<ExecView>, SessionError> {
    let mut views = execs::list_execs(files).map_err(SessionError::UnreadableExecs)?;
    views.retain(|view| view.labels.contains_key(LABEL));
    Ok(views)
}

/// The exec that holds a session.
pub(super) fn living_shell(files: &Files, name: &str) -> Result<Option<ExecView>, SessionError> {
    let mut held = holders(files)?;
    held.retain(|view| {
        view.status == ExecStatus::Running && view.labels.get(LABEL).is_some_and(|held| held == name)
    });
    Ok(held.pop())
}
