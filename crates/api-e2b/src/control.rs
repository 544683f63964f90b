//! The control plane.

use axum::Router;

use crate::api::ApiState;

/// Tells whether a path is one of the control plane.
pub(crate) fn owns(path: &str) -> bool {
    ["/sandboxes", "/v2/sandboxes", "/v3/sandboxes", "/templates", "/v2/templates", "/v3/templates", "/volumes", "/secrets", "/snapshots", "/teams", "/nodes"]
        .iter()
        .any(|of| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The routes.
pub(crate) fn routes(api: ApiState) -> Router {
    Router::new().with_state(api)
}
