//! The output of an exec.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::{Scope, execs};
use penfold_server::AppState;
use penfold_server::execs::{FindExecError, ObservedEnd};
use penfold_server::records::find_record;
use penfold_state::Files;
use penfold_state::log::LogPosition as LogFrom;
use serde_json::json;

use crate::extract::{Path, Query};
use crate::log_answer::{self, LogEnd, LogEvent, LogFeeds, LogQuery, LogRange, LogSource};
use crate::problem::Problem;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(logs))
}

/// Returns output of an exec, as the logs of a sandbox do.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}/logs", tag = "execs", operation_id = "getExecLogs",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), LogQuery,
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
    Path((id, number)): Path<(String, u32)>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let open = move |scope: &Scope, from: LogFrom| source(find_record(scope, &id)?, number, from);
    log_answer::answer((app, feeds), query, headers, open).await
}

pub(super) fn source(files: Files, number: u32, from: LogFrom) -> Result<LogSource, Problem> {
    // A client that reads slowly gets the end long after it came.
    let held = execs::hold_exec_record(&files, number).map_err(FindExecError::Unreadable)?;
    let held = held.ok_or_else(|| FindExecError::Missing { number, id: files.name().to_owned() })?;
    let reader =
        execs::open_exec_log(&files, number, from).map_err(|error| log_answer::unreadable_log(&error))?;
    let end = move || {
        let _held = &held;
        let ObservedEnd { exit, cause } = ObservedEnd::of(&files, number)?;
        Some(json!({ "status": "ended", "exit": exit, "cause": cause }))
    };
    Ok(LogSource { reader, end: LogEnd::new(end) })
}
