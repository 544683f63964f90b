//! Runs the supervisor of an adopted tree.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use penfold_process::ProcFs;
use penfold_state::events::EventKind;
use penfold_state::state::Status;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Cause, Scope, Search, Teardown};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getppid, setsid};

use super::join::Joined;
use crate::host::{Host, Leader};
use crate::policy::LeaderKind;
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::signals;
use crate::supervised::Supervised;
use crate::supervisor::{self, Standby, set_title};
use crate::wire::{self, Answer};

/// Runs the supervisor until the sandbox is gone, then exits.
pub(super) fn run(mut prepared: Prepared, joined: Joined, standby: Standby) -> ! {
    set_title(&prepared.setup.spec);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let _ = setsid();
    let Ok(signals) = signals::open() else {
        // The standby takes over.
        penfold_sys::fork::exit_now(1)
    };
    let mut fds =
        [PollFd::new(&standby.session_ready, PollFlags::IN), PollFd::new(&standby.pidfd, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
    if let Some(detached) = &mut prepared.detached {
        detached.mark_running();
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut prepared, search) else { penfold_sys::fork::exit_now(1) };
    teardown.lead_by(penfold_teardown::Leader { pid: root.pid, session: root.session });
    prepared.leader.store_running(root.pid);
    prepared.identify(&mut teardown, root.pid, getppid(), Status::Running);
    if let Some(detached) = &prepared.detached {
        let command = prepared.setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned());
        detached.publish_events([EventKind::Adopted {
            pid: root.pid.as_raw_nonzero().get(),
            command: command.collect(),
        }]);
    }
    penfold_sys::crash_point!("adopted-kept");
    wire::offer_once(&prepared.setup.channel, &Answer::Running);
    penfold_sys::memory::drop_unneeded_pages();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    host(prepared, Some(signals), Some(standby.pidfd), pidfd).run(teardown, Phase::Running)
}

/// Takes over from a killed supervisor and ends the tree.
pub(super) fn take_over(mut prepared: Prepared, joined: Joined) -> ! {
    penfold_sys::crash_point!("taking-over");
    // Any member may have written `exit.json`, so only the bit in the leader cell counts.
    let exited = prepared.leader.is_exit_written();
    if let Some(detached) = &mut prepared.detached {
        detached.inherit(exited);
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut prepared, search) else {
        // Without `/proc` no member is known to be gone: the record stays for the next command.
        penfold_sys::fork::exit_now(1)
    };
    teardown.lead_by(penfold_teardown::Leader { pid: root.pid, session: root.session });
    prepared.identify(&mut teardown, root.pid, None, Status::Stopping);
    // Without a signalfd the teardown still progresses by its timeouts.
    let mut host = host(prepared, signals::open().ok(), None, pidfd);
    host.due = host.sandbox.decide(|policy| policy.kill(Cause::Supervisor));
    host.run(teardown, Phase::Running)
}

fn teardown(prepared: &mut Prepared, search: Search) -> Option<Teardown> {
    let proc = prepared.proc.take().map_or_else(ProcFs::open, Ok).ok()?;
    let mut teardown = Teardown::new(proc, prepared.leaf.take(), Scope::Host(Box::new(search)));
    teardown.want_details();
    Some(teardown)
}

fn host(prepared: Prepared, signals: Option<SignalFd>, standby: Option<OwnedFd>, root: OwnedFd) -> Host {
    let sandbox = Supervised::new(prepared, LeaderKind::Adopted, signals, Some(root), supervisor::run_exec);
    Host::new(sandbox, Leader::Adopted { lives: true }, standby, Phase::Running)
}
