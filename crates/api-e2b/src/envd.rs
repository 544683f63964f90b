//! The data plane of this machine, in place of the guest agent of the reference.
//!
//! - `admission` — who may do what. `init` — what `POST /init` sets, and `GET /envs`. `metrics` — what the machine uses.

mod admission;
mod init;
mod metrics;

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware;
use axum::routing::{get, post};

use crate::api::ApiState;
use crate::error::ApiError;

/// The paths that need no access token: one says nothing, the others decide themselves.
const HEALTH: &str = "/health";
const INIT: &str = "/init";

/// Tells whether a request has a path of the data plane.
pub(crate) fn is_own(parts: &Parts) -> bool {
    let path = parts.uri.path();
    matches!(path, HEALTH | INIT | "/envs" | "/metrics" | crate::signed::FILES | "/files/compose")
        || path.starts_with("/process.Process/")
        || path.starts_with("/filesystem.Filesystem/")
}

/// The routes of the data plane: these ones, and those of commands and files.
pub(crate) fn routes(api: ApiState, others: Router<ApiState>) -> Router {
    Router::new()
        .route(HEALTH, get(async || StatusCode::NO_CONTENT))
        .route(INIT, post(init::init))
        .route("/envs", get(init::variables))
        .route("/metrics", get(metrics::metrics))
        .merge(others)
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"))
        .layer(middleware::from_fn_with_state(ApiState::clone(&api), admission::admit))
        .with_state(api)
}
