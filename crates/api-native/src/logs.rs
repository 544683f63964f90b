//! `/v1/sandboxes/{id}/logs`.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::{Resolver, SandboxRef, Scope, view};
use penfold_server::AppState;
use penfold_server::records::find_sandbox;
use penfold_state::Files;
use penfold_state::log::{LogPosition, LogReader};
use serde_json::{Value, json};

use super::extract::{Path, Query};
use super::log_answer::{self, LogEnd, LogEvent, LogFeeds, LogQuery, LogRange, LogSource};
use super::problem::{Kind, Problem};

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(logs))
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
        (status = 200, description = "the output; the schema of a stream is that of each event", content(
            (LogRange = "application/json"),
            (LogEvent = "text/event-stream"),
            (Vec<u8> = "application/octet-stream"),
        )),
        Problem,
    )
)]
async fn logs(
    State(app): State<AppState>,
    Extension(feeds): Extension<LogFeeds>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    log_answer::answer((app, feeds), query, headers, move |scope, from| open(scope, &id, from)).await
}

pub(super) fn open(scope: &Scope, word: &str, from: LogPosition) -> Result<LogSource, Problem> {
    let resolver = Resolver::new(scope.root());
    let known = find_sandbox(scope, word)?;
    let missing = || Problem::new(Kind::NotFound, format!("sandbox {} has no log", known.id));
    let files = known.record.clone().ok_or_else(missing)?;
    let reader = LogReader::open(files.dir(), from).map_err(|error| log_answer::unreadable_log(&error))?;
    let end = LogEnd::new(move || end(&resolver, &known, &files));
    Ok(LogSource { reader, end })
}

/// Returns the end of a sandbox, once no process will write to its log.
fn end(resolver: &Resolver, known: &SandboxRef, files: &Files) -> Option<Value> {
    if !files.is_silent() {
        return None;
    }
    let is_verified = files.has_ended();
    let exited = files.exited().ok().flatten();
    let seen = view::observe_sandbox(&resolver.again(), known).map(|seen| seen.status);
    // The holder of the lock of an ended sandbox removes the record: the sandbox may seem to live.
    let seen = seen.filter(|status| !(is_verified && files.lock().may_be_held() && status.is_living()));
    let status = seen.or_else(|| exited.map(|exited| exited.status()));
    let (exit, cause) = exited.map_or((None, None), |exited| (exited.exit, Some(exited.cause)));
    Some(json!({ "status": status, "exit": exit, "cause": cause }))
}
