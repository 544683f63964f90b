//! `/v1/sandboxes/{id}`: extend the lease, wait for the end, read the report.

use std::time::Duration;

use axum::extract::State;
use penfold_control::{LeaseError, Resolver, SandboxEnd, Scope, SupervisorClientError};
use penfold_server::AppState;
use penfold_server::records::find_sandbox;
use penfold_state::Report;
use penfold_state::error_chain;
use penfold_state::outcome::{ExitStatus, StartFailure};
use penfold_state::time::whole_millis;
use penfold_teardown::Cause;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Json, Path, Query};
use super::log_answer::too_many;
use super::model::Sandbox;
use super::problem::{Kind, Problem};
use super::{sandboxes, valid};

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(extend)).routes(routes!(wait)).routes(routes!(report))
}

/// A new lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendRequest {
    /// The lease in milliseconds from now; 0 removes the lease.
    lease_ms: u64,
}

/// Sets the lease of a sandbox: it is stopped after this time from now.
#[utoipa::path(
    post, path = "/sandboxes/{id}/extend", tag = "sandboxes", operation_id = "extendSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    request_body = ExtendRequest,
    responses(
        (status = 200, description = "the sandbox with its new lease", body = Sandbox),
        Problem,
    )
)]
async fn extend(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Json(request): Json<ExtendRequest>,
) -> Result<axum::Json<Sandbox>, Problem> {
    let lease = whole_millis(valid::valid_time("lease_ms", request.lease_ms)?);
    let known = app.engine.call(move |scope| extend_now(scope, &id, lease)).await??;
    let seen = sandboxes::find(&app, &known).await.map_err(|problem| problem.or_ended(&known))?;
    Ok(axum::Json(seen.1))
}

fn extend_now(scope: &Scope, word: &str, lease: u64) -> Result<String, Problem> {
    let known = find_sandbox(scope, word)?;
    match penfold_control::extend_lease(&Resolver::new(scope.root()), &known, lease) {
        Ok(()) => Ok(known.id),
        Err(LeaseError::Gone | LeaseError::NotLiving(_) | LeaseError::Ended) => {
            Err(Problem::ended(&known.id))
        }
        Err(LeaseError::Client(error)) => Err(unanswered_problem(&error)),
        Err(error @ (LeaseError::NoRecord | LeaseError::Orphaned | LeaseError::Refused(_))) => {
            Err(Problem::new(Kind::Refused, error.to_string()))
        }
        Err(error @ LeaseError::Unexpected) => Err(Problem::new(Kind::Unanswered, error.to_string())),
    }
}

/// A supervisor could not be asked.
pub(super) fn unanswered_problem(error: &SupervisorClientError) -> Problem {
    let kind = match error {
        SupervisorClientError::Ended { .. } => Kind::HasEnded,
        // Its supervisor has exited, or never listened: no failure of the server.
        SupervisorClientError::Foreground { .. }
        | SupervisorClientError::NoSocket { .. }
        | SupervisorClientError::Deserted { .. }
        | SupervisorClientError::Gone { .. }
        | SupervisorClientError::Waiting { .. } => Kind::Refused,
        SupervisorClientError::Untrusted { .. } => Kind::NotPermitted,
        SupervisorClientError::Silent { .. } => Kind::Unanswered,
        SupervisorClientError::Io { .. } => Kind::Internal,
    };
    Problem::new(kind, error_chain(error))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TimeoutQuery {
    /// The most milliseconds to wait, up to 60000; default 30000. To wait for longer, repeat the request.
    #[param(maximum = 60000)]
    timeout_ms: Option<u64>,
}

const USUAL_WAIT: u64 = 30_000;
const LONGEST_WAIT: u64 = 60_000;

impl TimeoutQuery {
    /// The time to wait.
    pub(super) fn time(&self) -> Result<Duration, Problem> {
        match self.timeout_ms.unwrap_or(USUAL_WAIT) {
            ms @ 0..=LONGEST_WAIT => Ok(Duration::from_millis(ms)),
            _ => Err(Problem::field("timeout_ms", "more than 60000; repeat the request to wait for longer")),
        }
    }
}

/// The end of a sandbox, as far as it is known.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Waited {
    /// The sandbox.
    id: String,
    /// Whether the sandbox has ended.
    ended: bool,
    /// How the command ended: `{"code": N}` or `{"signal": N}`; null if unknown.
    #[schema(value_type = Option<Object>)]
    exit: Option<ExitStatus>,
    /// Why the sandbox ended.
    #[schema(value_type = Option<String>)]
    cause: Option<Cause>,
    /// Why the command was not run, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    failure: Option<StartFailure>,
}

