//! Ends contexts: TERM to the whole tree, a grace, KILL, and an observed end.

use penfold_control::execs;
use penfold_teardown::Survivor;
use rustix::process::Signal;

use crate::api::{Api, ApiState};
use crate::end_tree::{TreeEnd, end_tree};
use crate::error::{ApiError, Code};
use penfold_server::survivors;

use super::contexts::Context;

/// Ends a context, and removes its record.
///
/// # Errors
/// When something of it is left.
pub(super) async fn end_context(api: &ApiState, context: Context) -> Result<(), ApiError> {
    let ending = context.clone();
    api.wait(move |_| end(&ending)).await?;
    let followed = (context.exec.files.name().to_owned(), context.number());
    // The last event of a stream needs the record.
    api.followers.finish(|other| *other == followed).await;
    api.wait(move |api| {
        remove_record(api, &context);
        Ok(())
    })
    .await
}

fn end(context: &Context) -> Result<(), ApiError> {
    if !context.exec.is_running() {
        return Ok(());
    }
    match end_tree(&context.exec, Signal::TERM.as_raw()) {
        TreeEnd::Gone => Ok(()),
        TreeEnd::Left(survivors) => Err(not_gone(context, &survivors)),
        TreeEnd::Failed(why) => {
            let id = context.id.as_str();
            let message = format!("Failed to delete code context '{id}': {why}");
            Err(ApiError::new(Code::InternalError, message).with("contextId", id))
        }
    }
}

fn not_gone(context: &Context, survivors: &[Survivor]) -> ApiError {
    let id = context.id.as_str();
    let list = survivors::list_survivors(survivors);
    tracing::warn!(context = id, remaining = %list, "a context is not gone");
    let message = format!("Code context '{id}' is not gone: {}", survivors::survivors_sentence(survivors));
    ApiError::new(Code::ProcessError, message).with("contextId", id).with("remaining", list)
}

fn remove_record(api: &Api, context: &Context) {
    // Another server may have removed it.
    let _ = execs::remove_exec_record(&context.exec.files, context.number());
    api.contexts.forget(&context.id, &context.spot());
}
