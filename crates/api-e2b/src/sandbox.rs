//! The sandbox that a request is for.

use std::sync::Arc;

use penfold_process::{ProcFs, Process};
use penfold_server::Tokens;
use penfold_server::records::{find_sandbox, open_record};
use penfold_state::evidence::fingerprints::is_frozen;
use penfold_state::state::{State, Status};
use penfold_state::{Files, Id};

use crate::access;
use crate::api::Api;
use crate::control::life::go_on;
use crate::error::ApiError;
use crate::guest::{Guest, Place};
use crate::templates::{RESUMES, SECURE, TEMPLATE, user_of};

/// Lets a paused sandbox go on, if it was created so.
///
/// # Errors
/// When it cannot go on.
pub(crate) fn resume(api: &Api, id: &str) -> Result<(), ApiError> {
    let Some(files) = record(api, id)? else { return Ok(()) };
    let Ok(intent) = files.intent() else { return Ok(()) };
    let is_paused = || intent.leaf.as_deref().is_some_and(is_frozen);
    let Some(timeout) = intent.labels.get(RESUMES).filter(|_| is_paused()).and_then(|text| text.parse().ok())
    else {
        return Ok(());
    };
    match find_sandbox(api.app.engine.scope(), id) {
        Ok(known) => go_on(api, &known, timeout),
        Err(_) => Ok(()),
    }
}

/// Returns the record of a sandbox that lives, by its whole id.
fn record(api: &Api, id: &str) -> Result<Option<Files>, ApiError> {
    if !Id::is_short(id) {
        return Ok(None);
    }
    let record = open_record(api.app.engine.scope(), id).map_err(|error| ApiError::internal(&error))?;
    Ok(record.filter(|files| !files.has_ended() && files.lock().may_be_held()))
}

/// What a request has that says who its client is.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The access token.
    pub(crate) token: Option<String>,
    /// The tokens of the server.
    pub(crate) tokens: Arc<Tokens>,
}

/// Finds a sandbox that runs by its whole id.
///
/// # Errors
/// When the records or the secret cannot be read.
pub(crate) fn find(api: &Api, id: &str, credentials: &Credentials) -> Result<Option<Guest>, ApiError> {
    let Some(files) = record(api, id)? else { return Ok(None) };
    let Ok(intent) = files.intent() else { return Ok(None) };
    // Without a token of its tenant, nothing of it is reached.
    if intent.tenant().is_some_and(|tenant| !credentials.tokens.has_tenant(tenant)) {
        return Ok(None);
    }
    if !intent.labels.contains_key(TEMPLATE) || intent.leaf.as_deref().is_some_and(is_frozen) {
        return Ok(None);
    }
    let is_secure = intent.labels.contains_key(SECURE);
    let expected =
        is_secure.then(|| api.secret().map(|secret| access::access_token(&secret, id))).transpose();
    let expected = expected.map_err(|error| ApiError::internal(&error))?;
    let is_admitted = expected.as_deref().is_none_or(|expected| {
        credentials.token.as_deref().is_some_and(|token| access::is_same(token, expected))
    });
    let (place, user) = (Place::Sandbox(files), user_of(&intent.labels));
    Ok(Some(Guest { place, user, token: expected, is_admitted }))
}

/// Tells whether the sandbox is being ended, or has ended.
pub(crate) fn is_ending(files: &Files) -> bool {
    let is_known = || files.asked().is_some() || files.has_ended() || files.intent().is_err();
    is_known() || files.exited().is_ok_and(|exited| exited.is_some()) || !has_leader(files)
}

/// Tells whether the first process of the sandbox lives.
fn has_leader(files: &Files) -> bool {
    let Ok(Some(State { leader: Some(leader), status: Status::Running, .. })) = files.state() else {
        return false;
    };
    let found = ProcFs::open().and_then(|mut proc| Process::open_exact(&mut proc, leader));
    found.is_ok_and(|found| found.is_some_and(|process| process.has_exited().is_ok_and(|exited| !exited)))
}
