//! `/v1/sandboxes/{id}`: stop, kill, delete. The answer comes after the tree was observed gone.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penfold_control::{
    EndLimits, EndMethod, EndProgress, ResolveError, Resolver, SandboxRef, Scope, StopResult, remove_record,
    view,
};
use penfold_server::AppState;
use penfold_server::records::find_sandbox;
use penfold_state::state::Status;
use penfold_state::{Files, Id, Report, error_chain, history, names};
use serde::Deserialize;
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use super::extract::{OptionalJson, Path, Query};
use super::model::{EndResult, Ended};
use super::problem::{Kind, Problem};
use super::valid;

use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(stop)).routes(routes!(kill)).routes(routes!(delete))
}

/// Whether the answer waits.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// 0: answer 202 as soon as the end has begun. It is completed also without the server.
    #[param(minimum = 0, maximum = 1)]
    wait: Option<u8>,
}

impl WaitQuery {
    pub(super) fn waits(&self) -> Result<bool, Problem> {
        match self.wait {
            None | Some(1) => Ok(true),
            Some(0) => Ok(false),
            Some(_) => Err(Problem::field("wait", "neither 0 nor 1")),
        }
    }
}

/// How to stop a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopRequest {
    /// The polite signal; default: the sandbox's own.
    signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL; default: the sandbox's own.
    grace_ms: Option<u64>,
    /// The time in milliseconds that the kill may take until the survivors are reported; default: the sandbox's own.
    patience_ms: Option<u64>,
}

/// How to kill a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillRequest {
    /// The time in milliseconds that the kill may take until the survivors are reported; default: the sandbox's own.
    patience_ms: Option<u64>,
}

/// Stops a sandbox: the polite signal to every member, SIGKILL after the grace, and a look that nothing is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/stop", tag = "sandboxes", operation_id = "stopSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), WaitQuery),
    request_body(content = Option<StopRequest>),
    responses(
        (status = 200, description = "everything was observed gone", body = Ended),
        (status = 202, description = "the end has begun", body = Ended),
        Problem,
    )
)]
async fn stop(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<StopRequest>,
) -> Result<Response, Problem> {
    let signal = request.signal.map(|text| super::signal::parse_signal("signal", &text)).transpose()?;
    let grace = request.grace_ms.map(|ms| valid::valid_time("grace_ms", ms)).transpose()?;
    let patience = request.patience_ms.map(|ms| valid::valid_time("patience_ms", ms)).transpose()?;
    let order = Order { method: EndMethod::Stop { signal, grace }, patience, removes: false };
    order.carry_out(app, id, query.waits()?).await
}

/// Kills a sandbox: SIGKILL to every member at once, and a look that nothing is left.
#[utoipa::path(
    post, path = "/sandboxes/{id}/kill", tag = "sandboxes", operation_id = "killSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), WaitQuery),
    request_body(content = Option<KillRequest>),
    responses(
        (status = 200, description = "everything was observed gone", body = Ended),
        (status = 202, description = "the end has begun", body = Ended),
        Problem,
    )
)]
async fn kill(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
    OptionalJson(request): OptionalJson<KillRequest>,
) -> Result<Response, Problem> {
    let patience = request.patience_ms.map(|ms| valid::valid_time("patience_ms", ms)).transpose()?;
    let order = Order { method: EndMethod::Kill, patience, removes: false };
    order.carry_out(app, id, query.waits()?).await
}

/// Kills a sandbox if it has not ended, and removes its record with log, exit and report. The answer has the report.
#[utoipa::path(
    delete, path = "/sandboxes/{id}", tag = "sandboxes", operation_id = "deleteSandbox",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), WaitQuery),
    responses(
        (status = 200, description = "everything was observed gone", body = Ended),
        (status = 202, description = "the end has begun", body = Ended),
        Problem,
    )
)]
async fn delete(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let order = Order { method: EndMethod::Kill, patience: None, removes: true };
    order.carry_out(app, id, query.waits()?).await
}

/// An end that a client asks for.
#[derive(Debug, Clone, Copy)]
struct Order {
    method: EndMethod,
    patience: Option<Duration>,
    removes: bool,
}