/// Waits until a sandbox has ended. If the time is over before, `ended` is false.
#[utoipa::path(
    get, path = "/sandboxes/{id}/wait", tag = "sandboxes", operation_id = "waitForSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), TimeoutQuery),
    responses(
        (status = 200, description = "the end, or that it has not come", body = Waited),
        Problem,
    )
)]
async fn wait(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<TimeoutQuery>,
) -> Result<axum::Json<Waited>, Problem> {
    let limit = query.time()?;
    let place = app.engine.follower().ok_or_else(too_many)?;
    let waiting = app.engine.wait(place, move |scope| wait_now(scope, &id, limit));
    tokio::select! {
        waited = waiting => Ok(axum::Json(waited??)),
        () = app.drain.begun() => Err(Problem::draining()),
    }
}

fn wait_now(scope: &Scope, word: &str, limit: Duration) -> Result<Waited, Problem> {
    let known = find_sandbox(scope, word)?;
    let (resolver, targets) = (Resolver::new(scope.root()), std::slice::from_ref(&known));
    let end = penfold_control::wait_for_sandboxes(&resolver, targets, false, Some(limit), &mut |_| ())
        .pop()
        .flatten();
    let id = known.id.clone();
    let nothing = |ended| Waited { id, ended, exit: None, cause: None, failure: None };
    match end {
        None => Ok(nothing(false)),
        Some(SandboxEnd::Known { exit, cause, failure }) => {
            Ok(Waited { exit, cause: Some(cause), failure, ..nothing(true) })
        }
        Some(SandboxEnd::Unknown | SandboxEnd::Removed) => Ok(nothing(true)),
        Some(SandboxEnd::Unverified) => {
            let sentence = format!("something of sandbox {} is left", known.id);
            Err(Problem::new(Kind::Unverified, sentence))
        }
    }
}

/// Which report.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportQuery {
    /// The life of a sandbox that was restarted, from 1; default: the last one, if it has ended.
    #[param(minimum = 1)]
    life: Option<u32>,
}

/// Returns the report of an ended sandbox: what the teardown found and did.
#[utoipa::path(
    get, path = "/sandboxes/{id}/report", tag = "sandboxes", operation_id = "getReport",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), ReportQuery),
    responses(
        (status = 200, description = "the report", body = Object),
        Problem,
    )
)]
async fn report(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<ReportQuery>,
) -> Result<axum::Json<Report>, Problem> {
    if query.life == Some(0) {
        return Err(Problem::field("life", "0; lives are counted from 1"));
    }
    let report = app.engine.call(move |scope| {
        let known = find_sandbox(scope, &id)?;
        let report = known.record.as_ref().map(|files| match query.life {
            None => files.report(),
            Some(life) => files.report_of(life),
        });
        match report {
            Some(Ok(Some(report))) => Ok(report),
            Some(Err(error)) => {
                Err(Problem::new(Kind::Internal, format!("cannot read the report: {}", error_chain(&error))))
            }
            Some(Ok(None)) | None => {
                Err(Problem::new(Kind::NotEnded, format!("sandbox {} has no report yet", known.id)))
            }
        }
    });
    Ok(axum::Json(report.await??))
}
