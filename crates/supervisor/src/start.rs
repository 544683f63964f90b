//! From a spec to a running sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use penfold_process::{ProcFs, ProcessId};
use penfold_state::{OwnerExit, Scratch, Spec};
use penfold_sys::child::{self, Peek};
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{Forked, fork, schedule};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, waitpid};

use crate::environment::{self, Inherited};
use crate::launcher::{Hearing, Keys, Launcher, SavedModes, Settings, SupervisorHandle, terminal};
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::signals::CHILD;
use crate::start_error::StartError;
use crate::takeover::give_up_started;
use crate::{standby, supervisor};

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System { act, source: source.into() }
}

/// Starts a sandbox. From here on this process is a subreaper and blocks the signals that [`Launcher::wait`] handles.
///
/// # Errors
/// When nothing was started. What fails later, the command missing for one, is in the outcome.
pub fn start(spec: Spec) -> Result<Launcher, StartError> {
    let began = Instant::now();
    let child_ignored = signal::is_ignored(CHILD);
    if child_ignored {
        signal::set_default(CHILD);
    }
    // Nothing may reach the copies of this process: they share its group until each has a session of its own.
    let mask = signal::block(&SignalSet::of(1..=64)).map_err(system("block signals"))?;
    let inherited = Inherited { mask, child_ignored };
    let scratch = spec.scratch_in.as_deref().map(|base| Scratch::path_for(base, &spec.id.short()));
    let program = environment::program(&spec, scratch.as_deref(), &inherited)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(system("make a socket pair"))?;
    let launcher = pidfd_open(getpid(), PidfdFlags::empty()).map_err(system("open a pidfd"))?;
    let session = penfold_sys::fork::session();
    let detached = spec.detach.is_some();
    let terminal = terminal();
    let keys = if detached || spec.stop_on_interrupt { Keys::Stop } else { Keys::Command };
    let has_keys = terminal.is_some() && !detached;
    let settings = Settings {
        id: spec.id.short(),
        state_root: spec.state_root.clone(),
        patience: spec.patience,
        modes: terminal.as_ref().filter(|_| !detached).and_then(SavedModes::of).map(Box::new),
        terminal,
        keys,
    };
    let spec_keeps = spec.on_owner_exit == OwnerExit::Keep;
    let idle = schedule::is_idle();
    let hearing = Hearing::prepare(&[]).map_err(system("make a signalfd"))?;
    let owner_id = if detached { parent_id() } else { None };
    // Whose death changes nothing is not watched.
    let owner = if spec_keeps { None } else { owner() };
    let setup = Setup {
        spec,
        program,
        channel: theirs,
        launcher: Some(launcher),
        owner,
        owner_id,
        apart: detached,
        session,
        group: penfold_sys::fork::group(),
        keys: has_keys,
        scratch,
        idle,
        began,
    };
    // Before the fork: members that lose their supervisors come to us.
    let alone = !detached && !getpid().is_init() && matches!(child::peek(), Ok(Peek::NoChild));
    rustix::process::set_child_subreaper(Some(getpid())).map_err(system("become a subreaper"))?;
    // From the fork on nothing may fail that would leave the sandbox alone.
    let launcher = if alone {
        start_supervisor(setup, ours, settings, hearing)
    } else {
        start_standby(setup, ours, settings, hearing)?
    };
    if idle {
        schedule::leave_idle();
    }
    Ok(launcher)
}

/// Every child of this process will be the sandbox's: it can be the standby subreaper itself.
fn start_supervisor(setup: Setup, ours: OwnedFd, settings: Settings, hearing: Hearing) -> Launcher {
    let supervisor = match Prepared::prepare(setup) {
        Ok(prepared) => match fork() {
            Ok(Forked::Child) => {
                drop((ours, hearing, settings));
                supervisor::run(prepared, None)
            }
            Ok(Forked::Parent(supervisor)) => {
                penfold_sys::crash_point!("launcher-forked");
                match pidfd_open(supervisor, PidfdFlags::empty()) {
                    Ok(pidfd) => SupervisorHandle::Direct {
                        pid: supervisor,
                        pidfd,
                        prepared: Some(Box::new(prepared)),
                    },
                    Err(errno) => {
                        end_child(supervisor);
                        let reason = format!("the supervisor cannot be watched: {errno}");
                        SupervisorHandle::Refused(Box::new(give_up_started(prepared, reason)))
                    }
                }
            }
            Err(error) => {
                SupervisorHandle::Refused(Box::new(prepared.give_up(format!("cannot fork: {error}"))))
            }
        },
        Err(outcome) => SupervisorHandle::Refused(outcome),
    };
    Launcher::new(supervisor, ours, settings, hearing)
}

/// Kills and reaps a child of this process.
#[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
fn end_child(pid: Pid) {
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
}

fn start_standby(
    setup: Setup,
    ours: OwnedFd,
    settings: Settings,
    hearing: Hearing,
) -> Result<Launcher, StartError> {
    match fork().map_err(system("fork"))? {
        Forked::Child => {
            drop((ours, hearing, settings));
            standby::run(setup)
        }
        Forked::Parent(standby) => {
            let pidfd = pidfd_open(standby, PidfdFlags::empty()).ok();
            Ok(Launcher::new(SupervisorHandle::Standby { pid: standby, pidfd }, ours, settings, hearing))
        }
    }
}

/// Who started this process, to be written down.
fn parent_id() -> Option<ProcessId> {
    let mut proc = ProcFs::open().ok()?;
    Some(proc.stat(getppid()?).ok()??.id())
}

/// Who started this process. One that is outside of this pid namespace cannot be settings to die.
fn owner() -> Option<OwnedFd> {
    let parent = getppid()?;
    let owner = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    // If it died in between, the number may be another's; then there is a new parent, which did not start us.
    (getppid() == Some(parent)).then_some(owner)
}
