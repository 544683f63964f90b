//! Finds the command that a client means.

use penfold_control::execs::{self, ExecView};
use penfold_state::Files;

use super::messages::Selector;
use crate::connect::{Code, RpcError};

/// The label with the command as its client has described it, in JSON. Only commands of this API have it.
pub(super) const CONFIG: &str = "e2b.config";
/// The label with the tag.
pub(super) const TAG: &str = "e2b.tag";

/// The pid of a command, as the processes of the sandbox see it.
pub(super) fn pid_of(view: &ExecView) -> Option<u32> {
    view.leader_inside.or(view.leader_pid).and_then(|pid| u32::try_from(pid).ok())
}

/// Tells whether the command itself runs; what it has left may live on after it.
pub(super) fn is_running(view: &ExecView) -> bool {
    view.status == execs::ExecStatus::Running && view.exit.is_none() && view.cause.is_none()
}

/// Returns the commands of this API whose end is not verified.
///
/// # Errors
/// When the records cannot be read.
pub(super) fn unended(files: &Files) -> Result<Vec<ExecView>, RpcError> {
    let mut found = execs::running_execs(files).map_err(|error| RpcError::internal(&error))?;
    found.retain(|view| view.labels.contains_key(CONFIG));
    Ok(found)
}

/// Finds a command: one that runs, else one that has left something, else, if `ended` counts, the last one that has ended.
///
/// # Errors
/// When there is none.
pub(super) fn select(files: &Files, selector: &Selector, ended: bool) -> Result<ExecView, RpcError> {
    let is_meant = |view: &&ExecView| match (selector.pid, &selector.tag) {
        (Some(pid), _) => pid_of(view) == Some(pid),
        (None, Some(tag)) => view.labels.get(TAG) == Some(tag),
        (None, None) => false,
    };
    let unended = unended(files)?;
    let running = unended.iter().rev().find(|view| is_meant(view) && is_running(view));
    if let Some(view) = running.or_else(|| unended.iter().rev().find(is_meant)) {
        return Ok(view.clone());
    }
    let all = if ended {
        execs::list_execs(files).map_err(|error| RpcError::internal(&error))?
    } else {
        Vec::new()
    };
    let last = all.into_iter().rev().find(|view| view.labels.contains_key(CONFIG) && is_meant(&view));
    last.ok_or_else(|| missing(selector))
}

/// Finds a command that runs itself.
///
/// # Errors
/// When there is none.
pub(super) fn select_running(files: &Files, selector: &Selector) -> Result<ExecView, RpcError> {
    let view = select(files, selector, false)?;
    if is_running(&view) { Ok(view) } else { Err(missing(selector)) }
}

/// The answer for a command that is not there.
pub(super) fn missing(selector: &Selector) -> RpcError {
    let message = match (selector.pid, &selector.tag) {
        (Some(pid), _) => format!("process with pid {pid} not found"),
        (None, Some(tag)) => format!("process with tag {tag} not found"),
        (None, None) => return RpcError::invalid("a process is named by `pid` or `tag`"),
    };
    RpcError::new(Code::NotFound, message)
}
