//! Finds the sandboxes of this API by their names and labels.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penfold_control::Scope;
use penfold_server::records;
use penfold_session::SessionClient;
use penfold_state::intent::Intent;
use penfold_state::log::{LogPosition, LogReader};
use penfold_state::{Files, lacks_descriptors};

use crate::api::Api;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::leases::InUse;

/// The labels of a session's sandbox.
pub(crate) const API: &str = "penfold.api";
pub(crate) const CLOUDFLARE: &str = "cloudflare";
pub(crate) const SESSION: &str = "penfold.session";
pub(crate) const TIMEOUT: &str = "penfold.timeout-ms";
/// The name of the shell's session in its sandbox.
pub(crate) const SHELL: &str = "main";
/// The time for the session host to answer: it may have to start first.
const ANSWER: Duration = Duration::from_secs(10);
/// The time for the rest of a sandbox whose session host is gone.
const FAREWELL: Duration = Duration::from_secs(3);

/// A session whose sandbox lives.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) files: Files,
    /// The time limit of commands that have none.
    pub(crate) timeout_ms: Option<u64>,
    /// While a client uses it: keeps it from its idle limit.
    pub(crate) in_use: Option<Arc<InUse>>,
}

impl Session {
    /// Returns the session as one that a client uses.
    pub(crate) fn used(mut self, api: &Api) -> Session {
        self.in_use = api.leases.begin_use(&self.files);
        self
    }

    /// Connects to the session's shell.
    ///
    /// # Errors
    /// 410 when the session has ended meanwhile.
    pub(crate) fn connect(&self) -> Result<SessionClient, ApiError> {
        SessionClient::connect(&self.files, SHELL, ANSWER).map_err(|error| match self.failure() {
            _ if !self.is_ending(&error) => ApiError::internal(&error),
            Some(failure) => {
                ApiError::new(Code::InternalError, format!("the session's shell cannot run: {failure}"))
            }
            None => self.destroyed(),
        })
    }

    /// Returns what a session host said that could not start.
    fn failure(&self) -> Option<String> {
        let log = LogReader::open(self.files.dir(), LogPosition::Last { lines: 4, of: None }).ok()?;
        let said = records::last_words(log);
        Some(said).filter(|said| !said.is_empty())
    }

    /// Tells whether the session's sandbox has no supervisor any more.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.files)
    }

    /// Tells whether the session ends now, after a failure that may be the end of its host: the rest of its sandbox takes a moment
    /// longer. A lack of descriptors is none.
    pub(crate) fn is_ending(&self, failure: &(dyn Error + 'static)) -> bool {
        !lacks_descriptors(failure) && self.ends_within(FAREWELL)
    }

    /// Tells whether the session ends within this time.
    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        ends_within(&self.files, limit)
    }

    /// The answer to a command whose session was deleted while it ran.
    pub(crate) fn destroyed(&self) -> ApiError {
        let id = self.id.as_str();
        ApiError::new(Code::SessionDestroyed, format!("Session '{id}' was destroyed")).with("sessionId", id)
    }
}

fn has_ended(files: &Files) -> bool {
    !files.lock().may_be_held()
        || files.has_ended()
        || files.intent().is_err_and(|error| !lacks_descriptors(&error))
}

/// Tells whether a sandbox ends within this time.
pub(crate) fn ends_within(files: &Files, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while !has_ended(files) {
        if Instant::now() >= until {
            return false;
        }
        wait_a_moment();
    }
    true
}

/// Finds the living sandbox of a session.
///
/// # Errors
/// When the state root cannot be read.
pub(crate) fn find_session(scope: &Scope, id: &SessionId) -> Result<Option<Session>, ApiError> {
    let unreadable = |error: &dyn std::error::Error| ApiError::internal(error);
    let name = id.sandbox_name();
    let Some(sandbox) = scope.name_holder(&name).map_err(|error| unreadable(&error))? else {
        return Ok(None);
    };
    let Some(files) = open_record(scope, &sandbox)? else { return Ok(None) };
    let intent = match files.intent() {
        Ok(intent) => intent,
        Err(error) if lacks_descriptors(&error) => return Err(unreadable(&error)),
        Err(_) => return Ok(None),
    };
    if session_of(&intent).as_deref() != Some(id.as_str()) {
        let message = format!("sandbox {sandbox} has the name {name}, and is not of this session");
        return Err(ApiError::new(Code::InternalError, message));
    }
    let timeout_ms = intent.labels.get(TIMEOUT).and_then(|text| text.parse().ok());
    let session = Session { id: id.clone(), files, timeout_ms, in_use: None };
    Ok(if session.has_ended() { None } else { Some(session) })
}

/// Waits until the sandbox that holds the session's name can be used, or the name is free.
///
/// # Errors
/// As [`find_session`].
pub(crate) fn await_other(scope: &Scope, id: &SessionId) -> Result<Option<Session>, ApiError> {
    let until = Instant::now() + ANSWER;
    loop {
        let found = find_session(scope, id)?;
        let is_held = matches!(scope.name_holder(&id.sandbox_name()), Ok(Some(_)));
        if found.is_some() || !is_held || Instant::now() >= until {
            return Ok(found);
        }
        wait_a_moment();
    }
}

fn wait_a_moment() {
    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = rustix::event::poll(&mut [], Some(&pause));
}

/// Opens the record of a sandbox.
///
/// # Errors
/// When the state root cannot be read.
pub(crate) fn open_record(scope: &Scope, sandbox: &str) -> Result<Option<Files>, ApiError> {
    records::open_record(scope, sandbox).map_err(|error| ApiError::internal(&error))
}

/// Returns the records of all sandboxes of this API with their sessions, living or not.
///
/// # Errors
/// When the state root cannot be read.
pub(crate) fn all_records(scope: &Scope) -> Result<Vec<(SessionId, Files)>, ApiError> {
    let session = |intent: &Intent| SessionId::new(Some(&session_of(intent)?)).ok();
    records::choose_records(scope, session).map_err(|error| ApiError::internal(&error))
}

/// Lists the execs of a record; one that is being removed has none.
///
/// # Errors
/// When there are no descriptors to look at them.
pub(crate) fn list_in<T>(
    files: &Files,
    list: impl Fn(&Files) -> io::Result<Vec<T>>,
) -> Result<Vec<T>, ApiError> {
    match list(files) {
        Err(error) if lacks_descriptors(&error) => Err(ApiError::full(&error)),
        listed => Ok(listed.unwrap_or_default()),
    }
}

fn session_of(intent: &Intent) -> Option<String> {
    let is_ours = intent.labels.get(API).is_some_and(|api| api == CLOUDFLARE);
    if is_ours { intent.labels.get(SESSION).cloned() } else { None }
}
