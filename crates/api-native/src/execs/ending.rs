//! The end of an exec: stop, kill, wait. The answer comes after everything was observed gone.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use penfold_control::execs::{self, ExecEnd, ExecView};
use penfold_server::AppState;
use penfold_server::execs::{ExecEndOrder, ExecEnding, end_exec, find_exec};
use penfold_server::records::find_record;
use penfold_state::Report;
use penfold_state::outcome::ExitStatus;
use penfold_teardown::{Cause, Survivor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problems::exec_problem;
use crate::ending::WaitQuery;
use crate::extract::{OptionalJson, Path, Query};
use crate::lease::TimeoutQuery;
use crate::log_answer::too_many;
use crate::model::EndResult;
use crate::problem::Problem;
use crate::routes::{Routes, routes};
use crate::signal::parse_signal;
use crate::valid;

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(stop)).routes(routes!(kill)).routes(routes!(wait))
}

/// The end of an exec.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecEnded {
    /// The number of the exec.
    number: u32,
    /// The result.
    result: EndResult,
    /// How the command ended; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The report of the end.
    #[schema(value_type = Option<Object>)]
    report: Option<Report>,
}

/// The end of an exec, as far as it is known.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExecWaited {
    /// Whether everything that the exec started was observed gone.
    ended: bool,
    /// How the command ended; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the exec ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// The processes and resources that still exist after the patience.
    #[schema(value_type = Vec<Object>)]
    remaining: Vec<Survivor>,
}

/// How to stop an exec.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopExec {
    /// The polite signal; default: the exec's own.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL; default: the exec's own.
    grace_ms: Option<u64>,
    /// The time in milliseconds after which survivors are reported; default 10000 and the grace.
    patience_ms: Option<u64>,
}

/// How to kill an exec.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillExec {
    /// The time in milliseconds after which survivors are reported; default 10000.
    patience_ms: Option<u64>,
}

const USUAL_PATIENCE: Duration = Duration::from_secs(10);
/// The longest grace that is waited for by default.
const USUAL_GRACE: Duration = Duration::from_mins(1);

/// Stops an exec: the polite signal, SIGKILL after the grace, and a look that nothing of it is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/stop", tag = "execs", operation_id = "stopExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), WaitQuery,
    ),
    request_body(content = Option<StopExec>),
    responses(
        (status = 200, description = "everything was observed gone", body = ExecEnded),
        (status = 202, description = "the end has begun", body = ExecEnded),
        Problem,
    )
)]
async fn stop(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<StopExec>,
) -> Result<Response, Problem> {
    let signal = request.signal.map(|text| parse_signal("signal", &text)).transpose()?;
    let grace = request.grace_ms.map(|ms| valid::valid_time("grace_ms", ms)).transpose()?;
    let patience = request.patience_ms.map(|ms| valid::valid_time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE) + grace.unwrap_or(USUAL_GRACE);
    let signal = signal.map(rustix::process::Signal::as_raw);
    end(app, id, number, query.waits()?, ExecEndOrder::Stop { signal, grace, patience }).await
}

/// Kills an exec: SIGKILL to everything that it started, and a look that nothing of it is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/execs/{number}/kill", tag = "execs", operation_id = "killExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), WaitQuery,
    ),
    request_body(content = Option<KillExec>),
    responses(
        (status = 200, description = "everything was observed gone", body = ExecEnded),
        (status = 202, description = "the end has begun", body = ExecEnded),
        Problem,
    )
)]
async fn kill(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<KillExec>,
) -> Result<Response, Problem> {
    let patience = request.patience_ms.map(|ms| valid::valid_time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE);
    end(app, id, number, query.waits()?, ExecEndOrder::Kill { patience }).await
}

async fn end(
    app: AppState,
    id: String,
    number: u32,
    waits: bool,
    order: ExecEndOrder,
) -> Result<Response, Problem> {
    let place = app.engine.ender()?;
    let exec = app.engine.call(move |scope| find_exec(scope, &id, number)).await??;
    let ended = match end_exec(&app.engine, place, exec, order, waits).await? {
        ExecEnding::AlreadyGone(view) => {
            let ExecView { exit, cause, report, .. } = *view;
            ExecEnded { number, result: EndResult::AlreadyGone, exit, cause, report }
        }
        ExecEnding::Begun => {
            let result = EndResult::Accepted;
            let ended = ExecEnded { number, result, exit: None, cause: None, report: None };
            return Ok((StatusCode::ACCEPTED, axum::Json(ended)).into_response());
        }
        ExecEnding::Gone(end) => {
            let ExecEnd { exit, cause, report, .. } = *end;
            ExecEnded { number, result: EndResult::Gone, exit, cause, report }
        }
    };
    Ok(axum::Json(ended).into_response())
}

/// Waits until everything that an exec started is gone. If the time is over before, `ended` is false.
#[utoipa::path(
    get, path = "/sandboxes/{id}/execs/{number}/wait", tag = "execs", operation_id = "waitForExec",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"),
        ("number" = u32, Path, description = "the number of the exec"), TimeoutQuery,
    ),
    responses(
        (status = 200, description = "the end, or that it has not come", body = ExecWaited),
        Problem,
    )
)]
async fn wait(
    State(app): State<AppState>,
    Path((id, number)): Path<(String, u32)>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<ExecWaited>, Problem> {
    let limit = query.time()?;
    let place = app.engine.follower().ok_or_else(too_many)?;
    let waiting = app.engine.wait(place, move |scope| {
        let files = find_record(scope, &id)?;
        let end =
            execs::wait_for_exec(&files, number, Instant::now().checked_add(limit)).map_err(exec_problem)?;
        Ok::<_, Problem>(end.map_or(
            ExecWaited { ended: false, exit: None, cause: None, remaining: Vec::new() },
            |end| ExecWaited {
                ended: end.remaining.is_empty(),
                exit: end.exit,
                cause: end.cause,
                remaining: end.remaining,
            },
        ))
    });
    tokio::select! {
        waited = waiting => Ok(axum::Json(waited??)),
        () = app.drain.begun() => Err(Problem::draining()),
    }
}
