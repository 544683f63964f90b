//! `/rpc/process/*`: processes that are started with words, for clients from 0.13 on. Only calls over `/rpc` reach these routes.
//!
//! They are processes as all others, in the session `default`: clients before 0.13 see and kill them, too.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use penfold_control::execs::{self, ExecView};
use penfold_state::error_chain;
use penfold_state::log::Stream;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::{ProcessId, SessionId};
use crate::log_events::{LogEvents, NoEvents, WantedOutput, ended_state};
use crate::request::Parsed;
use crate::time;

use super::kill;
use super::labels::{COMMAND, CWD, WORDS};
use super::launch::{self, Launch};
use super::look::{self, Seen};

/// The routes.
pub(crate) fn word_routes() -> Router<ApiState> {
    Router::new()
        .route("/rpc/processes", post(start).get(list))
        .route("/rpc/processes/active", get(has_active))
        .route("/rpc/process/{id}", get(one))
        .route("/rpc/process/{id}/kill", post(kill))
        .route("/rpc/process/{id}/events", post(events))
}

#[derive(Debug, Deserialize)]
struct StartRequest {
    command: Vec<String>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    timeout: Option<f64>,
}

async fn start(State(api): State<ApiState>, Parsed(request): Parsed<StartRequest>) -> RouteResult {
    let session = SessionId::new(None)?;
    let id = ProcessId::new(None)?;
    let StartRequest { command, env, cwd, timeout } = request;
    let launch = Launch::of_words(command, env.unwrap_or_default(), cwd, timeout)?;
    launch::launch(&api, &session, &id, launch).await?;
    let seen = api.call(move |api| look::observe_process(api, id.as_str())).await?;
    Ok(success_answer(json!({ "process": describe(&seen) })))
}

async fn list(State(api): State<ApiState>) -> RouteResult {
    let all = api.wait(look::observe_all).await?;
    Ok(success_answer(json!({ "processes": all.iter().map(describe).collect::<Vec<_>>() })))
}

async fn has_active(State(api): State<ApiState>) -> RouteResult {
    let running = api.wait(look::observe_running).await?;
    Ok(success_answer(json!({ "active": !running.is_empty() })))
}

async fn one(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let process = match api.call(move |api| look::observe_process(api, &id)).await {
        Ok(seen) => describe(&seen),
        Err(error) if error.code() == Code::ProcessNotFound => Value::Null,
        Err(error) => return Err(error),
    };
    Ok(success_answer(json!({ "process": process })))
}

/// Returns the words of a command. Clients before 0.13 start processes with a command for bash.
pub(crate) fn words_of(view: &ExecView) -> Vec<String> {
    let words = view.labels.get(WORDS).and_then(|words| serde_json::from_str(words).ok());
    words.unwrap_or_else(|| {
        let command = view.labels.get(COMMAND).map_or("", String::as_str);
        ["bash", "-c", command].map(str::to_owned).to_vec()
    })
}

/// Returns the directory that the client chose.
pub(crate) fn directory_of(view: &ExecView) -> Option<&str> {
    view.labels.get(CWD).map(String::as_str)
}

fn describe(seen: &Seen) -> Value {
    let view = &seen.exec.view;
    let mut process = json!({
        "id": seen.id,
        "pid": view.leader_pid.unwrap_or_default(),
        "command": words_of(view),
        "startedAt": time::iso_time(view.started_at_ms),
        "state": "running",
    });
    if let Some(fields) = process.as_object_mut() {
        fields.extend(directory_of(view).map(|cwd| ("cwd".to_owned(), cwd.into())));
        if let (false, Value::Object(ended)) = (seen.is_running(), ended_state(view.exit, view.cause)) {
            fields.extend(ended);
            let ended_at = view.ended_at_ms.unwrap_or(view.started_at_ms);
            fields.insert("endedAt".to_owned(), time::iso_time(ended_at).into());
        }
    }
    process
}

#[derive(Debug, Deserialize)]
struct KillRequest {
    signal: Option<i32>,
}

/// TERM and KILL end the tree, as every kill of a process; another signal goes to the command.
async fn kill(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Parsed(request): Parsed<KillRequest>,
) -> RouteResult {
    let signal = request.signal.unwrap_or(kill::TERM);
    if signal == kill::TERM || signal == kill::KILL {
        match kill::with_signal(&api, id, signal).await {
            Err(error) if error.code() != Code::CommandNotFound => return Err(error),
            // It has ended before.
            _ => {}
        }
    } else {
        api.wait(move |api| signal_command(&look::observe_process(api, &id)?, signal)).await?;
    }
    Ok(success_answer(json!({})))
}

fn signal_command(seen: &Seen, signal: i32) -> Result<(), ApiError> {
    if !seen.is_running() {
        return Ok(());
    }
    match execs::signal_exec(&seen.exec.files, seen.number(), signal) {
        Err(error) if !execs::has_ended(&seen.exec.files, seen.number()) => {
            let why = error_chain(&error);
            let message = format!("Process '{}' cannot be sent the signal {signal}: {why}", seen.id);
            Err(ApiError::new(Code::ProcessError, message).with("processId", seen.id.as_str()))
        }
        _ => Ok(()),
    }
}

async fn events(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Parsed(wanted): Parsed<WantedOutput>,
) -> RouteResult {
    let events = api.call(move |api| open_events(look::observe_process(api, &id)?, &wanted)).await?;
    events.answer(&api)
}

fn open_events(seen: Seen, wanted: &WantedOutput) -> Result<LogEvents, ApiError> {
    let Seen { id, exec, .. } = seen;
    let kind = |stream| if stream == Stream::Stdout { "stdout" } else { "stderr" };
    LogEvents::open(exec, wanted, kind, json!({})).map_err(|error| match error {
        NoEvents::Gone => look::missing_process(&id),
        NoEvents::Failed(error) => error,
        NoEvents::Cursor(reason) => {
            let message = format!("the cursor is none of process '{id}': {reason}");
            let error = ApiError::new(Code::InvalidProcessCursor, message);
            error.with("processId", id).with("reason", reason)
        }
    })
}
