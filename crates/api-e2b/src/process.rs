//! `process.Process`: commands.

use axum::Router;

use crate::api::ApiState;

/// The path of the call that sends a signal.
pub(crate) const SEND_SIGNAL: &str = "/process.Process/SendSignal";

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
}
