//! Sends requests to contexts.

use penfold_server::execs::{WriteInputError, write_input};
use serde_json::Value;

use crate::api::Api;

use super::contexts::Context;
use super::frames::request_lines;

/// Sends a request to a context, and waits while its interpreter takes none.
///
/// # Errors
/// When the interpreter has ended, or does not read any more.
pub(super) async fn send_request(
    api: &Api,
    context: &Context,
    token: &str,
    request: &Value,
) -> Result<(), WriteInputError> {
    for line in request_lines(token, request) {
        write_input(&api.app.engine, &context.exec.files, context.number(), line.as_bytes()).await?;
    }
    Ok(())
}
