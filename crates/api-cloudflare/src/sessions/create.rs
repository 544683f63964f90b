//! Makes the sandbox of a session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_request::RefusalKind;
use penfold_server::{EngineError, NewSandbox};
use penfold_session::protocol::is_variable;
use penfold_state::time::whole_millis;

use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::forget::forget_removed_sandboxes;
use crate::ids::SessionId;
use crate::leases::IDLE;

use super::delete;
use super::find::{self, API, CLOUDFLARE, SESSION, SHELL, Session, TIMEOUT};

/// The time that a kill may take until the survivors are reported.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that what runs in a session gets at its idle limit: an interactive shell, for one, takes no TERM.
const GRACE: Duration = Duration::from_secs(2);
/// The directory of a session, if it exists.
const WORKSPACE: &str = "/workspace";
/// The tries to make a session while another server makes or ends it.
const TRIES: u32 = 5;

/// The settings of a new session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    pub(crate) timeout_ms: Option<u64>,
}

impl Settings {
    /// Checks settings of a client.
    ///
    /// # Errors
    /// When the environment cannot be one.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let invalid = |message: String| Err(ApiError::new(Code::ValidationFailed, message));
        if let Some(name) = self.env.keys().find(|name| !is_variable(name)) {
            return invalid(format!("env: {name:?} is no name of a variable"));
        }
        if let Some((name, _)) = self.env.iter().find(|(_, value)| value.contains('\0')) {
            return invalid(format!("env: the value of {name} contains a NUL"));
        }
        if self.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
            return invalid("cwd contains a NUL".to_owned());
        }
        Ok(())
    }
}

/// Makes a session that does not exist. A session whose shell has exited is ended first.
///
/// # Errors
/// 409 when it exists.
pub(crate) async fn create(api: &ApiState, id: &SessionId, settings: Settings) -> Result<Session, ApiError> {
    let _lock = api.locks.lock(id.as_str()).await;
    if let Some(session) = look(api, id).await? {
        if !has_lost_shell(api, session).await? {
            return Err(exists(id));
        }
        delete::delete_locked(api, id).await?;
    }
    for _ in 0..TRIES {
        match start(api, id, &settings).await? {
            Started::New(session) => return Ok(session),
            Started::Other(Some(_)) => return Err(exists(id)),
            Started::Other(None) => {}
        }
    }
    Err(exists(id))
}

/// Returns the session, and makes it if it does not exist.
///
/// # Errors
/// When it cannot be made.
pub(crate) async fn obtain(api: &ApiState, id: &SessionId) -> Result<Session, ApiError> {
    if let Some(session) = look(api, id).await? {
        return Ok(session);
    }
    let _lock = api.locks.lock(id.as_str()).await;
    for _ in 0..TRIES {
        if let Some(session) = look(api, id).await? {
            return Ok(session);
        }
        match start(api, id, &Settings::default()).await? {
            Started::New(session) | Started::Other(Some(session)) => return Ok(session),
            Started::Other(None) => {}
        }
    }
    let message = format!("session '{}' is made and ended by another server", id.as_str());
    Err(ApiError::new(Code::InternalError, message))
}

async fn look(api: &ApiState, id: &SessionId) -> Result<Option<Session>, ApiError> {
    let id = id.clone();
    api.call(move |api| Ok(find::find_session(api.app.engine.scope(), &id)?.map(|session| session.used(api))))
        .await
}

/// Tells whether the session's shell has exited, and no command has run in the fresh one.
async fn has_lost_shell(api: &ApiState, session: Session) -> Result<bool, ApiError> {
    if !api.lost_shells.has(session.files.name()) {
        return Ok(false);
    }
    api.wait(move |_| {
        let snapshot = session.connect()?.snapshot().map_err(|error| ApiError::internal(&error))?;
        Ok(snapshot.number == 0)
    })
    .await
}

fn exists(id: &SessionId) -> ApiError {
    let id = id.as_str();
    ApiError::new(Code::SessionAlreadyExists, format!("Session '{id}' already exists")).with("sessionId", id)
}

