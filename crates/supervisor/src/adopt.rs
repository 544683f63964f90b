//! Adopts a tree that penfold did not start into a sandbox.
//!
//! ```text
//!  standby                  reparented to init; takes over if the supervisor is killed
//!    └─ adopted_supervisor  the supervisor: socket, lease, end
//!  root                     elsewhere in the host's process tree, with its descendants
//! ```
//! The members are not descendants of the supervisor. Their exit codes cannot be seen, and members that were reparented
//! before the adoption are not found.
//! - At level `cgroup` the leaf also holds every later fork of a member.
//! - At level `tree` the members are the processes found at the adoption, and their descendants at the end.

mod adopted_supervisor;
mod join;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use penfold_process::ProcessId;
use penfold_state::Spec;
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{ForkSide, fork, schedule};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, setsid};

use crate::environment::{self, InheritedSignals, StartPlace};
use crate::launcher::{InterruptMeaning, Launcher, LauncherSettings, LauncherSignals, SupervisorHandle};
use crate::outcome::Outcome;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::setup::Setup;
use crate::signals::CHILD;
use crate::standby;
use crate::start_error::StartError;
use crate::supervisor::{NAME, Standby};
use crate::wire::{self, Answer};

/// Adopts the tree of `root` into a detached sandbox. The command in `spec` is only displayed.
/// [`Launcher::wait_running`] reports whether the tree is supervised; if not, it was left unchanged.
///
/// # Errors
/// When the standby could not be created.
pub fn adopt_process_tree(spec: Spec, root: ProcessId) -> Result<Launcher, StartError> {
    let began = Instant::now();
    let child_ignored = signal::is_ignored(CHILD);
    if child_ignored {
        signal::set_default(CHILD);
    }
    let mask = signal::block_signals(&SignalSet::of(1..=64)).map_err(system("block signals"))?;
    let program = environment::build_program(
        &spec,
        &spec.command,
        StartPlace::default(),
        &InheritedSignals { mask, child_ignored },
    )?;
    let (own_end, other_end) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(system("make a socket pair"))?;
    let signals = LauncherSignals::open(&[]).map_err(system("make a signalfd"))?;
    let settings = settings_of(&spec);
    let setup = Setup {
        spec,
        program,
        stop_program: None,
        channel: other_end,
        launcher: None,
        owner: None,
        owner_pid: None,
        owner_id: None,
        own_session: true,
        session: penfold_sys::fork::own_session(),
        group: penfold_sys::fork::own_group(),
        keys: false,
        scope: None,
        caller_cgroup: Vec::new(),
        scratch: None,
        idle: schedule::is_idle(),
        began,
    };
    match fork().map_err(system("fork"))? {
        ForkSide::Child => {
            drop((own_end, signals, settings));
            run(setup, root)
        }
        ForkSide::Parent(pid) => {
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(system("open a pidfd"))?;
            Ok(Launcher::new(
                SupervisorHandle::Standby { pid, pidfd: Some(pidfd) },
                own_end,
                settings,
                signals,
            ))
        }
    }
}

fn settings_of(spec: &Spec) -> LauncherSettings {
    LauncherSettings {
        has_former: false,
        id: spec.id.short(),
        state_root: spec.state_root.clone(),
        patience: spec.patience,
        scope: None,
        terminal: None,
        watches_hangup: false,
        before: None,
        keys: InterruptMeaning::Stop,
        stdin: None,
    }
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System { act, source: source.into() }
}

/// Runs the standby until the sandbox is gone, then exits.
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
        SandboxParts::create(setup).map_or_else(|outcome| Some(*outcome), |parts| supervise(parts, root));
    if let (Some(outcome), Ok(channel)) = (outcome, channel) {
        let _ = wire::send_message(&channel, &Answer::Outcome(Box::new(outcome)));
    }
    penfold_sys::fork::exit_now(0)
}

/// Adopts the tree and forks the supervisor. Returns the outcome if the tree was not adopted.
fn supervise(mut parts: SandboxParts, root: ProcessId) -> Option<Outcome> {
    let joined = match join::adopt_tree(&mut parts, root) {
        Ok(joined) => joined,
        Err(reason) => return Some(parts.give_up(reason)),
    };
    penfold_sys::crash_point!("adopted");
    let pair = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|standby| Ok((standby, eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)));
    let (own, session_ready): (OwnedFd, OwnedFd) = match pair {
        Ok(pair) => pair,
        Err(error) => return Some(refuse(parts, &joined, format!("it cannot be watched: {error}"))),
    };
    match fork() {
        Ok(ForkSide::Child) => {
            adopted_supervisor::run_adopted_supervisor(parts, joined, Standby { pidfd: own, session_ready })
        }
        Ok(ForkSide::Parent(supervisor)) => {
            drop(own);
            parts.note_supervisor(supervisor);
            if let SandboxKind::Detached(detached) = &mut parts.kind {
                detached.output.close_copies();
            }
            standby::set_title(&parts.setup.spec);
            // Without a pidfd the supervisor is still known as a child, so the standby takes over and ends it.
            let killed = match pidfd_open(supervisor, PidfdFlags::empty()) {
                Ok(pidfd) => standby::watch_supervisor(supervisor, &pidfd, &session_ready),
                Err(_) => true,
            };
            if killed {
                adopted_supervisor::take_over(parts, joined);
            }
            None
        }
        Err(error) => Some(refuse(parts, &joined, format!("cannot fork: {error}"))),
    }
}

/// Gives up the adoption and moves the tree back.
fn refuse(mut parts: SandboxParts, joined: &join::AdoptedTree, reason: String) -> Outcome {
    join::move_back(&mut parts, joined);
    parts.give_up(reason)
}
