//! Writes to terminals, sets their size, and ends them.

use std::time::Duration;

use penfold_control::execs::{self, ExecError};
use penfold_server::execs::{ExecEndOrder, write_input};
use penfold_state::error_chain;
use penfold_state::wire::Size;
use penfold_teardown::Survivor;
use rustix::process::Signal;

use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::processes::GRACE;
use crate::remaining;

use super::look::Terminal;

/// The time for a verified end: the grace, the patience of the sandbox, and a moment for the answer.
const PATIENCE: Duration = Duration::from_millis(5000 + 5000 + 1500);

/// The error of an operation on a terminal.
pub(super) fn control_error(id: &str, operation: &'static str, reason: &str) -> ApiError {
    let message = format!("Terminal '{id}': {operation} failed: {reason}");
    let error = ApiError::new(Code::TerminalControlError.or_no_space(reason), message);
    error.with("terminalId", id).with("operation", operation).with("reason", reason)
}

/// Types bytes, and waits while nobody reads them.
///
/// # Errors
/// When the terminal has ended.
pub(super) async fn type_bytes(
    api: &ApiState,
    terminal: &Terminal,
    operation: &'static str,
    bytes: &[u8],
) -> Result<(), ApiError> {
    let written = write_input(&api.app.engine, &terminal.exec.files, terminal.number(), bytes).await;
    written.map_err(|error| control_error(&terminal.id, operation, &error.to_string()))
}

/// Sets the size.
///
/// # Errors
/// When the terminal has ended.
pub(super) fn resize(terminal: &Terminal, size: Size) -> Result<(), ApiError> {
    let resized = execs::resize_exec(&terminal.exec.files, terminal.number(), size);
    resized.map_err(|error| control_error(&terminal.id, "resize", &error_chain(&error)))
}

/// Ends a terminal with all that runs in it: HUP to the whole tree, a grace, KILL, and an observed end. Shells ignore TERM.
///
/// # Errors
/// When something of it is left.
pub(super) async fn end_terminal(api: &ApiState, terminal: Terminal) -> Result<(), ApiError> {
    let followed = (terminal.exec.files.name().to_owned(), terminal.number());
    api.wait(move |_| end_tree(&terminal)).await?;
    api.followers.finish(|other| *other == followed).await;
    Ok(())
}

fn end_tree(terminal: &Terminal) -> Result<(), ApiError> {
    if !terminal.exec.is_running() {
        return Ok(());
    }
    let signal = Some(Signal::HUP.as_raw());
    let order = ExecEndOrder::Stop { signal, grace: Some(GRACE), patience: PATIENCE };
    match order.carry_out(&terminal.exec) {
        Ok(end) if end.remaining.is_empty() => Ok(()),
        Ok(end) => Err(not_gone(terminal, &end.remaining)),
        // Its session was deleted meanwhile, and that verified its end.
        Err(ExecError::NotFound { .. }) => Ok(()),
        Err(_) if execs::has_ended(&terminal.exec.files, terminal.number()) => Ok(()),
        Err(ExecError::Unverified { .. }) => Err(not_gone(terminal, &[])),
        Err(error) => Err(control_error(&terminal.id, "terminate", &error_chain(&error))),
    }
}

fn not_gone(terminal: &Terminal, survivors: &[Survivor]) -> ApiError {
    let list = remaining::list_survivors(survivors);
    tracing::warn!(terminal = terminal.id, remaining = %list, "a terminal is not gone");
    let reason = format!("it is not gone: {}", remaining::survivors_sentence(survivors));
    control_error(&terminal.id, "terminate", &reason).with("remaining", list)
}
