//! Ends a session: everything that it ever started is killed at once, and the answer comes when all is gone.

use penfold_control::{EndLimits, EndMethod, ResolveError, Resolver, StopResult, remove_record};
use penfold_state::Intent;

use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::forget::forget_sandbox;
use crate::ids::SessionId;
use penfold_server::survivors;

use super::find;

/// Ends a session and removes its record.
///
/// # Errors
/// When there is no such session, or something of it is left.
pub(crate) async fn delete(api: &ApiState, id: &SessionId) -> Result<(), ApiError> {
    let _lock = api.locks.lock(id.as_str()).await;
    delete_locked(api, id).await
}

/// Ends a session whose lock the caller holds, and removes its record.
///
/// # Errors
/// As [`delete`].
pub(super) async fn delete_locked(api: &ApiState, id: &SessionId) -> Result<(), ApiError> {
    let wanted = id.clone();
    let killed = api.wait(move |api| {
        let scope = api.app.engine.scope();
        let Some(session) = find::find_session(scope, &wanted)? else { return Ok(None) };
        let resolver = Resolver::new(scope.root());
        let known = match resolver.resolve(session.files.name()) {
            Ok(known) => known,
            // Another server has removed the record meanwhile.
            Err(ResolveError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(ApiError::internal(&error)),
        };
        let one = std::slice::from_ref(&known);
        penfold_sys::crash_point!("serve-delete-wanted");
        let results = penfold_control::end_sandboxes(
            &resolver,
            one,
            EndMethod::Kill,
            &EndLimits::default(),
            &mut |_| (),
        );
        penfold_sys::crash_point!("serve-deleted");
        Ok(Some((known, results.into_iter().next())))
    });
    let Some((known, result)) = killed.await? else {
        return finish(api, id).await;
    };
    match result {
        Some(StopResult::Gone) | None => {}
        Some(StopResult::Left(survivors)) => {
            tracing::warn!(session = id.as_str(), left = survivors.len(), "a session is not gone");
            let message = format!(
                "Session '{}' is not gone: {}",
                id.as_str(),
                survivors::survivors_sentence(&survivors)
            );
            let error = ApiError::new(Code::ProcessError, message).with("sessionId", id.as_str());
            return Err(error.with("remaining", survivors::list_survivors(&survivors)));
        }
        Some(StopResult::Failed(error)) => return Err(ApiError::internal(&error)),
    }
    // Their last event needs the record.
    let sandbox = known.id.clone();
    api.followers.finish(|(followed, _)| *followed == sandbox).await;
    let name = id.sandbox_name();
    api.wait(move |api| {
        let resolver = Resolver::new(api.app.engine.scope().root());
        remove_record(&resolver, &known, &EndLimits::default())
            .map_err(|error| ApiError::internal(&error))?;
        forget_sandbox(api, &known.id);
        forget_ended(api, &name);
        Ok(())
    })
    .await
}

/// Finishes the end of a session that does not live: the server that killed it may itself have been killed before it removed
/// the record.
///
/// # Errors
/// When there is no record either.
async fn finish(api: &ApiState, id: &SessionId) -> Result<(), ApiError> {
    let wanted = id.clone();
    let is_removed = api.wait(move |api| {
        let scope = api.app.engine.scope();
        let resolver = Resolver::new(scope.root());
        let ended =
            find::all_records(scope)?.into_iter().filter(|(id, files)| *id == wanted && files.has_ended());
        let mut is_removed = false;
        for (_, files) in ended {
            let Ok(known) = resolver.resolve(files.name()) else { continue };
            remove_record(&resolver, &known, &EndLimits::default())
                .map_err(|error| ApiError::internal(&error))?;
            forget_sandbox(api, &known.id);
            is_removed = true;
        }
        forget_ended(api, &wanted.sandbox_name());
        Ok(is_removed)
    });
    if is_removed.await? {
        return Ok(());
    }
    let message = format!("Session '{}' not found", id.as_str());
    Err(ApiError::new(Code::InternalError, message).with("sessionId", id.as_str()))
}

/// Removes the records of earlier sandboxes of a session, which were ended by others.
fn forget_ended(api: &Api, name: &str) {
    let scope = api.app.engine.scope();
    let resolver = Resolver::new(scope.root());
    let mut ended = Resolver::within(scope).ended_with_name(name).unwrap_or_default();
    ended.retain(|known| scope.is_own(known.intent.as_ref().and_then(Intent::tenant)));
    for earlier in ended {
        let _ = penfold_control::forget_sandbox(&resolver, &earlier, &EndLimits::default());
    }
}
