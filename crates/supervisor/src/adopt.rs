//! A sandbox around a tree that penfold did not start.
//!
//! ```text
//!  standby            reparented to init; takes over if the supervisor is killed
//!    └─ adopted_supervisor        the supervisor: socket, lease, end
//!  root               somewhere else in the tree of the host, with all that it started
//! ```
//! The members are no descendants of ours, so that no exit code of theirs can be settings, and who was lost by its parent before
//! the adoption is not found. At level `cgroup` the leaf holds whatever is forked from then on. At level `tree` members are
//! those that were seen then, and whatever descends from them at the end.

mod adopted_supervisor;
mod join;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use penfold_process::ProcessId;
use penfold_state::Spec;
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{Forked, fork, schedule};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, setsid};

use crate::environment::{self, Inherited};
use crate::launcher::{Hearing, Keys, Launcher, Settings, SupervisorHandle};
use crate::outcome::Outcome;
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::signals::CHILD;
use crate::standby;
use crate::start_error::StartError;
use crate::supervisor::{NAME, Standby};
use crate::wire::{self, Answer};

/// Adopts the tree of `root` into a detached sandbox; its command is for people only. [`Launcher::wait_running`] tells when
/// it is looked after, or why it is not: then it was left as it was.
///
/// # Errors
/// When not even the processes of ours could be made.
pub fn adopt(spec: Spec, root: ProcessId) -> Result<Launcher, StartError> {
    let began = Instant::now();
    let child_ignored = signal::is_ignored(CHILD);
    if child_ignored {
        signal::set_default(CHILD);
    }
    let mask = signal::block(&SignalSet::of(1..=64)).map_err(system("block signals"))?;
    let program = environment::program(&spec, None, &Inherited { mask, child_ignored })?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(system("make a socket pair"))?;
    let hearing = Hearing::prepare(&[]).map_err(system("make a signalfd"))?;
    let settings = Settings {
        id: spec.id.short(),
        state_root: spec.state_root.clone(),
        patience: spec.patience,
        terminal: None,
        modes: None,
        keys: Keys::Stop,
    };
    let setup = Setup {
        spec,
        program,
        channel: theirs,
        launcher: None,
        owner: None,
        owner_id: None,
        apart: true,
        session: penfold_sys::fork::session(),
        group: penfold_sys::fork::group(),
        keys: false,
        scratch: None,
        idle: schedule::is_idle(),
        began,
    };
    match fork().map_err(system("fork"))? {
        Forked::Child => {
            drop((ours, hearing, settings));
            run(setup, root)
        }
        Forked::Parent(pid) => {
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(system("open a pidfd"))?;
            Ok(Launcher::new(SupervisorHandle::Standby { pid, pidfd: Some(pidfd) }, ours, settings, hearing))
        }
    }
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System { act, source: source.into() }
}

/// Runs the standby; ends when the sandbox is gone.
fn run(setup: Setup, root: ProcessId) -> ! {
    let channel = setup.channel.try_clone();
    let _ = rustix::thread::set_name(NAME);
    if setup.idle {
        schedule::leave_idle();
    }
    let _ = setsid();
    let _ = penfold_sys::descriptors::drop_inherited();
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let outcome =
        Prepared::prepare(setup).map_or_else(|outcome| Some(*outcome), |prepared| supervise(prepared, root));
    if let (Some(outcome), Ok(channel)) = (outcome, channel) {
        let _ = wire::send(&channel, &Answer::Outcome(Box::new(outcome)));
    }
    penfold_sys::fork::exit_now(0)
}

/// Takes the tree in and forks the supervisor. Gives the outcome of what was not taken in.
fn supervise(mut prepared: Prepared, root: ProcessId) -> Option<Outcome> {
    let joined = match join::take_in(&mut prepared, root) {
        Ok(joined) => joined,
        Err(reason) => return Some(prepared.give_up(reason)),
    };
    penfold_sys::crash_point!("adopted");
    let pair = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|standby| Ok((standby, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)));
    let (own, apart): (OwnedFd, OwnedFd) = match pair {
        Ok(pair) => pair,
        Err(error) => return Some(refuse(prepared, &joined, format!("it cannot be watched: {error}"))),
    };
    match fork() {
        Ok(Forked::Child) => adopted_supervisor::run(prepared, joined, Standby { pidfd: own, apart }),
        Ok(Forked::Parent(supervisor)) => {
            drop(own);
            if let Some(detached) = &mut prepared.detached {
                detached.output.close_copies();
            }
            standby::set_title(&prepared.setup.spec);
            // Without a handle it still shows as a child.
            let killed = match pidfd_open(supervisor, PidfdFlags::empty()) {
                Ok(pidfd) => standby::watch(supervisor, &pidfd, &apart),
                Err(_) => true,
            };
            if killed {
                adopted_supervisor::take_over(prepared, joined);
            }
            None
        }
        Err(error) => Some(refuse(prepared, &joined, format!("cannot fork: {error}"))),
    }
}

/// Lets the tree go as it was.
fn refuse(mut prepared: Prepared, joined: &join::Joined, reason: String) -> Outcome {
    join::let_out(&mut prepared, joined);
    prepared.give_up(reason)
}
