//! `/api/session/*`.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use penfold_state::time::now_ms;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::request::{OptionallyParsed, Parsed};

use super::create::{self, Settings};
use super::{delete, find};

/// The routes for sessions.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/session/create", post(create))
        .route("/api/session/list", get(list))
        .route("/api/session/delete", post(delete))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateRequest {
    id: Option<String>,
    env: Option<BTreeMap<String, Option<String>>>,
    cwd: Option<String>,
    command_timeout_ms: Option<u64>,
}

async fn create(
    State(api): State<ApiState>,
    OptionallyParsed(request): OptionallyParsed<CreateRequest>,
) -> RouteResult {
    let fresh = || format!("session-{}", now_ms());
    let id = SessionId::new(Some(&request.id.filter(|id| !id.is_empty()).unwrap_or_else(fresh)))?;
    if id.is_none() {
        let message = format!("`{}` is reserved and cannot be a session", id.as_str());
        return Err(ApiError::new(Code::ValidationFailed, message));
    }
    let env = request.env.unwrap_or_default();
    let env = env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let settings =
        Settings { env, cwd: request.cwd, timeout_ms: request.command_timeout_ms.filter(|&ms| ms > 0) };
    settings.check()?;
    let session = create::create(&api, &id, settings).await?;
    let data = json!({ "id": id.as_str(), "sandbox": session.files.name() });
    Ok(success_answer(json!({ "data": data, "sessionId": id.as_str() })))
}

async fn list(State(api): State<ApiState>) -> RouteResult {
    let ids = api.call(|api| {
        let all = find::all_records(api.app.engine.scope())?;
        let mut ids: Vec<String> = Vec::new();
        for (id, files) in all {
            if !id.is_none() && files.lock().may_be_held() && !files.has_ended() {
                ids.push(id.as_str().to_owned());
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    });
    Ok(success_answer(json!({ "data": ids.await? })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteRequest {
    session_id: Option<String>,
}

async fn delete(State(api): State<ApiState>, Parsed(request): Parsed<DeleteRequest>) -> RouteResult {
    let Some(given) = request.session_id.as_deref().filter(|id| !id.is_empty()) else {
        return Err(ApiError::new(Code::ValidationFailed, "sessionId is missing").with("field", "sessionId"));
    };
    let id = SessionId::new(Some(given))?;
    delete::delete(&api, &id).await?;
    Ok(success_answer(json!({ "sessionId": id.as_str() })))
}
