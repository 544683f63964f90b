//! The native API, below `/v1`: one file for each resource.
//!
//! - Errors are problem documents; their `type` never changes ([`problem`]).
//! - The description in `OpenAPI` is generated from the code, and committed as `docs/openapi.json`.

mod documents;
mod ending;
mod events;
mod execs;
mod extract;
mod files;
mod host;
mod idempotency;
mod lease;
mod log_answer;
mod logs;
mod model;
mod pause;
pub mod problem;
mod sandboxes;
mod sessions;
mod signal;
mod valid;

use axum::Router;
use utoipa::OpenApi;
use utoipa::openapi::OpenApiVersion;
use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;
use events::EventMessage;
use log_answer::LogEvent;
use problem::{Kind, Problem, ProblemDocument};

/// The head of the description.
#[derive(OpenApi)]
#[openapi(
    components(schemas(ProblemDocument, EventMessage, LogEvent)),
    info(
        title = "penfold",
        description = "Runs commands as sandboxes. When a sandbox ends, nothing of it is left, and that was verified.",
        license(name = "MIT OR Apache-2.0")
    )
)]
struct Description;

/// The routes of the native API.
pub fn router(app: AppState) -> Router {
    let (routes, _) = described().split_for_parts();
    let routes = routes
        .fallback(async || Problem::new(Kind::NoRoute, "`/v1/openapi.json` lists the routes"))
        .method_not_allowed_fallback(async || {
            Problem::new(Kind::MethodNotAllowed, "the header `Allow` lists the methods")
        });
    Router::new().nest("/v1", routes).merge(documents::routes()).with_state(app)
}

/// The description of the native API in `OpenAPI`, as JSON.
pub fn openapi() -> String {
    let (_, mut description) =
        OpenApiRouter::with_openapi(Description::openapi()).nest("/v1", described()).split_for_parts();
    // The first version with a schema for the items of a stream.
    description.openapi = OpenApiVersion::Version32;
    description.to_pretty_json().unwrap_or_default()
}

fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(sandboxes::routes())
        .merge(ending::routes())
        .merge(lease::routes())
        .merge(pause::routes())
        .merge(logs::routes())
        .merge(files::routes())
        .merge(events::routes())
        .merge(host::routes())
        .merge(execs::routes())
        .merge(sessions::routes())
}