impl Order {
    async fn carry_out(self, app: AppState, word: String, waits: bool) -> Result<Response, Problem> {
        let place = app.engine.ender()?;
        if waits {
            let handle = AppState::clone(&app);
            let ended = app.engine.wait(place, move |scope| self.end(&handle, scope, &word)).await??;
            return Ok(axum::Json(ended).into_response());
        }
        let handle = AppState::clone(&app);
        let resolved = app.engine.call(move |scope| resolve(&handle, scope, &word)).await??;
        let Resolved::Known(known) = resolved else {
            let Resolved::Gone(ended) = resolved else { return Err(Problem::new(Kind::Internal, "")) };
            return Ok(axum::Json(*ended).into_response());
        };
        let id = known.id.clone();
        let (sender, begun) = oneshot::channel();
        tokio::spawn(async move {
            let id = known.id.clone();
            let handle = AppState::clone(&app);
            let ending = app.engine.wait(place, move |scope| {
                let mut sender = Some(sender);
                self.end_known(&handle, &Resolver::new(scope.root()), &known, &mut |progress| {
                    if progress.begun > 0
                        && let Some(sender) = sender.take()
                    {
                        // The request may be gone.
                        let _ = sender.send(());
                    }
                })
            });
            if let Err(problem) = ending.await.unwrap_or_else(|error| Err(error.into())) {
                tracing::warn!(id, problem = ?problem, "a sandbox could not be ended");
            }
        });
        // Also an end that fails closes the channel.
        let _ = begun.await;
        let url = format!("/v1/sandboxes/{id}/report");
        let location = HeaderValue::from_str(&url).ok();
        let ended = Ended { id, result: EndResult::Accepted, report_url: Some(url), report: None };
        let mut response = (StatusCode::ACCEPTED, axum::Json(ended)).into_response();
        response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
        Ok(response)
    }

    fn end(self, app: &AppState, scope: &Scope, word: &str) -> Result<Ended, Problem> {
        match resolve(app, scope, word)? {
            Resolved::Known(known) => self.end_known(app, &Resolver::new(scope.root()), &known, &mut |_| ()),
            Resolved::Gone(ended) => Ok(*ended),
        }
    }

    fn end_known(
        self,
        app: &AppState,
        resolver: &Resolver,
        known: &SandboxRef,
        slow: &mut dyn FnMut(EndProgress),
    ) -> Result<Ended, Problem> {
        let limits = EndLimits { patience: self.patience, ..EndLimits::default() };
        let result = if is_over(resolver, known) {
            EndResult::AlreadyGone
        } else {
            let targets = std::slice::from_ref(known);
            penfold_sys::crash_point!("serve-end-wanted");
            let results = penfold_control::end_sandboxes(resolver, targets, self.method, &limits, slow);
            penfold_sys::crash_point!("serve-ended");
            match results.into_iter().next() {
                Some(StopResult::Gone) | None => EndResult::Gone,
                Some(StopResult::Left(survivors)) => {
                    let sentence = format!("something of sandbox {} is left", known.id);
                    return Err(Problem::remaining(sentence, survivors));
                }
                Some(StopResult::Failed(error)) => {
                    let sentence = format!("sandbox {}: {}", known.id, error_chain(&error));
                    return Err(Problem::new(Kind::Unverified, sentence));
                }
            }
        };
        let report = known.record.as_ref().and_then(|files| files.report().ok().flatten());
        let kept = report.is_some() && !self.removes;
        if self.removes {
            // Before the record goes: who asks again then finds one or the other.
            if let Some(report) = &report {
                app.deleted.keep(report);
            }
            remove_record(resolver, known, &limits)?;
        }
        let report_url = kept.then(|| format!("/v1/sandboxes/{}/report", known.id));
        Ok(Ended { id: known.id.clone(), result, report_url, report })
    }
}

/// The sandbox that a word means.
enum Resolved {
    Known(Box<SandboxRef>),
    /// No trace of this id was found.
    Gone(Box<Ended>),
}

fn resolve(app: &AppState, scope: &Scope, word: &str) -> Result<Resolved, Problem> {
    let error = match find_sandbox(scope, word) {
        Ok(known) => return Ok(Resolved::Known(Box::new(known))),
        Err(error) => error,
    };
    if !(matches!(error, ResolveError::NotFound { .. }) && Id::is_short(word)) {
        return Err(error.into());
    }
    let is_own = |report: &Report| scope.has_tenant(names::tenant_of(&report.labels));
    let report = app.deleted.report(word).filter(is_own).or_else(|| in_history(scope, word));
    // A sandbox of another tenant is as one that never was, and cannot be said to be gone.
    let is_nowhere = || scope.has_unowned() && find_sandbox(&Scope::whole(scope.root()), word).is_err();
    if report.is_none() && !is_nowhere() {
        return Err(error.into());
    }
    let (id, result) = (word.to_owned(), EndResult::AlreadyGone);
    Ok(Resolved::Gone(Box::new(Ended { id, result, report_url: None, report })))
}

/// The report of a foreground sandbox that failed or left something.
fn in_history(scope: &Scope, id: &str) -> Option<Report> {
    let kept = history::read_history(scope.root()).unwrap_or_default();
    let is_it = |report: &Report| report.id == id && scope.has_tenant(names::tenant_of(&report.labels));
    kept.into_iter().find(is_it)
}

/// Tells whether the end of a sandbox was verified before, and nothing contradicts it.
fn is_over(resolver: &Resolver, known: &SandboxRef) -> bool {
    let is_ended = |status: Status| !status.is_living() && status != Status::Lost;
    known.record.as_ref().is_some_and(Files::has_ended)
        && view::observe_sandbox(resolver, known).is_some_and(|seen| is_ended(seen.status))
}
