//! Ends a sandbox in a process that does not supervise it further: in the launcher, after the supervisor was killed.

use penfold_process::ProcFs;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Leader, Level, Scope, drive};

use crate::immediate_kill::ImmediateKill;
use crate::outcome::{ExitStatus, Outcome, StartFailure};
use crate::prepared::Prepared;

/// Ends the sandbox; all children of this process are its members now. Survivors are reported when the patience is
/// over.
pub(crate) fn take_over(prepared: Prepared) -> Outcome {
    penfold_sys::crash_point!("taking-over");
    end(prepared, Cause::Supervisor, None)
}

/// Ends a sandbox whose supervisor was killed before the launcher could watch it.
pub(crate) fn give_up_started(prepared: Prepared, reason: String) -> Outcome {
    end(prepared, Cause::StartFailed, Some(StartFailure::Other(reason)))
}

fn end(mut prepared: Prepared, cause: Cause, failure: Option<StartFailure>) -> Outcome {
    let proc = match prepared.proc.take().map_or_else(ProcFs::open, Ok) {
        Ok(proc) => proc,
        Err(error) => return prepared.give_up(format!("cannot read /proc: {error}")),
    };
    let mut teardown = prepared.teardown(proc, Scope::Children);
    match prepared.leader.load() {
        // At level pidns the stored pid is our init's. The leader dies with our init when this process kills it.
        Some((pid, _)) if prepared.level == Level::Pidns => teardown.led_by_init(pid),
        Some((pid, _)) => teardown.lead_by(Leader { pid, session: prepared.session_of(pid) }),
        None => {}
    }
    if prepared.setup.spec.report.is_some() {
        teardown.want_details();
    }
    let mut resources = std::mem::take(&mut prepared.resources);
    let mut host = ImmediateKill::new(prepared.stop_policy());
    let findings = drive(&mut teardown, Phase::Running, &mut host, &mut resources);
    let exit = teardown.leader_exit().map(ExitStatus::from).filter(|_| failure.is_none());
    let report = prepared.report(cause, exit, failure, findings);
    let outcome = prepared.conclude(&report);
    prepared.count(&report, false);
    prepared.keep(&report);
    outcome
}
