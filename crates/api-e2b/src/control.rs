//! The control plane: sandboxes as a whole.
//!
//! - `create` — new ones; `list` — pages of them; `look` — one of them, its usage and its log.
//! - `life` — the end, the time limit, pause and resume.
//! - `model` — how a sandbox is described. `time` — time limits.

mod create;
pub(crate) mod life;
mod list;
mod look;
mod model;
mod time;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{any, delete, get, post};
use penfold_control::{ResolveError, SandboxRef, SandboxView};
use penfold_server::EngineError;
use penfold_state::Id;
use serde::de::DeserializeOwned;

use crate::api::{Api, ApiState};
use crate::error::ApiError;
use crate::templates::TEMPLATE;

/// The first parts of the paths.
const OWN: [&str; 9] = [
    "sandboxes",
    "templates",
    "default-templates",
    "volumes",
    "secrets",
    "snapshots",
    "teams",
    "nodes",
    "api-keys",
];

/// Tells whether a path is one of the control plane.
pub(crate) fn owns(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let first = parts.next().unwrap_or_default();
    let of_version = matches!(first, "v2" | "v3").then(|| parts.next()).flatten();
    OWN.contains(&of_version.unwrap_or(first))
}

/// The routes.
pub(crate) fn routes(api: ApiState) -> Router {
    let of_sandbox = |what: &'static str| {
        any(async move |State(api): State<ApiState>, Path(id): SandboxPath| {
            find(&api, &id).await.err().unwrap_or_else(|| ApiError::unsupported(what))
        })
    };
    let unsupported = |what: &'static str| any(async move || ApiError::unsupported(what));
    let templates =
        "templates are files of the server (`penfold serve --templates DIR`), and are not built over the API";
    let mut routes = Router::new()
        .route("/sandboxes", get(list::running).post(create::create_first))
        .route("/v2/sandboxes", get(list::page).post(create::create_second))
        .route("/sandboxes/metrics", get(look::metrics_of_all))
        .route("/sandboxes/{id}", delete(life::end).get(look::get))
        .route("/sandboxes/{id}/timeout", post(life::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refresh))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/resume", post(life::resume))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/metrics", get(look::metrics))
        .route("/sandboxes/{id}/logs", get(look::logs))
        .route("/v2/sandboxes/{id}/logs", get(look::log_entries))
        .route("/sandboxes/{id}/fork", of_sandbox("a sandbox cannot be copied"))
        .route(
            "/sandboxes/{id}/snapshots",
            of_sandbox("the memory of a sandbox cannot be saved; `pause` keeps it"),
        )
        .route(
            "/sandboxes/{id}/network",
            of_sandbox("the network of a sandbox is that of its template, and stays as it is"),
        )
        .route("/templates/aliases/{name}", get(list::template));
    for (first, why) in [
        ("templates", templates),
        ("v2/templates", templates),
        ("v3/templates", templates),
        ("default-templates", templates),
        ("snapshots", "there are no snapshots"),
        ("volumes", "there are no volumes; a template can have a directory as `rootfs`"),
        ("secrets", "there are no secrets; `envs` are given with a sandbox or a command"),
        ("teams", "there are no teams; each token of the server is a tenant"),
        ("nodes", "there are no nodes; `penfold doctor` looks at this host"),
        ("api-keys", "keys are lines of the server's token file"),
    ] {
        routes = routes
            .route(&format!("/{first}"), unsupported(why))
            .route(&format!("/{first}/{{*rest}}"), unsupported(why));
    }
    // Not as a fallback, of which all dialects have one at most.
    let unmatched = any(async || ApiError::new(StatusCode::NOT_FOUND, "there is no such path"));
    for path in ["/sandboxes/{id}/{*rest}", "/v2/sandboxes/{id}", "/v2/sandboxes/{id}/{*rest}"] {
        routes = routes.route(path, unmatched.clone());
    }
    routes
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "the path has no such method")
        })
        .with_state(api)
}

/// A sandbox of this API, as it was observed.
type Found = (SandboxRef, SandboxView);

/// Finds a living sandbox of the caller by its whole id.
///
/// # Errors
/// 404 when there is none.
async fn find(api: &Api, id: &str) -> Result<Found, ApiError> {
    let missing = || ApiError::no_sandbox(id);
    if !Id::is_short(id) {
        return Err(missing());
    }
    let (known, seen) = match api.app.engine.find(id.to_owned()).await {
        Err(EngineError::Resolve(ResolveError::NotFound { .. })) => return Err(missing()),
        found => found?,
    };
    let seen = seen.filter(|seen| seen.status.is_living() && seen.labels.contains_key(TEMPLATE));
    seen.filter(|seen| seen.id == id).map(|seen| (known, seen)).ok_or_else(missing)
}

/// The id in a path.
type SandboxPath = Path<String>;

/// A body that may be missing: then it is as if each field were missing.
///
/// # Errors
/// 400 when it is not as expected.
fn body_or_default<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad(format!("the body is not as expected: {error}")))
}

#[cfg(test)]
mod tests {
    use super::owns;

    #[test]
    fn paths_of_the_control_plane_are_told_from_others() {
        for own in ["/sandboxes", "/sandboxes/x/timeout", "/v2/sandboxes", "/v3/templates", "/volumes/x"] {
            assert!(owns(own), "{own}");
        }
        for other in ["/", "/v1/sandboxes", "/v2", "/v2/x", "/sandboxesx", "/api/sandboxes", "/healthz"] {
            assert!(!owns(other), "{other}");
        }
    }
}
