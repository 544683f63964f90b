//! The end of a sandbox by a process that does not stay to look after it: its front, once the supervisor was killed.

use penfold_process::ProcFs;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Leader, Level, Scope, Teardown, drive};

use crate::held::Held;
use crate::immediate_kill::ImmediateKill;
use crate::outcome::{Outcome, StartFailure, Status};

/// Ends the sandbox: all children of this process are its members now. What is left when the patience is over is named.
pub(crate) fn take_over(held: Held) -> Outcome {
    penfold_sys::crash_point!("taking-over");
    end(held, Cause::Supervisor, None)
}

/// Ends a sandbox whose supervisor was killed before its end could be waited for.
pub(crate) fn give_up_started(held: Held, reason: String) -> Outcome {
    end(held, Cause::StartFailed, Some(StartFailure::Other(reason)))
}

fn end(mut held: Held, cause: Cause, failure: Option<StartFailure>) -> Outcome {
    let proc = match held.proc.take().map_or_else(ProcFs::open, Ok) {
        Ok(proc) => proc,
        Err(error) => return held.give_up(format!("cannot read /proc: {error}")),
    };
    let mut teardown = Teardown::new(proc, held.leaf.take(), Scope::Children);
    match held.noted_leader() {
        // What was noted is our init, whose end by our hand is the leader's.
        Some((pid, _)) if held.level == Level::Pidns => teardown.kept_by(pid),
        Some((pid, _)) => teardown.lead_by(Leader { pid, session: held.session_of(pid) }),
        None => {}
    }
    if held.setup.spec.report.is_some() {
        teardown.want_details();
    }
    let mut resources = std::mem::take(&mut held.resources);
    let mut host = ImmediateKill::new(held.ladder());
    let findings = drive(&mut teardown, Phase::Running, &mut host, &mut resources);
    let exit = teardown.leader_exit().map(Status::from).filter(|_| failure.is_none());
    let report = held.report(cause, exit, failure, findings);
    held.conclude(&report)
}