/// The result of starting a sandbox.
enum Started {
    New(Session),
    /// The name is another sandbox's, or was a moment ago.
    Other(Option<Session>),
}

async fn start(api: &ApiState, id: &SessionId, settings: &Settings) -> Result<Started, ApiError> {
    let sandbox = describe(api, id, settings);
    let made = api.app.engine.create(sandbox).await;
    let id = id.clone();
    match made {
        Ok(sandbox) => {
            let timeout_ms = settings.timeout_ms;
            api.call(move |api| {
                forget_removed_sandboxes(api);
                let files = find::open_record(api.app.engine.scope(), &sandbox)?;
                let gone = || ApiError::new(Code::InternalError, "the session ended at once");
                let session = Session { id, files: files.ok_or_else(gone)?, timeout_ms, in_use: None };
                Ok(Started::New(session.used(api)))
            })
            .await
        }
        Err(EngineError::Start(error)) if error.kind() == Some(RefusalKind::NameTaken) => {
            api.wait(move |api| {
                let other = find::await_other(api.app.engine.scope(), &id)?;
                Ok(Started::Other(other.map(|session| session.used(api))))
            })
            .await
        }
        Err(error @ EngineError::TooMany { .. }) => {
            Err(ApiError::overload(Code::InternalError, penfold_state::error_chain(&error)))
        }
        Err(error) => Err(ApiError::internal(&error)),
    }
}

fn describe(api: &ApiState, id: &SessionId, settings: &Settings) -> NewSandbox {
    let root = api.app.engine.scope().root().display().to_string();
    let directory = first_directory(settings.cwd.as_deref(), home(api));
    // The verb comes first: it is none of those that `penfold --help` lists.
    let host = ["/proc/self/exe", "session-host", "--root", &root, "--name", SHELL, "--cwd"];
    let mut command: Vec<String> = host.map(str::to_owned).to_vec();
    command.push(directory.display().to_string());
    let mut sandbox = NewSandbox::new(command);
    let spec = &mut sandbox.spec;
    spec.name = Some(id.sandbox_name());
    spec.labels.insert(API.to_owned(), CLOUDFLARE.to_owned());
    spec.labels.insert(SESSION.to_owned(), id.as_str().to_owned());
    if let Some(timeout) = settings.timeout_ms {
        spec.labels.insert(TIMEOUT.to_owned(), timeout.to_string());
    }
    if let Some(idle) = api.app.config.limits.session_idle {
        spec.lease_ms = Some(whole_millis(idle));
        spec.grace_ms = Some(whole_millis(GRACE));
        spec.labels.insert(IDLE.to_owned(), whole_millis(idle).to_string());
    }
    for name in ["LANG", "LC_ALL"] {
        spec.env.insert(name.to_owned(), "C.UTF-8".to_owned());
    }
    spec.env.extend(settings.env.clone());
    spec.inherit_env = Some(true);
    spec.dir = Some(directory.display().to_string());
    spec.patience_ms = u64::try_from(PATIENCE.as_millis()).ok();
    sandbox
}

/// Returns the first directory of a session without a wish.
pub(crate) fn usual_directory(api: &Api) -> PathBuf {
    first_directory(None, home(api))
}

/// Returns the home directory of the server's user.
fn home(api: &Api) -> Option<PathBuf> {
    let environment = &api.app.config.environment;
    environment.iter().find(|(key, _)| key == "HOME").map(|(_, value)| PathBuf::from(value))
}

/// As in the reference: a directory that is missing is replaced by the home directory.
fn first_directory(wish: Option<&str>, home: Option<PathBuf>) -> PathBuf {
    let wish = PathBuf::from(wish.filter(|wish| !wish.is_empty()).unwrap_or(WORKSPACE));
    let home = home.unwrap_or_else(|| "/root".into());
    [wish, home]
        .into_iter()
        .find(|path| path.is_absolute() && is_enterable(path))
        .unwrap_or_else(|| "/".into())
}

fn is_enterable(path: &Path) -> bool {
    path.is_dir() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
