//! Routes that need no session: `/`, ping, version.

use axum::Router;
use axum::routing::get;
use serde_json::json;

use super::answer::{RouteResult, success_answer};
use super::api::ApiState;
use super::error::{ApiError, Code};

/// The routes that need no session.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/", get(async || "penfold serves sandboxes here\n"))
        .route("/api/ping", get(async || success_answer(json!({ "status": "healthy" }))))
        .route("/api/version", get(async || success_answer(json!({ "version": env!("CARGO_PKG_VERSION") }))))
        .route("/api/commands", get(commands))
}

/// The reference has this route, and always answers so.
async fn commands() -> RouteResult {
    Err(ApiError::new(Code::UnknownError, "Invalid endpoint"))
}
