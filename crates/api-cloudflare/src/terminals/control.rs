//! Writes to terminals, sets their size, and ends them.

use penfold_control::execs;
use penfold_server::execs::write_input;
use penfold_state::error_chain;
use penfold_state::wire::Size;
use penfold_teardown::Survivor;
use rustix::process::Signal;

use crate::api::ApiState;
use crate::end_tree::{TreeEnd, end_tree};
use crate::error::{ApiError, Code};
use penfold_server::survivors;

use super::look::Terminal;

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
    api.wait(move |_| end(&terminal)).await?;
    api.followers.finish(|other| *other == followed).await;
    Ok(())
}

fn end(terminal: &Terminal) -> Result<(), ApiError> {
    if !terminal.exec.is_running() {
        return Ok(());
    }
    match end_tree(&terminal.exec, Signal::HUP.as_raw()) {
        TreeEnd::Gone => Ok(()),
        TreeEnd::Left(survivors) => Err(not_gone(terminal, &survivors)),
        TreeEnd::Failed(why) => Err(control_error(&terminal.id, "terminate", &why)),
    }
}

fn not_gone(terminal: &Terminal, survivors: &[Survivor]) -> ApiError {
    let list = survivors::list_survivors(survivors);
    tracing::warn!(terminal = terminal.id, remaining = %list, "a terminal is not gone");
    let reason = format!("it is not gone: {}", survivors::survivors_sentence(survivors));
    control_error(&terminal.id, "terminate", &reason).with("remaining", list)
}
