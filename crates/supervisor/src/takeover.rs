//! Ends a sandbox in a process that does not supervise it further: in the launcher, after the supervisor was killed.

use penfold_process::ProcFs;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Leader, Level, MemberScope, drive_teardown};

use crate::immediate_kill::ImmediateKill;
use crate::outcome::{ExitStatus, Outcome, StartFailure};
use crate::sandbox_parts::SandboxParts;

/// Ends the sandbox; all children of this process are its members now. Survivors are reported when the patience is
/// over.
pub(crate) fn take_over(parts: SandboxParts) -> Outcome {
    penfold_sys::crash_point!("taking-over");
    end(parts, Cause::Supervisor, None)
}

/// Ends a sandbox whose supervisor was killed before the launcher could watch it.
pub(crate) fn give_up_started(parts: SandboxParts, reason: String) -> Outcome {
    end(parts, Cause::StartFailed, Some(StartFailure::Other(reason)))
}

fn end(mut parts: SandboxParts, cause: Cause, failure: Option<StartFailure>) -> Outcome {
    let proc = match parts.proc.take().map_or_else(ProcFs::open, Ok) {
        Ok(proc) => proc,
        Err(error) => return parts.give_up(format!("cannot read /proc: {error}")),
    };
    let mut teardown = parts.teardown(proc, MemberScope::Children);
    match parts.leader.load() {
        // At level pidns the stored pid is our init's. The leader dies with our init when this process kills it.
        Some((pid, _)) if parts.level == Level::Pidns => teardown.led_by_init(pid),
        Some((pid, _)) => teardown.lead_by(Leader { pid, session: parts.session_of(pid) }),
        None => {}
    }
    if parts.setup.spec.report.is_some() {
        teardown.want_details();
    }
    let mut resources = std::mem::take(&mut parts.resources);
    let mut host = ImmediateKill::new(parts.stop_policy());
    let findings = drive_teardown(&mut teardown, Phase::Running, &mut host, &mut resources);
    let exit = teardown.leader_exit().map(ExitStatus::from).filter(|_| failure.is_none());
    let report = parts.report(cause, exit, failure, findings);
    let outcome = parts.conclude(&report);
    parts.count(&report);
    parts.keep(&report);
    outcome
}
