//! `/healthz`, `/readyz` and `/metrics`.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use penfold_control::Scope;
use penfold_state::{counters, error_chain};

use crate::app::AppState;

/// The media type of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes for monitors.
pub(crate) fn health_router(app: AppState) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(app)
}

/// Ready once the orphans of the state root were recovered, until the server begins to end.
async fn ready(State(app): State<AppState>) -> (StatusCode, &'static str) {
    if app.drain.has_begun() {
        (StatusCode::SERVICE_UNAVAILABLE, "ending\n")
    } else if app.is_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "recovering orphans\n")
    }
}

async fn metrics(State(app): State<AppState>) -> impl IntoResponse {
    // They count the sandboxes of all.
    let read = |scope: &Scope| scope.has_unowned().then(|| counters::read_counters(scope.root()));
    let of_root = app.engine.call(read).await.ok().flatten().and_then(|counters| {
        counters.inspect_err(|error| tracing::warn!("cannot read the counters: {}", error_chain(error))).ok()
    });
    ([(header::CONTENT_TYPE, OPEN_METRICS)], app.metrics.text(of_root))
}
