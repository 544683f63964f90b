//! A sandbox as the data plane reaches it.

use axum::http::HeaderMap;
use penfold_process::{ProcFs, Process};
use penfold_server::records::{find_sandbox, open_record};
use penfold_state::evidence::fingerprints::is_frozen;
use penfold_state::state::{State, Status};
use penfold_state::{Files, Id};

use crate::access;
use crate::api::Api;
use crate::control::life::go_on;
use crate::error::ApiError;
use crate::templates::{RESUMES, SECURE, TEMPLATE, User};

/// A sandbox that runs, as the data plane reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// The record.
    pub(crate) files: Files,
    /// The user as whom commands run.
    pub(crate) user: User,
    /// The access token, unless the sandbox needs none.
    pub(crate) token: Option<String>,
    /// Whether the request has the token, or needs none.
    pub(crate) is_admitted: bool,
}

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

/// Finds a sandbox that runs by its whole id; `token` is the access token of the request.
///
/// # Errors
/// When the records or the secret cannot be read.
pub(crate) fn find(api: &Api, id: &str, token: Option<&str>) -> Result<Option<Guest>, ApiError> {
    let Some(files) = record(api, id)? else { return Ok(None) };
    let Ok(intent) = files.intent() else { return Ok(None) };
    // Without a token of its tenant, nothing of it is reached.
    if !api.app.has_tenant(intent.tenant()) {
        return Ok(None);
    }
    if !intent.labels.contains_key(TEMPLATE) || intent.leaf.as_deref().is_some_and(is_frozen) {
        return Ok(None);
    }
    let is_secure = intent.labels.contains_key(SECURE);
    let expected =
        is_secure.then(|| api.secret().map(|secret| access::access_token(&secret, id))).transpose();
    let expected = expected.map_err(|error| ApiError::internal(&error))?;
    let is_admitted = expected
        .as_deref()
        .is_none_or(|expected| token.is_some_and(|token| access::is_same(token, expected)));
    Ok(Some(Guest { files, user: User::of(&intent.labels), token: expected, is_admitted }))
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

/// The name of the Unix user that a request asks for, from `Authorization: Basic`.
///
/// # Errors
/// When it is another one than the sandbox has.
pub(crate) fn check_user(guest: &Guest, headers: &HeaderMap) -> Result<(), String> {
    use base64::Engine as _;
    let Some(given) = headers.get(axum::http::header::AUTHORIZATION) else { return Ok(()) };
    let name = given.to_str().ok().and_then(|text| text.strip_prefix("Basic ")).and_then(|text| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        String::from_utf8(decoded).ok()?.split_once(':').map(|(name, _)| name.to_owned())
    });
    let name = name.ok_or("`Authorization` is not `Basic base64(user:)`")?;
    check_user_name(guest, &name)
}

/// Checks the name of a Unix user. The empty name is the user of the sandbox.
///
/// # Errors
/// When it is another one than the sandbox has.
pub(crate) fn check_user_name(guest: &Guest, name: &str) -> Result<(), String> {
    if name.is_empty() || name == guest.user.name {
        return Ok(());
    }
    let own = &guest.user.name;
    Err(format!(
        "invalid username: '{name}'; everything in this sandbox runs as `{own}`, and there is no other user to become"
    ))
}
