//! A process of its own between the launcher and the supervisor, where the launcher cannot be the standby subreaper: it has
//! children of its own, or is the init that all orphans of a container come to.

use std::os::fd::OwnedFd;

use penfold_state::Spec;
use penfold_sys::child::{self, Exit};
use penfold_sys::{Forked, fork, schedule};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, setsid};

use crate::poll::poll;
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::signals;
use crate::supervisor::{self, NAME, Standby};
use crate::wire::{self, Answer};

/// Runs the standby; ends when the sandbox is gone.
pub(crate) fn run(setup: Setup) -> ! {
    let mut channel = setup.channel.try_clone().ok();
    let _ = rustix::thread::set_name(NAME);
    if setup.spec.detach.is_some() {
        // Nothing of who started it is to be held open, or to reach it.
        let _ = setsid();
        let _ = penfold_sys::descriptors::drop_inherited();
    }
    // As the supervisor does.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let outcome = match rustix::process::set_child_subreaper(Some(getpid())) {
        Ok(()) => match Prepared::prepare(setup) {
            Ok(prepared) => supervise(prepared, &mut channel),
            Err(outcome) => Some(*outcome),
        },
        Err(_) => None,
    };
    if let (Some(outcome), Some(channel)) = (outcome, channel) {
        // A launcher that is gone is told nothing.
        let _ = wire::send(&channel, &Answer::Outcome(Box::new(outcome)));
    }
    penfold_sys::fork::exit_now(0)
}

/// Forks the supervisor and watches it. Gives the outcome where there is none.
fn supervise(mut prepared: Prepared, channel: &mut Option<OwnedFd>) -> Option<crate::outcome::Outcome> {
    let pair = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|standby| Ok((standby, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)));
    let (standby, apart) = match pair {
        Ok(pair) => pair,
        Err(error) => return Some(prepared.give_up(format!("cannot be watched: {error}"))),
    };
    match fork() {
        Ok(Forked::Child) => {
            drop(channel.take());
            supervisor::run(prepared, Some(Standby { pidfd: standby, apart }))
        }
        Ok(Forked::Parent(supervisor)) => {
            if prepared.setup.idle {
                schedule::leave_idle();
            }
            drop(standby);
            let Ok(pidfd) = pidfd_open(supervisor, PidfdFlags::empty()) else {
                return Some(prepared.give_up("the supervisor cannot be watched".to_owned()));
            };
            if let Some(detached) = &mut prepared.detached {
                detached.output.close_copies();
            }
            set_title(&prepared.setup.spec);
            if !watch(supervisor, &pidfd, &apart) {
                // With all that it holds: whose lock is free is gone.
                penfold_sys::fork::exit_now(0);
            }
            supervisor::carry_on(prepared)
        }
        Err(error) => Some(prepared.give_up(format!("cannot fork: {error}"))),
    }
}

/// Names this process after its sandbox.
pub(crate) fn set_title(spec: &Spec) {
    let id = spec.id.short();
    let words = ["standby", id.as_str(), spec.name.as_deref().unwrap_or_default()];
    penfold_sys::title::set(NAME, words.get(..2 + usize::from(spec.name.is_some())).unwrap_or_default());
}

/// Waits for the supervisor to exit. True if it was killed, or cannot be seen.
pub(crate) fn watch(supervisor: Pid, pidfd: &OwnedFd, apart: &OwnedFd) -> bool {
    penfold_sys::crash_point!("standby-forked");
    // Fails only if this were a group leader, which a fresh fork is not.
    let _ = setsid();
    if rustix::io::write(apart, &1_u64.to_ne_bytes()).is_err() {
        // The supervisor would wait for that word; the death of this process it hears of, and ends the sandbox.
        penfold_sys::fork::exit_now(1);
    }
    let _ = penfold_sys::descriptors::drop_inherited();
    penfold_sys::memory::drop_text_pages();
    let opened = signals::open();
    loop {
        // It alone: who else comes to us is its orphan, and is not reaped before it is known how that ended.
        match child::reap(supervisor) {
            Ok(Some(exit)) => return exit != Exit::Code(0),
            Err(_) => return true,
            Ok(None) => {
                let Ok(signals) = &opened else { return true };
                let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], None);
                signals::pass_on_wishes(signals, pidfd);
                // It may have been stopped by the command, which is told like a death.
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
            }
        }
    }
}
