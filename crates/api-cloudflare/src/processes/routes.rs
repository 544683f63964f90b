//! `/api/process/*`.

use std::io::Write;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Uri, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use penfold_control::execs;
use penfold_server::sent_body;
use penfold_state::log::{LogPosition, Stream};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::ApiError;
use crate::ids::{ProcessId, SessionId, query_value};
use crate::json_body::json_body;
use crate::output::write_string;
use crate::request::Parsed;
use crate::time;

use super::follow::{self, Following};
use super::kill;
use super::labels::COMMAND;
use super::launch::{self, Launch};
use super::look::{self, Seen};
use super::script::Environment;
use super::status::{self, Told};

/// The routes for processes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/process/start", post(start))
        .route("/api/process/list", get(list))
        .route("/api/process/kill-all", axum::routing::delete(kill_all))
        .route("/api/process/{id}", get(one).delete(kill_one))
        .route("/api/process/{id}/logs", get(logs))
        .route("/api/process/{id}/stream", get(stream))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartRequest {
    command: Option<String>,
    session_id: Option<String>,
    process_id: Option<String>,
    env: Option<Environment>,
    cwd: Option<String>,
    timeout_ms: Option<u64>,
}

async fn start(State(api): State<ApiState>, Parsed(request): Parsed<StartRequest>) -> RouteResult {
    let session = SessionId::new(request.session_id.as_deref())?;
    let id = ProcessId::new(request.process_id.as_deref())?;
    let launch = Launch::new(request.command, request.env, request.cwd, request.timeout_ms)?;
    answer_start(&api, &session, &id, launch).await
}

/// Starts a process and answers with its id.
pub(crate) async fn answer_start(
    api: &ApiState,
    session: &SessionId,
    id: &ProcessId,
    launch: Launch,
) -> RouteResult {
    let command = launch.command.clone();
    let launched = launch::launch(api, session, id, launch).await?;
    Ok(success_answer(json!({
        "processId": id.as_str(),
        "pid": launched.started.pid,
        "command": command,
        "sessionId": session.as_str(),
    })))
}

/// Starts a process and answers with its output.
pub(crate) async fn answer_stream(
    api: &ApiState,
    session: &SessionId,
    id: &ProcessId,
    launch: Launch,
) -> RouteResult {
    let command = launch.command.clone();
    let launched = launch::launch(api, session, id, launch).await?;
    let following = Following {
        files: launched.session.files,
        number: launched.started.number,
        held: launched.held,
        first: (
            "start",
            json!({
                "command": command,
                "sessionId": session.as_str(),
                "processId": id.as_str(),
                "pid": launched.started.pid,
            }),
        ),
        common: json!({}),
        last: |told| ("complete", json!({ "exitCode": told.code })),
    };
    follow::answer_with_stream(api, following)
}

async fn list(State(api): State<ApiState>, uri: Uri) -> RouteResult {
    let wanted = query_value(uri.query().unwrap_or_default(), "status");
    let all = api.wait(look::observe_all).await?;
    let told = all.iter().map(|seen| (seen, status::observed_status(&seen.exec.view)));
    let listed = told.filter(|(_, told)| wanted.as_deref().is_none_or(|wanted| wanted == told.word));
    let processes: Vec<Value> = listed.map(|(seen, told)| describe(seen, told)).collect();
    Ok(success_answer(json!({ "processes": processes })))
}

async fn one(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let seen = api.call(move |api| look::observe_process(api, &id)).await?;
    Ok(success_answer(json!({ "process": describe(&seen, status::observed_status(&seen.exec.view)) })))
}

fn describe(seen: &Seen, told: Told) -> Value {
    let mut process = json!({
        "id": seen.id,
        "command": seen.exec.view.labels.get(COMMAND),
        "status": told.word,
        "startTime": time::iso_time(seen.exec.view.started_at_ms),
        "sessionId": seen.session,
    });
    if let Some(fields) = process.as_object_mut() {
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(key.to_owned(), value);
            }
        };
        add("pid", seen.exec.view.leader_pid.map(Value::from));
        if told.code.is_some() {
            add("endTime", seen.exec.view.ended_at_ms.map(|ms| time::iso_time(ms).into()));
            add("exitCode", told.code.map(Value::from));
        }
    }
    process
}

async fn kill_one(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    kill::one(&api, id.clone()).await?;
    Ok(success_answer(json!({ "processId": id })))
}

async fn kill_all(State(api): State<ApiState>) -> RouteResult {
    let ended = kill::all(&api).await?;
    let mut fields = json!({ "cleanedCount": ended.verified });
    if !ended.failed.is_empty() {
        let failed: Vec<Value> = ended
            .failed
            .iter()
            .map(|(id, error)| json!({ "processId": id, "error": error.message() }))
            .collect();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("failed".to_owned(), failed.into());
        }
    }
    Ok(success_answer(fields))
}

async fn logs(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let found = api.call(move |api| {
        let seen = look::observe_process(api, &id)?;
        let log = || {
            execs::open_exec_log(&seen.exec.files, seen.number(), LogPosition::Start)
                .map_err(|error| ApiError::internal(&error))
        };
        let logs = [log()?, log()?];
        Ok((seen, logs))
    });
    let (seen, [mut stdout, mut stderr]) = found.await?;
    let body = sent_body::written_body(move |sink| {
        sink.write_all(b"{\"stdout\":")?;
        let missed = write_string(sink, &mut stdout, Stream::Stdout, "")?;
        sink.write_all(b",\"stderr\":")?;
        let lost = missed.max(write_string(sink, &mut stderr, Stream::Stderr, "")?);
        let mut rest = json!({ "success": true, "processId": seen.id, "timestamp": time::current_time() });
        if let Some(rest) = rest.as_object_mut().filter(|_| lost > 0) {
            rest.insert("truncated".to_owned(), json!(true));
            rest.insert("truncatedBytes".to_owned(), json!(lost));
        }
        sink.write_all(b",")?;
        sink.write_all(json_body(&rest)?.strip_prefix('{').unwrap_or_default().as_bytes())
    });
    let body = body.map_err(|error| ApiError::full(&error))?;
    Ok(([(header::CONTENT_TYPE, answer::JSON)], body).into_response())
}

async fn stream(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let found = api.call(move |api| {
        let seen = look::observe_process(api, &id)?;
        let held = execs::hold_exec_record(&seen.exec.files, seen.number())
            .map_err(|error| ApiError::internal(&error))?;
        // The record was removed just now.
        held.ok_or_else(|| look::missing_process(&seen.id)).map(|held| (seen, held))
    });
    let (seen, held) = found.await?;
    let told = status::observed_status(&seen.exec.view);
    let info =
        json!({ "processId": seen.id, "command": seen.exec.view.labels.get(COMMAND), "status": told.word });
    let following = Following {
        number: seen.number(),
        files: seen.exec.files,
        held: Some(held),
        first: ("process_info", info),
        common: json!({ "processId": seen.id }),
        last: |told| {
            let code = told.code.unwrap_or_default();
            let data = format!("Process {} with exit code {code}", told.word);
            ("exit", json!({ "exitCode": told.code, "data": data }))
        },
    };
    follow::answer_with_stream(&api, following)
}
