//! `/api/execute`: a command in the session's shell.

mod output;
mod sessionless;
mod shell;

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::routing::post;
use serde::Deserialize;

use super::answer::RouteResult;
use super::api::ApiState;
use super::error::{ApiError, Code};
use super::ids::{ProcessId, SessionId};
use super::processes::{self, Launch};
use super::request::Parsed;

/// The routes for commands.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/api/execute", post(execute)).route("/api/execute/stream", post(stream))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecuteRequest {
    command: Option<String>,
    session_id: Option<String>,
    timeout_ms: Option<u64>,
    env: Option<BTreeMap<String, Option<String>>>,
    cwd: Option<String>,
    background: Option<bool>,
}

/// A command with its settings.
#[derive(Debug)]
struct Wanted {
    command: String,
    env: BTreeMap<String, Option<String>>,
    cwd: Option<String>,
    timeout_ms: Option<u64>,
}

async fn execute(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<ExecuteRequest>,
) -> RouteResult {
    let id = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    if request.background == Some(true) {
        let launch = launch(request)?;
        return processes::answer_start(&api, &id, &ProcessId::new(None)?, launch).await;
    }
    let Some(command) = request.command else { return Err(no_command()) };
    let wanted = Wanted {
        command,
        env: request.env.unwrap_or_default(),
        cwd: request.cwd.filter(|cwd| !cwd.is_empty()),
        timeout_ms: request.timeout_ms.filter(|&ms| ms > 0),
    };
    if id.is_none() {
        sessionless::execute(&api, &id, wanted).await
    } else {
        shell::execute(&api, &id, wanted).await
    }
}

async fn stream(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<ExecuteRequest>,
) -> RouteResult {
    let id = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    let launch = launch(request)?;
    processes::answer_stream(&api, &id, &ProcessId::new(None)?, launch).await
}

fn launch(request: ExecuteRequest) -> Result<Launch, ApiError> {
    Launch::new(request.command, request.env, request.cwd, request.timeout_ms)
}

fn no_command() -> ApiError {
    ApiError::new(Code::ValidationFailed, "command is missing").with("field", "command")
}
