//! `/v1/sandboxes/{id}/logs`.

use std::path::Path as FsPath;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::{Resolver, view};
use penfold_state::log::{From, Reader};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Path, Query};
use super::log_answer::{self, LogEvent, LogQuery, LogRange, LogSource};
use super::problem::{Kind, Problem, ProblemDocument};
use crate::app::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(logs))
}

/// Returns output of a sandbox: a range as JSON, the raw bytes, or a stream of events that goes on until the end. The id
/// of an event is an offset: `Last-Event-ID` resumes the stream without a byte lost or twice.
#[utoipa::path(
    get, path = "/sandboxes/{id}/logs", tag = "logs", operation_id = "getLogs",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), LogQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event that was received"),
    ),
    responses(
        (status = 200, description = "the output", content(
            (LogRange = "application/json"),
            (LogEvent = "text/event-stream", item_schema = LogEvent),
            (Vec<u8> = "application/octet-stream"),
        )),
        (status = "default", description = "a problem", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
async fn logs(
    State(app): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    log_answer::answer(app, query, headers, move |root, from| open(root, &id, from)).await
}

fn open(root: &FsPath, word: &str, from: From) -> Result<LogSource, Problem> {
    let resolver = Resolver::new(root);
    let known = resolver.resolve(word)?;
    let missing = || Problem::new(Kind::NotFound, format!("sandbox {} has no log", known.id));
    let files = known.record.clone().ok_or_else(missing)?;
    let reader = Reader::open(files.dir(), from).map_err(|error| log_answer::unreadable(&error))?;
    let end = move || -> Value {
        let seen = view::view(&resolver.again(), &known);
        let exited = known.record.as_ref().and_then(|files| files.exited().ok().flatten());
        let status = seen.map(|seen| seen.status).or_else(|| exited.map(|exited| exited.status()));
        let (exit, cause) = exited.map_or((None, None), |exited| (exited.exit, Some(exited.cause)));
        json!({ "status": status, "exit": exit, "cause": cause })
    };
    let has_ended = move || files.has_ended() || files.lock().is_free();
    Ok(LogSource { reader, has_ended: Box::new(has_ended), end: Box::new(end) })
}
