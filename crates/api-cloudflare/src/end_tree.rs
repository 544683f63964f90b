//! Ends the tree of an exec: a polite signal to all of it, a grace, KILL, and an observed end.

use std::time::Duration;

use penfold_control::execs::{self, ExecEnd, ExecError};
use penfold_server::execs::{ExecEndOrder, FoundExec};
use penfold_state::error_chain;
use penfold_teardown::Survivor;
use rustix::process::Signal;

/// The time between the polite signal and KILL, also for an exec that its sandbox ends.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// The time for a verified end: the grace, the patience of the sandbox, and a moment for the answer.
const PATIENCE: Duration = Duration::from_millis(5000 + 5000 + 1500);

/// The result of ending a tree.
#[derive(Debug)]
pub(crate) enum TreeEnd {
    /// All of it was observed gone.
    Gone,
    /// These are left. Without any, its end could not be observed.
    Left(Vec<Survivor>),
    /// The order failed, for this reason.
    Failed(String),
}

/// Ends a tree with this signal and a grace, or with KILL at once, and waits for its end.
pub(crate) fn end_tree(exec: &FoundExec, signal: i32) -> TreeEnd {
    let order = if signal == Signal::KILL.as_raw() {
        ExecEndOrder::Kill { patience: PATIENCE }
    } else {
        ExecEndOrder::Stop { signal: Some(signal), grace: Some(GRACE), patience: PATIENCE }
    };
    judge_end(exec, order.carry_out(exec))
}

/// Ends trees of one sandbox at the same time, on one connection to its supervisor.
pub(crate) fn end_trees(execs: &[&FoundExec], signal: i32) -> Vec<TreeEnd> {
    let Some(first) = execs.first() else { return Vec::new() };
    let numbers: Vec<u32> = execs.iter().map(|exec| exec.view.number).collect();
    let ends = execs::stop_all(&first.files, &numbers, Some(signal), Some(GRACE), PATIENCE);
    execs.iter().zip(ends).map(|(exec, ended)| judge_end(exec, ended)).collect()
}

fn judge_end(exec: &FoundExec, ended: Result<ExecEnd, ExecError>) -> TreeEnd {
    match ended {
        Ok(ExecEnd { remaining, .. }) if remaining.is_empty() => TreeEnd::Gone,
        Ok(ExecEnd { remaining, .. }) => TreeEnd::Left(remaining),
        // Its session was deleted meanwhile, and that verified its end.
        Err(ExecError::NotFound { .. }) => TreeEnd::Gone,
        Err(error) if execs::has_ended(&exec.files, exec.view.number) => {
            tracing::debug!(sandbox = exec.files.name(), exec = exec.view.number, %error, "an exec ended by itself");
            TreeEnd::Gone
        }
        Err(ExecError::Unverified { .. }) => TreeEnd::Left(Vec::new()),
        Err(error) => TreeEnd::Failed(error_chain(&error)),
    }
}
