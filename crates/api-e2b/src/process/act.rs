//! Lists commands, sends signals, sets sizes.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use penfold_control::execs;
use penfold_server::execs::{EndExecError, ExecEndOrder, FoundExec, end_exec};
use penfold_server::survivors::survivors_sentence;
use penfold_sys::signal::signal_of_number;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use super::messages::{ProcessConfig, ProcessInfo, SignalRequest, UpdateRequest};
use super::select::{self, CONFIG, TAG, is_running, pid_of};
use crate::api::ApiState;
use crate::connect::{Code, Empty, Message, RpcError};
use crate::guest::Guest;

/// The time after which the survivors of a kill are reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// The commands that run.
#[derive(Debug, Serialize)]
pub(super) struct ListResponse {
    processes: Vec<ProcessInfo>,
}

/// `List`.
pub(super) async fn list(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(_): Message<Empty>,
) -> Result<Json<ListResponse>, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    api.call(move |_| {
        let mut views = guest.any_record().map_or(Ok(Vec::new()), select::unended)?;
        views.retain(is_running);
        let processes = views.into_iter().filter_map(|view| {
            let config = view
                .labels
                .get(CONFIG)
                .and_then(|text| serde_json::from_slice::<ProcessConfig>(text.as_bytes()).ok());
            Some(ProcessInfo { config: config?, pid: pid_of(&view)?, tag: view.labels.get(TAG).cloned() })
        });
        Ok(Json(ListResponse { processes: processes.collect() }))
    })
    .await
}

/// `Update`: sets the size of a terminal.
pub(super) async fn update(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(wanted): Message<UpdateRequest>,
) -> Result<Json<Empty>, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    api.call(move |_| {
        let files = guest.record()?;
        let view = select::select_running(files, &wanted.process)?;
        if let Some(pty) = wanted.pty {
            if !view.terminal {
                return Err(RpcError::new(Code::FailedPrecondition, "the process has no terminal"));
            }
            let resized = execs::resize_exec(files, view.number, pty.size());
            resized.map_err(|error| RpcError::internal(&error))?;
        }
        Ok(Json(Empty {}))
    })
    .await
}

/// `SendSignal`. SIGKILL ends the command with all that it has started, and the answer comes once that was observed; any other signal
/// is for its first process.
pub(super) async fn signal(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(wanted): Message<SignalRequest>,
) -> Result<Json<Empty>, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let signal = read_signal(&wanted.signal)?;
    let selector = wanted.process;
    let files = guest.record()?.clone();
    let own = files.clone();
    let view = api.call(move |_| {
        // What a command has left is ended by a kill only.
        match signal {
            Signal::KILL => select::select(&own, &selector, false),
            _ => select::select_running(&own, &selector),
        }
    });
    let exec = FoundExec { view: view.await?, files };
    if signal != Signal::KILL {
        let (files, number) = (exec.files, exec.view.number);
        api.call(move |_| {
            execs::signal_exec(&files, number, signal.as_raw()).map_err(|error| RpcError::internal(&error))
        })
        .await?;
        return Ok(Json(Empty {}));
    }
    let place = api.app.engine.ender()?;
    let ended = end_exec(&api.app.engine, place, exec, ExecEndOrder::Kill { patience: PATIENCE }, true);
    ended.await.map(|_| Json(Empty {})).map_err(|error| match &error {
        EndExecError::Left { survivors, .. } => {
            let message = format!("the command is not gone: {}", survivors_sentence(survivors));
            RpcError::new(Code::Internal, message)
        }
        error => RpcError::internal(error),
    })
}

/// Reads a signal: `SIGNAL_SIGTERM`, or any number.
fn read_signal(given: &Value) -> Result<Signal, RpcError> {
    let number = match given {
        Value::String(name) => match name.strip_prefix("SIGNAL_").unwrap_or(name) {
            "SIGKILL" => Some(9),
            "SIGTERM" => Some(15),
            other => penfold_request::value::signal(other).ok().map(penfold_request::value::Signal::number),
        },
        other => other.as_i64().and_then(|number| i32::try_from(number).ok()),
    };
    let signal = number.and_then(signal_of_number);
    signal.ok_or_else(|| RpcError::invalid(format!("there is no signal {given}")))
}
