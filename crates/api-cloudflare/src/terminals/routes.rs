//! `/rpc/terminals` and `/rpc/terminal/*`.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use penfold_state::wire::Size;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::log_events::{LogEvents, NoEvents, WantedOutput};
use crate::request::Parsed;

use super::control;
use super::look::{self, Terminal};
use super::start::NewTerminal;

/// What the key Ctrl+C types.
const INTERRUPT: &[u8] = b"\x03";

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/rpc/terminals", post(create).get(list))
        .route("/rpc/terminals/active", get(has_active))
        .route("/rpc/terminal/{id}", get(one))
        .route("/rpc/terminal/{id}/output", post(output))
        .route("/rpc/terminal/{id}/write", post(write))
        .route("/rpc/terminal/{id}/resize", post(resize))
        .route("/rpc/terminal/{id}/interrupt", post(interrupt))
        .route("/rpc/terminal/{id}/terminate", post(terminate))
}

async fn create(State(api): State<ApiState>, Parsed(wanted): Parsed<NewTerminal>) -> RouteResult {
    let terminal = wanted.start(&api).await?;
    Ok(success_answer(json!({ "terminal": terminal.describe() })))
}

async fn list(State(api): State<ApiState>) -> RouteResult {
    let all = api.wait(look::observe_all).await?;
    let described: Vec<Value> = all.iter().map(Terminal::describe).collect();
    Ok(success_answer(json!({ "terminals": described })))
}

async fn has_active(State(api): State<ApiState>) -> RouteResult {
    let all = api.wait(look::observe_all).await?;
    Ok(success_answer(json!({ "active": all.iter().any(|terminal| terminal.exec.is_running()) })))
}

async fn one(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    let terminal = match find(&api, id).await {
        Ok(terminal) => terminal.describe(),
        Err(error) if error.code() == Code::TerminalNotFound => Value::Null,
        Err(error) => return Err(error),
    };
    Ok(success_answer(json!({ "terminal": terminal })))
}

pub(super) async fn find(api: &ApiState, id: String) -> Result<Terminal, ApiError> {
    api.call(move |api| look::observe_terminal(api, &id)).await
}

async fn output(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Parsed(wanted): Parsed<WantedOutput>,
) -> RouteResult {
    answer_with_output(&api, find(&api, id).await?, wanted).await
}

/// Answers with the output as events.
///
/// # Errors
/// When the cursor is none of this terminal.
pub(super) async fn answer_with_output(
    api: &ApiState,
    terminal: Terminal,
    wanted: WantedOutput,
) -> RouteResult {
    let Terminal { id, exec } = terminal;
    let opened = api.call(move |_| {
        let common = json!({ "terminalId": id });
        LogEvents::open(exec, &wanted, |_| "data", common).map_err(|error| match error {
            NoEvents::Gone => look::missing_terminal(&id),
            NoEvents::Failed(error) => error,
            NoEvents::Cursor(reason) => {
                let message = format!("the cursor is none of terminal '{id}': {reason}");
                let error = ApiError::new(Code::InvalidTerminalCursor, message);
                error.with("terminalId", id).with("reason", reason)
            }
        })
    });
    opened.await?.answer(api)
}

#[derive(Debug, Deserialize)]
struct Written {
    /// Bytes as base64.
    data: String,
}

async fn write(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Parsed(written): Parsed<Written>,
) -> RouteResult {
    let bytes = STANDARD_NO_PAD.decode(written.data).map_err(|_| {
        let message = "the bytes to write are no base64";
        ApiError::new(Code::ValidationFailed, message).with("field", "data")
    })?;
    control::type_bytes(&api, &find(&api, id).await?, "write", &bytes).await?;
    Ok(success_answer(json!({})))
}

#[derive(Debug, Deserialize)]
struct NewSize {
    cols: u16,
    rows: u16,
}

async fn resize(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Parsed(NewSize { cols, rows }): Parsed<NewSize>,
) -> RouteResult {
    if cols == 0 || rows == 0 {
        let message = "Invalid dimensions: cols and rows must be positive";
        return Err(ApiError::new(Code::ValidationFailed, message));
    }
    let terminal = find(&api, id).await?;
    api.call(move |_| control::resize(&terminal, Size { rows, columns: cols })).await?;
    Ok(success_answer(json!({})))
}

async fn interrupt(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    control::type_bytes(&api, &find(&api, id).await?, "interrupt", INTERRUPT).await?;
    Ok(success_answer(json!({})))
}

async fn terminate(State(api): State<ApiState>, Path(id): Path<String>) -> RouteResult {
    control::end_terminal(&api, find(&api, id).await?).await?;
    Ok(success_answer(json!({})))
}
