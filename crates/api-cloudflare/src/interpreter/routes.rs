//! `/api/contexts`, `/api/execute/code` and `/api/interpreter/health`.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::routing::{delete, get, post};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::request::Parsed;

use super::contexts::{self, Context};
use super::end;
use super::language::Language;
use super::run::{self, CodeToRun};
use super::start::{self, NewContext};

/// The longest time limit, in milliseconds: timers of node have no longer ones.
const LONGEST: u64 = 2_000_000_000;

/// The routes of the code interpreter.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/interpreter/health", get(health))
        .route("/api/contexts", get(list).post(create))
        .route("/api/contexts/{id}", delete(remove))
        .route("/api/execute/code", post(execute))
}

/// An interpreter is started with its context, so there is nothing to wait for.
async fn health() -> RouteResult {
    Ok(success_answer(json!({ "status": "healthy" })))
}

#[derive(Debug, Deserialize)]
struct CreateRequest {
    language: Option<String>,
    cwd: Option<String>,
    #[serde(alias = "envVars")]
    env_vars: Option<BTreeMap<String, Option<String>>>,
    #[serde(rename = "sessionId")]
    session_id: Option<String>,
}

async fn create(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<CreateRequest>,
) -> RouteResult {
    let session = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
    let env = request.env_vars.unwrap_or_default();
    let wanted = NewContext {
        language: Language::find(request.language.as_deref())?,
        cwd: request.cwd,
        env: env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        is_default: false,
    };
    let context = start::create_context(&api, &session, wanted).await?;
    let language = context.language.name();
    Ok(success_answer(json!({ "contextId": context.id, "language": language, "cwd": context.directory })))
}

async fn list(State(api): State<ApiState>) -> RouteResult {
    let all = api.call(contexts::all_running).await?;
    let all: Vec<Value> = all.iter().map(described).collect();
    Ok(success_answer(json!({ "contexts": all })))
}

fn described(context: &Context) -> Value {
    json!({
        "id": context.id,
        "language": context.language.name(),
        "cwd": context.directory,
        "createdAt": context.exec.view.started_at_ms,
    })
}

async fn remove(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let context = {
        let id = id.clone();
        api.call(move |api| contexts::find_context(api, &id)).await?
    };
    end::end_context(&api, context).await?;
    Ok(success_answer(json!({ "contextId": id })))
}

#[derive(Debug, Deserialize)]
struct ExecuteRequest {
    #[serde(alias = "contextId")]
    context_id: Option<String>,
    code: String,
    language: Option<String>,
    #[serde(alias = "timeoutMs")]
    timeout_ms: Option<u64>,
    #[serde(rename = "sessionId")]
    session_id: Option<String>,
}

async fn execute(
    State(api): State<ApiState>,
    headers: HeaderMap,
    uri: Uri,
    Parsed(request): Parsed<ExecuteRequest>,
) -> RouteResult {
    let given = request.language.as_deref().filter(|name| !name.is_empty());
    let language = given.map(|name| Language::find(Some(name))).transpose()?;
    let context = if let Some(id) = request.context_id.filter(|id| !id.is_empty()) {
        api.call(move |api| contexts::find_context(api, &id)).await?
    } else {
        let session = SessionId::of_command(request.session_id.as_deref(), &headers, &uri)?;
        start::default_context(&api, &session, language.unwrap_or(Language::Python)).await?
    };
    let language = language.unwrap_or(context.language);
    if !context.language.can_run(language) {
        let (own, other) = (context.language.name(), language.name());
        let message = format!("Context {} was created for {own}, cannot execute {other} code", context.id);
        let error = ApiError::new(Code::ExecutionError, message.as_str()).with("evalue", message);
        return Err(error.with("contextId", context.id));
    }
    let limit_ms = request.timeout_ms.filter(|&ms| ms > 0).map(|ms| ms.min(LONGEST));
    run::answer_with_run(&api, context, CodeToRun { text: request.code, language, limit_ms }).await
}
