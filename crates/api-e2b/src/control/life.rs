//! The life of a sandbox: its end, its time limit, pause and resume.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use penfold_control::{
    EndLimits, EndMethod, LeaseError, PauseError, Resolver, SandboxRef, StopResult, extend_lease,
    pause_sandbox, remove_record, unpause_sandbox,
};
use penfold_server::survivors::survivors_sentence;
use penfold_state::error_chain;
use penfold_state::state::Status;
use penfold_state::time::now_ms;
use serde::Deserialize;

use super::model::{Handle, handle_of};
use super::time::{NO_COLD_START, USUAL_TIMEOUT, lease_ms};
use super::{Found, SandboxPath, body_or_default, find};
use crate::api::{Api, ApiState};
use crate::error::ApiError;

/// Ends a sandbox. The answer comes once everything was observed gone.
pub(super) async fn end(State(api): State<ApiState>, Path(id): SandboxPath) -> Result<StatusCode, ApiError> {
    let (known, _) = find(&api, &id).await?;
    end_whole(&api, known).await.map(|()| StatusCode::NO_CONTENT)
}

/// Ends a sandbox and removes its record. Returns once everything was observed gone.
///
/// # Errors
/// When something is left.
pub(super) async fn end_whole(api: &ApiState, known: SandboxRef) -> Result<(), ApiError> {
    let place = api.app.engine.ender()?;
    let ended = api.app.engine.wait(place, move |scope| {
        let resolver = Resolver::new(scope.root());
        let limits = EndLimits::default();
        let one = std::slice::from_ref(&known);
        penfold_sys::crash_point!("serve-end-wanted");
        let results = penfold_control::end_sandboxes(&resolver, one, EndMethod::Kill, &limits, &mut |_| ());
        penfold_sys::crash_point!("serve-ended");
        match results.into_iter().next() {
            Some(StopResult::Gone) | None => {}
            Some(StopResult::Left(survivors)) => {
                let message =
                    format!("sandbox \"{}\" is not gone: {}", known.id, survivors_sentence(&survivors));
                return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
            }
            Some(StopResult::Failed(error)) => return Err(ApiError::internal(&error)),
        }
        // Its supervisor removes it, too.
        remove_record(&resolver, &known, &limits).map_err(|error| ApiError::internal(&error))
    });
    ended.await?
}

/// A time limit, in seconds from now.
#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    timeout: u64,
}

