//! Requests to a running exec: a signal, and the size of the terminal.

use std::path::Path as FsPath;

use axum::extract::State;
use axum::http::StatusCode;
use penfold_control::execs::{self, ExecStatus};
use penfold_state::Files;
use penfold_state::wire::Size;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files;
use super::problems::{missing, problem, unreadable};
use crate::app::AppState;
use crate::native::extract::{Json, Path};
use crate::native::problem::{Kind, Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(signal)).routes(routes!(resize))
}

/// A signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalRequest {
    /// A name such as `HUP`, or a number.
    signal: String,
}

/// Sends a signal to the command of an exec.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/signal", tag = "execs", operation_id = "signalExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    request_body = SignalRequest,
    responses(
        (status = 204, description = "the signal was sent"),
        Problem,
    )
)]
async fn signal(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Json(request): Json<SignalRequest>,
) -> Result<StatusCode, Problem> {
    let signal = crate::native::signal::signal("signal", &request.signal)?.as_raw();
    app.engine
        .call(move |root| {
            let files = running(root, &id, number)?;
            execs::signal(&files, number, signal).map_err(|error| problem(error).beside_end(&files))
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TerminalSize {
    /// Lines.
    #[schema(value_type = u16)]
    pub(super) rows: u16,
    /// Columns.
    #[schema(value_type = u16)]
    pub(super) columns: u16,
}

/// Sets the size of the terminal of an exec.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/resize", tag = "execs", operation_id = "resizeExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    request_body = TerminalSize,
    responses(
        (status = 204, description = "the terminal has its new size"),
        Problem,
    )
)]
async fn resize(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Json(TerminalSize { rows, columns }): Json<TerminalSize>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |root| {
            let files = running(root, &id, number)?;
            execs::resize(&files, number, Size { rows, columns })
                .map_err(|error| problem(error).beside_end(&files))
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Finds the record of a sandbox, if the exec runs.
fn running(root: &FsPath, word: &str, number: u32) -> Result<Files, Problem> {
    let files = files(root, word)?;
    match execs::get(&files, number).map_err(|error| unreadable(&error))? {
        None => Err(missing(&files, number)),
        Some(view) if view.status == ExecStatus::Ended => {
            Err(Problem::new(Kind::HasEnded, format!("exec {number} has ended")))
        }
        Some(_) => Ok(files),
    }
}
