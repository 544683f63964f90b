//! Runs the standby: a process between launcher and supervisor. It is needed if the launcher cannot be the second
//! subreaper: because it has children of its own, or is the init of a container that adopts all orphans.

use std::os::fd::OwnedFd;

use penfold_state::Spec;
use penfold_sys::child::{self, Exit};
use penfold_sys::{ForkSide, fork, schedule};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, setsid};

use crate::poll::poll_or_pause;
use crate::restart;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::scope::{self, ScopeGate};
use crate::setup::Setup;
use crate::signals;
use crate::supervisor::{self, NAME, Standby};
use crate::wire::{self, Answer};

/// Runs the standby until the sandbox is gone, then exits. With a gate, it first waits to be moved into a scope.
pub(crate) fn run_standby(mut setup: Setup, gate: Option<ScopeGate>) -> ! {
    if let Some(gate) = gate {
        // Here, this process is still in the cgroup of the caller.
        let spec = &setup.spec;
        if !spec.limits.is_empty() || !spec.spare.is_empty() || spec.allow_outside {
            setup.caller_cgroup = std::fs::read("/proc/self/cgroup").unwrap_or_default();
        }
        match gate.pass() {
            Some(true) => setup.scope = scope::enter_own_cgroup(&setup.spec.id.short()),
            Some(false) => {}
            None => penfold_sys::fork::exit_now(0),
        }
    }
    let mut channel = setup.channel.try_clone().ok();
    let _ = rustix::thread::set_name(NAME);
    if setup.spec.detach.is_some() {
        // The standby leaves the caller's session and closes the caller's descriptors.
        let _ = setsid();
        let _ = penfold_sys::descriptors::drop_inherited();
    }
    // If the command stops this process, the death of its parent continues it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let outcome = match rustix::process::set_child_subreaper(Some(getpid())) {
        Ok(()) => match SandboxParts::create(setup) {
            Ok(parts) => supervise(parts, &mut channel),
            Err(outcome) => Some(*outcome),
        },
        Err(_) => None,
    };
    if let (Some(outcome), Some(channel)) = (outcome, channel) {
        // The send fails if the launcher is dead.
        let _ = wire::send_message(&channel, &Answer::Outcome(Box::new(outcome)));
    }
    penfold_sys::fork::exit_now(0)
}

/// Forks the supervisor and watches it. Returns the outcome if there is no supervisor.
fn supervise(mut parts: SandboxParts, channel: &mut Option<OwnedFd>) -> Option<crate::outcome::Outcome> {
    let pair = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|standby| Ok((standby, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)));
    let (standby, session_ready) = match pair {
        Ok(pair) => pair,
        Err(error) => return Some(parts.give_up(format!("cannot be watched: {error}"))),
    };
    match fork() {
        Ok(ForkSide::Child) => {
            drop(channel.take());
            supervisor::run_supervisor(parts, Some(Standby { pidfd: standby, session_ready }))
        }
        Ok(ForkSide::Parent(supervisor)) => {
            if parts.setup.idle {
                schedule::leave_idle();
            }
            drop(standby);
            parts.note_supervisor(supervisor);
            let Ok(pidfd) = pidfd_open(supervisor, PidfdFlags::empty()) else {
                return Some(parts.give_up("the supervisor cannot be watched".to_owned()));
            };
            if let SandboxKind::Detached(detached) = &mut parts.kind {
                detached.output.close_copies();
            }
            // As long as a copy is open here, the reader of a descriptor sees no EOF.
            parts.setup.program.close_given();
            let keeps = parts.setup.spec.detach.as_ref().is_some_and(|detach| detach.keep);
            if let Some(ipc) = parts.setup.program.ipc().filter(|_| !keeps) {
                ipc.close();
            }
            set_title(&parts.setup.spec);
            if !watch_supervisor(supervisor, &pidfd, &session_ready) {
                restart::begin_next_life(&parts);
                // Exits with all descriptors at once: a free lock then means that the sandbox is gone.
                penfold_sys::fork::exit_now(0);
            }
            supervisor::run_takeover(parts)
        }
        Err(error) => Some(parts.give_up(format!("cannot fork: {error}"))),
    }
}

/// Sets the process title to the role and the sandbox's id and name.
pub(crate) fn set_title(spec: &Spec) {
    let id = spec.id.short();
    let words = ["standby", id.as_str(), spec.name.as_deref().unwrap_or_default()];
    penfold_sys::title::set_title(
        NAME,
        words.get(..2 + usize::from(spec.name.is_some())).unwrap_or_default(),
    );
}

/// Waits for the supervisor's exit. True if the supervisor was killed or cannot be watched.
pub(crate) fn watch_supervisor(supervisor: Pid, pidfd: &OwnedFd, session_ready: &OwnedFd) -> bool {
    penfold_sys::crash_point!("standby-forked");
    // setsid(2) fails only for a group leader, and a new fork is none.
    let _ = setsid();
    if rustix::io::write(session_ready, &1_u64.to_ne_bytes()).is_err() {
        // The supervisor waits for this eventfd. It sees the exit of this process by pidfd, and ends the sandbox.
        penfold_sys::fork::exit_now(1);
    }
    let _ = penfold_sys::descriptors::drop_inherited();
    penfold_sys::memory::drop_unneeded_pages();
    let opened = signals::open_signals();
    loop {
        // Only the supervisor is reaped. An orphan may be the leader, whose exit a takeover needs: no orphan is reaped
        // before the supervisor's exit is known.
        match child::reap_child(supervisor) {
            Ok(Some(exit)) => return exit != Exit::Code(0),
            Err(_) => return true,
            Ok(None) => {
                let Ok(signals) = &opened else { return true };
                let _ = poll_or_pause(&mut [PollFd::new(signals, PollFlags::IN)], None);
                signals::forward_term(signals, pidfd);
                // The command may have stopped the supervisor. SIGCHLD reports a stop like an exit.
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
            }
        }
    }
}
