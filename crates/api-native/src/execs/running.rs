//! Requests to a running exec: a signal, and the size of the terminal.

use axum::extract::State;
use axum::http::StatusCode;
use penfold_control::{Scope, execs};
use penfold_server::AppState;
use penfold_server::execs::find_exec;
use penfold_state::Files;
use penfold_state::wire::Size;
use serde::Deserialize;
use utoipa::ToSchema;

use super::problems::exec_problem;
use crate::extract::{Json, Path};
use crate::model::TerminalSize;
use crate::problem::{Kind, Problem};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(signal)).routes(routes!(resize))
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
    let signal = crate::signal::parse_signal("signal", &request.signal)?.as_raw();
    app.engine
        .call(move |scope| {
            let files = running(scope, &id, number)?;
            execs::signal_exec(&files, number, signal).map_err(|error| exec_problem(error).beside_end(&files))
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
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
        .call(move |scope| {
            let files = running(scope, &id, number)?;
            execs::resize_exec(&files, number, Size { rows, columns })
                .map_err(|error| exec_problem(error).beside_end(&files))
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Finds the record of a sandbox, if the exec runs.
fn running(scope: &Scope, word: &str, number: u32) -> Result<Files, Problem> {
    let exec = find_exec(scope, word, number)?;
    if exec.is_running() {
        return Ok(exec.files);
    }
    Err(Problem::new(Kind::HasEnded, format!("exec {number} has ended")))
}
