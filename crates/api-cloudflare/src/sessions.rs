//! Sessions: one sandbox each, with a persistent shell.

mod create;
mod delete;
pub(crate) mod find;
mod routes;

use std::path::PathBuf;
use std::sync::Arc;

use super::api::{Api, ApiState};
use super::error::ApiError;
use super::ids::SessionId;
use super::leases::InUse;

pub(crate) use create::{obtain, usual_directory};
pub(crate) use find::Session;
pub(crate) use routes::routes;

/// Returns the directory of the session's shell, without making a session.
///
/// # Errors
/// When the session does not answer.
pub(crate) async fn directory(api: &ApiState, session: &SessionId) -> Result<PathBuf, ApiError> {
    let id = session.clone();
    let found = api.wait(move |api| {
        let Some(session) = find::find_session(api.app.engine.scope(), &id)? else { return Ok(None) };
        let _in_use = api.leases.begin_use(&session.files);
        let snapshot = session.connect()?.snapshot().map_err(|error| ApiError::internal(&error))?;
        Ok(Some(snapshot.cwd))
    });
    let found = if session.is_none() { None } else { found.await? };
    Ok(found.unwrap_or_else(|| create::usual_directory(api)))
}

/// Notes that a client uses a session, if there is one with this id.
pub(crate) fn begin_use(api: &Api, session: Option<&str>) -> Option<Arc<InUse>> {
    let id = SessionId::new(session).ok()?;
    let session = find::find_session(api.app.engine.scope(), &id).ok()??;
    api.leases.begin_use(&session.files)
}
