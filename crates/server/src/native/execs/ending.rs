//! The end of an exec: stop, kill, wait. The answer comes after everything was observed gone.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use penfold_control::ClientError;
use penfold_control::execs::{self, ExecEnd, ExecError, ExecStatus, ExecView};
use penfold_state::outcome::ExitStatus;
use penfold_state::{Files, Report};
use penfold_teardown::{Cause, Survivor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files;
use super::problems::{missing, problem, unreadable};
use crate::app::AppState;
use crate::native::ending::WaitQuery;
use crate::native::extract::{OptionalJson, Path, Query};
use crate::native::lease::TimeoutQuery;
use crate::native::log_answer::too_many;
use crate::native::model::EndResult;
use crate::native::problem::Problem;
use crate::native::signal::signal;
use crate::native::valid;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(stop)).routes(routes!(kill)).routes(routes!(wait))
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
    let signal = request.signal.map(|text| signal("signal", &text)).transpose()?;
    let grace = request.grace_ms.map(|ms| valid::time("grace_ms", ms)).transpose()?;
    let patience = request.patience_ms.map(|ms| valid::time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE) + grace.unwrap_or(USUAL_GRACE);
    let signal = signal.map(rustix::process::Signal::as_raw);
    let order = Order {
        begin: move |files: &Files| execs::begin_stop(files, number, signal, grace),
        act: move |files: &Files| execs::stop_exec(files, number, signal, grace, patience),
    };
    end(app, id, number, query.waits()?, order).await
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
    let patience = request.patience_ms.map(|ms| valid::time("patience_ms", ms)).transpose()?;
    let patience = patience.unwrap_or(USUAL_PATIENCE);
    let order = Order {
        begin: move |files: &Files| execs::begin_kill(files, number),
        act: move |files: &Files| execs::kill_exec(files, number, patience),
    };
    end(app, id, number, query.waits()?, order).await
}

/// An end that a client asks for: how it begins, and how it is waited for.
struct Order<B, A> {
    begin: B,
    act: A,
}

async fn end<B, A>(
    app: AppState,
    id: String,
    number: u32,
    waits: bool,
    order: Order<B, A>,
) -> Result<Response, Problem>
where
    B: FnOnce(&Files) -> Result<(), ExecError> + Send + 'static,
    A: FnOnce(&Files) -> Result<ExecEnd, ExecError> + Send + 'static,
{
    let place = app.engine.ender()?;
    let found = app.engine.call(move |root| {
        let files = files(root, &id)?;
        let view = execs::get(&files, number).map_err(|error| unreadable(&error))?;
        let view = view.ok_or_else(|| missing(&files, number))?;
        Ok::<_, Problem>((files, view))
    });
    let (files, view) = found.await??;
    if view.status == ExecStatus::Ended {
        let ExecView { exit, cause, report, .. } = view;
        let ended = ExecEnded { number, result: EndResult::AlreadyGone, exit, cause, report };
        return Ok(axum::Json(ended).into_response());
    }
    if !waits {
        match app.engine.call(move |_| (order.begin)(&files)).await? {
            // A refusal: it ends just now, or has ended with its sandbox.
            Ok(()) | Err(ExecError::Refused(_) | ExecError::Client(ClientError::Ended { .. })) => {}
            Err(error) => return Err(problem(error)),
        }
        let result = EndResult::Accepted;
        let ended = ExecEnded { number, result, exit: None, cause: None, report: None };
        return Ok((StatusCode::ACCEPTED, axum::Json(ended)).into_response());
    }
    let ending = app.engine.wait(place, move |_| {
        penfold_sys::crash_point!("serve-exec-end-wanted");
        let ended = (order.act)(&files);
        penfold_sys::crash_point!("serve-exec-ended");
        ended
    });
    let ExecEnd { exit, cause, report, remaining, .. } = ending.await?.map_err(problem)?;
    if !remaining.is_empty() {
        return Err(Problem::remaining(format!("something of exec {number} is left"), remaining));
    }
    let ended = ExecEnded { number, result: EndResult::Gone, exit, cause, report };
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
    let waiting = app.engine.wait(place, move |root| {
        let files = files(root, &id)?;
        let end = execs::wait_for_exec(&files, number, Instant::now().checked_add(limit)).map_err(problem)?;
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
