//! The output of an exec.

use std::path::Path as FsPath;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::execs::{self, ExecStatus};
use penfold_state::Files;
use penfold_state::log::From as LogFrom;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files;
use super::problems::{missing, unreadable};
use crate::app::AppState;
use crate::native::extract::{Path, Query};
use crate::native::log_answer::{self, LogEnd, LogEvent, LogQuery, LogRange, LogSource};
use crate::native::problem::Problem;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(logs))
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
        (status = 200, description = "the output", content(
            (LogRange = "application/json"),
            ("text/event-stream", item_schema = LogEvent),
            (Vec<u8> = "application/octet-stream"),
        )),
        Problem,
    )
)]
async fn logs(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let open = move |root: &FsPath, from: LogFrom| source(files(root, &id)?, number, from);
    log_answer::answer(app, query, headers, open).await
}

fn source(files: Files, number: u32, from: LogFrom) -> Result<LogSource, Problem> {
    // A client that reads slowly gets the end long after it came.
    let held = execs::hold(&files, number).map_err(|error| unreadable(&error))?;
    let held = held.ok_or_else(|| missing(&files, number))?;
    let reader = execs::log(&files, number, from).map_err(|error| log_answer::unreadable(&error))?;
    let end = move || {
        let _held = &held;
        verified_end(&files, number)
    };
    Ok(LogSource { reader, end: LogEnd::new(end) })
}

/// Returns the end of an exec, if it is verified or its record is gone.
fn verified_end(files: &Files, number: u32) -> Option<Value> {
    let mut seen = execs::get(files, number).ok()?;
    if seen.as_ref().is_some_and(|view| view.status == ExecStatus::Ended && view.report.is_none()) {
        // The record may have been removed during the look. The next look does not take that for an end.
        seen = execs::get(files, number).ok()?;
    }
    let (exit, cause) = match seen {
        Some(view) if view.status == ExecStatus::Running => return None,
        Some(view) => (view.exit, view.cause),
        None => (None, None),
    };
    Some(json!({ "status": "ended", "exit": exit, "cause": cause }))
}
