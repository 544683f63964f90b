//! Ends contexts: TERM to the whole tree, a grace, KILL, and an observed end.

use std::time::Duration;

use penfold_control::execs::{self, ExecError};
use penfold_server::execs::ExecEndOrder;
use penfold_state::error_chain;
use penfold_teardown::Survivor;
use rustix::process::Signal;

use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::processes::GRACE;
use crate::remaining;

use super::contexts::Context;

/// The time for a verified end: the grace, the patience of the sandbox, and a moment for the answer.
const PATIENCE: Duration = Duration::from_millis(5000 + 5000 + 1500);

/// Ends a context, and removes its record.
///
/// # Errors
/// When something of it is left.
pub(super) async fn end_context(api: &ApiState, context: Context) -> Result<(), ApiError> {
    let ending = context.clone();
    api.wait(move |_| end_tree(&ending)).await?;
    let followed = (context.exec.files.name().to_owned(), context.number());
    // The last event of a stream needs the record.
    api.followers.finish(|other| *other == followed).await;
    api.wait(move |api| {
        remove_record(api, &context);
        Ok(())
    })
    .await
}

fn end_tree(context: &Context) -> Result<(), ApiError> {
    if !context.exec.is_running() {
        return Ok(());
    }
    let signal = Some(Signal::TERM.as_raw());
    let order = ExecEndOrder::Stop { signal, grace: Some(GRACE), patience: PATIENCE };
    match order.carry_out(&context.exec) {
        Ok(end) if end.remaining.is_empty() => Ok(()),
        Ok(end) => Err(not_gone(context, &end.remaining)),
        // Its session was deleted meanwhile, and that verified its end.
        Err(ExecError::NotFound { .. }) => Ok(()),
        Err(_) if execs::has_ended(&context.exec.files, context.number()) => Ok(()),
        Err(ExecError::Unverified { .. }) => Err(not_gone(context, &[])),
        Err(error) => {
            let (id, why) = (&context.id, error_chain(&error));
            let message = format!("Failed to delete code context '{id}': {why}");
            Err(ApiError::new(Code::InternalError, message).with("contextId", id.as_str()))
        }
    }
}

fn not_gone(context: &Context, survivors: &[Survivor]) -> ApiError {
    let id = context.id.as_str();
    let list = remaining::list_survivors(survivors);
    tracing::warn!(context = id, remaining = %list, "a context is not gone");
    let message = format!("Code context '{id}' is not gone: {}", remaining::survivors_sentence(survivors));
    ApiError::new(Code::ProcessError, message).with("contextId", id).with("remaining", list)
}

fn remove_record(api: &Api, context: &Context) {
    // Another server may have removed it.
    let _ = execs::remove_exec_record(&context.exec.files, context.number());
    api.contexts.forget(&context.id, &context.spot());
}
