//! Runs the supervisor of an adopted tree.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use penfold_process::ProcFs;
use penfold_state::events::EventKind;
use penfold_state::state::Status;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, MemberScope, Search, Teardown};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getppid, setsid};

use super::join::AdoptedTree;
use crate::event_loop::{EventLoop, LeaderSource};
use crate::policy::LeaderKind;
use crate::poll::poll_or_pause;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::signals;
use crate::supervision::Supervision;
use crate::supervisor::{self, Standby, set_title};
use crate::wire::{self, Answer};

/// Runs the supervisor until the sandbox is gone, then exits.
pub(super) fn run_adopted_supervisor(mut parts: SandboxParts, joined: AdoptedTree, standby: Standby) -> ! {
    set_title(&parts.setup.spec);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let _ = setsid();
    let Ok(signals) = signals::open_signals() else {
        // The standby takes over.
        penfold_sys::fork::exit_now(1)
    };
    let mut fds =
        [PollFd::new(&standby.session_ready, PollFlags::IN), PollFd::new(&standby.pidfd, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll_or_pause(&mut fds, None));
    if let SandboxKind::Detached(detached) = &mut parts.kind {
        detached.mark_running();
    }
    let AdoptedTree { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut parts, search) else { penfold_sys::fork::exit_now(1) };
    teardown.lead_by(penfold_teardown::Leader { pid: root.pid, session: root.session });
    parts.leader.store_running(root.pid);
    parts.identify(&mut teardown, root.pid, getppid(), Status::Running);
    if let SandboxKind::Detached(detached) = &parts.kind {
        let command = parts.setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned());
        detached.publish_events([EventKind::Adopted {
            pid: root.pid.as_raw_nonzero().get(),
            command: command.collect(),
        }]);
    }
    penfold_sys::crash_point!("adopted-kept");
    wire::offer_once(&parts.setup.channel, &Answer::Running);
    penfold_sys::memory::drop_unneeded_pages();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    event_loop(parts, Some(signals), Some(standby.pidfd), pidfd).run(teardown, Phase::Running)
}

/// Takes over from a killed supervisor and ends the tree.
pub(super) fn take_over(mut parts: SandboxParts, joined: AdoptedTree) -> ! {
    penfold_sys::crash_point!("taking-over");
    // Any member may have written `exit.json`, so only the bit in the leader cell counts.
    let exited = parts.leader.is_exit_written();
    if let SandboxKind::Detached(detached) = &mut parts.kind {
        detached.inherit(exited);
    }
    let AdoptedTree { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut parts, search) else {
        // Without `/proc` no member is known to be gone: the record stays for the next command.
        penfold_sys::fork::exit_now(1)
    };
    teardown.lead_by(penfold_teardown::Leader { pid: root.pid, session: root.session });
    parts.identify(&mut teardown, root.pid, None, Status::Stopping);
    // Without a signalfd the teardown still progresses by its timeouts.
    let mut event_loop = event_loop(parts, signals::open_signals().ok(), None, pidfd);
    event_loop.due = event_loop.sandbox.decide(|policy| policy.kill(Cause::Supervisor));
    event_loop.run(teardown, Phase::Running)
}

fn teardown(parts: &mut SandboxParts, search: Search) -> Option<Teardown> {
    let proc = parts.proc.take().map_or_else(ProcFs::open, Ok).ok()?;
    let mut teardown = Teardown::new(proc, parts.leaf.take(), MemberScope::Host(Box::new(search)));
    teardown.want_details();
    Some(teardown)
}

fn event_loop(
    parts: SandboxParts,
    signals: Option<SignalFd>,
    standby: Option<OwnedFd>,
    root: OwnedFd,
) -> EventLoop {
    let sandbox = Supervision::new(parts, LeaderKind::Adopted, signals, Some(root), supervisor::run_exec);
    EventLoop::new(sandbox, LeaderSource::Adopted { lives: true }, standby, Phase::Running)
}