/// Sets the time limit.
pub(super) async fn set_timeout(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    body: Result<Json<Timeout>, JsonRejection>,
) -> Result<StatusCode, ApiError> {
    let Json(Timeout { timeout }) = body.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let (known, seen) = find(&api, &id).await?;
    if seen.status == Status::Paused {
        return Err(ApiError::no_sandbox(&id));
    }
    api.call(move |api| renew(api, &known, lease_ms(timeout))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A longer time limit.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refresh {
    duration: Option<u64>,
}

/// Moves the end to this many seconds from now, unless it is later already.
pub(super) async fn refresh(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let Refresh { duration } = body_or_default(&body)?;
    let found = find(&api, &id).await?;
    api.call(move |api| lengthen(api, &found, duration.unwrap_or(USUAL_TIMEOUT))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is kept by a pause.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Pause {
    memory: Option<bool>,
}

/// Freezes a sandbox with its memory. Its time limit does not pass.
pub(super) async fn pause(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let Pause { memory } = body_or_default(&body)?;
    if memory == Some(false) {
        return Err(ApiError::unsupported(NO_COLD_START));
    }
    let (known, seen) = find(&api, &id).await?;
    if seen.status == Status::Paused {
        return Err(ApiError::new(StatusCode::CONFLICT, format!("sandbox \"{id}\" is paused already")));
    }
    api.call(move |api| {
        let resolver = Resolver::new(api.app.engine.scope().root());
        pause_sandbox(&resolver, &known).map_err(|error| cannot_pause(&known, &error))?;
        penfold_sys::crash_point!("serve-paused");
        // After it: a server that is killed in between leaves a sandbox that ends.
        renew(api, &known, 0)
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a sandbox goes on.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resume {
    timeout: Option<u64>,
    memory: Option<bool>,
}

impl Resume {
    fn check(&self) -> Result<u64, ApiError> {
        if self.memory == Some(false) {
            return Err(ApiError::unsupported(NO_COLD_START));
        }
        Ok(self.timeout.unwrap_or(USUAL_TIMEOUT))
    }
}

/// Lets a paused sandbox go on.
pub(super) async fn resume(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    body: Bytes,
) -> Result<(StatusCode, Json<Handle>), ApiError> {
    let timeout = body_or_default::<Resume>(&body)?.check()?;
    let (known, seen) = find(&api, &id).await?;
    if seen.status != Status::Paused {
        return Err(ApiError::new(StatusCode::CONFLICT, format!("sandbox \"{id}\" is not paused")));
    }
    let handle = api.call(move |api| {
        go_on(api, &known, timeout)?;
        handle_of(api, &seen)
    });
    Ok((StatusCode::CREATED, Json(handle.await?)))
}

/// Returns how to reach a sandbox: lets one that is paused go on, and never shortens the time of one that runs.
pub(super) async fn connect(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    body: Bytes,
) -> Result<(StatusCode, Json<Handle>), ApiError> {
    let timeout = body_or_default::<Resume>(&body)?.check()?;
    let found = find(&api, &id).await?;
    let is_paused = found.1.status == Status::Paused;
    let handle = api.call(move |api| {
        if is_paused {
            go_on(api, &found.0, timeout)?;
        } else {
            lengthen(api, &found, timeout)?;
        }
        handle_of(api, &found.1)
    });
    Ok((if is_paused { StatusCode::CREATED } else { StatusCode::OK }, Json(handle.await?)))
}

/// Lets a paused sandbox go on, with a time limit in seconds.
///
/// # Errors
/// When it has ended, or cannot go on.
pub(crate) fn go_on(api: &Api, known: &SandboxRef, timeout: u64) -> Result<(), ApiError> {
    // First: a server that is killed in between leaves a sandbox that ends.
    renew(api, known, lease_ms(timeout))?;
    penfold_sys::crash_point!("serve-resuming");
    let resolver = Resolver::new(api.app.engine.scope().root());
    unpause_sandbox(&resolver, known).map_err(|error| cannot_pause(known, &error))
}

/// Moves the end of a sandbox to this many seconds from now, unless it is later already.
fn lengthen(api: &Api, (known, seen): &Found, timeout: u64) -> Result<(), ApiError> {
    let wanted = lease_ms(timeout);
    let is_later = seen.expires_at_ms.is_none_or(|end| end >= now_ms().saturating_add(wanted));
    if is_later { Ok(()) } else { renew(api, known, wanted) }
}

fn renew(api: &Api, known: &SandboxRef, ms: u64) -> Result<(), ApiError> {
    let resolver = Resolver::new(api.app.engine.scope().root());
    extend_lease(&resolver, known, ms).map_err(|error| match error {
        LeaseError::Gone | LeaseError::NotLiving(_) | LeaseError::Ended => ApiError::no_sandbox(&known.id),
        error => ApiError::internal(&error),
    })
}

fn cannot_pause(known: &SandboxRef, error: &PauseError) -> ApiError {
    match error {
        PauseError::Gone => ApiError::no_sandbox(&known.id),
        PauseError::Status(status) if !status.is_living() => ApiError::no_sandbox(&known.id),
        PauseError::NoLeaf => {
            ApiError::unsupported(format!("sandbox \"{}\" cannot be paused: {error}", known.id))
        }
        error => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("sandbox \"{}\" cannot be paused or go on: {}", known.id, error_chain(error)),
        ),
    }
}
