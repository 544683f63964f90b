//! `/v1/sandboxes/{id}/execs`: recorded commands in a running sandbox. Each keeps its output and its end, and may be
//! ended with all that it started.

mod attach;
mod ending;
mod logs;
mod problems;
mod running;
mod start;

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use penfold_control::execs::{self, ExecError, ExecStatus, ExecView};
use penfold_server::AppState;
use penfold_server::execs::{FindExecError, find_exec};
use penfold_server::records::find_record;
use penfold_state::Report;
use penfold_state::outcome::ExitStatus;
use penfold_teardown::{Cause, Survivor};
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Path;
use super::output::Output;
use super::problem::{Kind, Problem};

use crate::routes::{Routes, routes};

pub(super) use problems::exec_problem;

pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list))
        .routes(routes!(get, forget))
        .merge(start::routes())
        .merge(running::routes())
        .merge(attach::routes())
        .merge(ending::routes())
        .merge(logs::routes())
}

/// An exec, as observed at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Exec {
    /// The number of the exec in its sandbox.
    number: u32,
    /// The command, shortened.
    command: Vec<String>,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// `running` until everything that the exec started was observed gone, then `ended`.
    status: &'static str,
    /// How the command ended: `{"code": N}` or `{"signal": N}`; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The pid of the command.
    pid: Option<i32>,
    /// The start, in milliseconds since 1970.
    started_at_ms: u64,
    /// The end of the command, in milliseconds since 1970.
    ended_at_ms: Option<u64>,
    /// Whether the command has a terminal.
    terminal: bool,
    /// The processes and resources that still exist after the patience.
    #[schema(value_type = Vec<Object>)]
    remaining: Vec<Survivor>,
    /// The report of the verified end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    report: Option<Report>,
    /// Standard output, up to 1 MiB, in the answer to a request that has waited for the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<Output>,
    /// Standard error, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<Output>,
}

impl From<ExecView> for Exec {
    fn from(view: ExecView) -> Exec {
        Exec {
            number: view.number,
            command: view.command,
            labels: view.labels,
            status: match view.status {
                ExecStatus::Running => "running",
                ExecStatus::Ended => "ended",
            },
            exit: view.exit,
            cause: view.cause,
            pid: view.leader_pid,
            started_at_ms: view.started_at_ms,
            ended_at_ms: view.ended_at_ms,
            terminal: view.terminal,
            remaining: view.remaining,
            report: view.report,
            stdout: None,
            stderr: None,
        }
    }
}

/// The execs of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecList {
    /// The execs, by number.
    execs: Vec<Exec>,
}

/// Lists the execs of a sandbox, ended ones too.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs", tag = "execs", operation_id = "listExecs",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    responses(
        (status = 200, description = "the execs", body = ExecList),
        Problem,
    )
)]
async fn list(State(app): State<AppState>, Path(id): Path<String>) -> Result<axum::Json<ExecList>, Problem> {
    let listed = app.engine.call(move |scope| {
        let views = execs::list_execs(&find_record(scope, &id)?).map_err(FindExecError::Unreadable)?;
        Ok::<_, Problem>(ExecList { execs: views.into_iter().map(Exec::from).collect() })
    });
    Ok(axum::Json(listed.await??))
}

/// Describes one exec.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}", tag = "execs", operation_id = "getExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    responses(
        (status = 200, description = "the exec", body = Exec),
        Problem,
    )
)]
async fn get(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
) -> Result<axum::Json<Exec>, Problem> {
    let exec = app.engine.call(move |scope| find_exec(scope, &id, number)).await??;
    Ok(axum::Json(exec.view.into()))
}

/// Removes the record of an exec that has ended, with its output.
#[utoipa::path(
    delete, path = "/sandboxes/{id}/execs/{number}", tag = "execs", operation_id = "deleteExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"),
    ),
    responses(
        (status = 204, description = "the record is gone"),
        Problem,
    )
)]
async fn forget(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |scope| {
            let files = find_record(scope, &id)?;
            match execs::remove_exec_record(&files, number) {
                Ok(()) => Ok(()),
                Err(ExecError::Refused(reason)) => Err(Problem::new(Kind::NotEnded, reason)),
                Err(error) => Err(exec_problem(error)),
            }
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}
