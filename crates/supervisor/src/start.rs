//! Starts a sandbox from a spec.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use penfold_process::{ProcFs, ProcessId};
use penfold_state::{Contain, OwnerExit, ScopeDir, Spec};
use penfold_sys::child::{self, PeekResult};
use penfold_sys::launch::{IpcEntry, Program};
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{ForkSide, fork, schedule};
use penfold_teardown::Resource as _;
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, waitpid};

use crate::environment::{self, InheritedSignals, StartPlace};
use crate::launcher::{
    InterruptMeaning, Launcher, LauncherSettings, LauncherSignals, StdinWatch, SupervisorHandle,
    watches_hangup,
};
use crate::sandbox_parts::SandboxParts;
use crate::scope::{ScopeEntry, ScopeGate};
use crate::setup::Setup;
use crate::signals::CHILD;
use crate::start_error::StartError;
use crate::takeover::give_up_started;
use crate::terminal::of_caller::{CallerTerminal, open_terminal};
use crate::{identity, standby, supervisor};

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System { act, source: source.into() }
}

/// Starts a sandbox. Makes this process a subreaper and blocks the signals that [`Launcher::wait`] handles.
///
/// # Errors
/// When nothing was started. A later failure, such as a missing command, is in the outcome.
pub fn start_sandbox(spec: Spec) -> Result<Launcher, StartError> {
    begin(spec, None)
}

/// Starts a sandbox whose processes are in a scope of their own, which a service manager makes.
///
/// `enter` gets the pid of the standby, a child that waits, and asks the manager to move it. The launcher stays in its own cgroup,
/// so that it can see the scope removed at the end.
///
/// # Errors
/// As [`start_sandbox`], and [`StartError::NoScope`] if `enter` refuses.
pub fn start_in_scope(spec: Spec, enter: &mut dyn FnMut(Pid) -> ScopeEntry) -> Result<Launcher, StartError> {
    begin(spec, Some(enter))
}

fn begin(mut spec: Spec, enter: Option<&mut dyn FnMut(Pid) -> ScopeEntry>) -> Result<Launcher, StartError> {
    let began = Instant::now();
    let child_ignored = signal::is_ignored(CHILD);
    if child_ignored {
        signal::set_default(CHILD);
    }
    // Signals to the process group also reach the forks of this process until each fork has a session of its own.
    let mask = signal::block_signals(&SignalSet::of(1..=64)).map_err(system("block signals"))?;
    let inherited = InheritedSignals { mask, child_ignored };
    let scratch = spec.scratch.as_ref().map(|asked| asked.path_for(&spec.id.short()));
    let (program, stop_program) = programs(&mut spec, scratch.as_deref(), &inherited)?;
    let (own_end, other_end) = channel()?;
    let launcher = pidfd_open(getpid(), PidfdFlags::empty()).map_err(system("open a pidfd"))?;
    let detached = spec.detach.is_some();
    let settings = settings_of(&spec, open_terminal());
    let has_keys = settings.terminal.is_some() && !detached;
    let idle = schedule::is_idle();
    let signals = LauncherSignals::open(&[]).map_err(system("make a signalfd"))?;
    let (owner, owner_pid) = owner_of(&spec)?.unzip();
    let setup = Setup {
        spec,
        program,
        stop_program,
        channel: other_end,
        launcher: Some(launcher),
        owner,
        owner_pid,
        owner_id: if detached { parent_id() } else { None },
        own_session: detached,
        session: penfold_sys::fork::own_session(),
        group: penfold_sys::fork::own_group(),
        keys: has_keys,
        scope: None,
        caller_cgroup: Vec::new(),
        scratch,
        idle,
        began,
    };
    // A child that exists before the fork is not a member, so the launcher could not treat all its children as members.
    let direct = !detached
        && enter.is_none()
        && !getpid().is_init()
        && matches!(child::peek_child(), Ok(PeekResult::NoChild));
    // Set before the fork: members whose supervisor dies are reparented to this process.
    rustix::process::set_child_subreaper(Some(getpid())).map_err(system("become a subreaper"))?;
    // After the fork no step may return an error: the sandbox would run without a launcher.
    let launcher = if direct {
        start_supervisor(setup, own_end, settings, signals)
    } else {
        start_standby(setup, own_end, settings, signals, enter)?
    };
    if idle {
        schedule::leave_idle();
    }
    Ok(launcher)
}

/// Returns the settings of the launcher, whose terminal this is.
fn settings_of(spec: &Spec, terminal: Option<OwnedFd>) -> LauncherSettings {
    let detached = spec.detach.is_some();
    let has_keys = terminal.is_some() && !detached;
    let keys =
        if detached || spec.stop_on_interrupt { InterruptMeaning::Stop } else { InterruptMeaning::Command };
    LauncherSettings {
        id: spec.id.short(),
        state_root: spec.state_root.clone(),
        patience: spec.patience,
        has_former: spec.detach.as_ref().is_some_and(|detach| detach.life.is_some()),
        scope: None,
        watches_hangup: has_keys && spec.on_owner_exit != OwnerExit::Keep && watches_hangup(),
        before: terminal.as_ref().filter(|_| !detached).and_then(CallerTerminal::of).map(Box::new),
        terminal,
        keys,
        stdin: spec.on_stdin_close.map(|action| Box::new(StdinWatch::new(action, spec.grace))),
    }
}

/// Makes the channel between launcher and supervisor.
fn channel() -> Result<(OwnedFd, OwnedFd), StartError> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("make a socket pair"))
}

/// Opens the caller, whose death is to be noticed; `None` if there is none.
///
/// # Errors
/// When the caller is no longer the process that the specification names.
fn owner_of(spec: &Spec) -> Result<Option<(OwnedFd, i32)>, StartError> {
    // With `OwnerExit::Keep` the owner's death changes nothing, so its pidfd is not polled.
    let keeps = spec.on_owner_exit == OwnerExit::Keep;
    let owner = if keeps { None } else { owner() };
    match spec.owner {
        Some(expected) if !(keeps || owner.is_some()) || getppid() != Some(expected) => {
            Err(StartError::OwnerGone { pid: expected.as_raw_pid() })
        }
        _ => Ok(owner),
    }
}

/// Prepares the command, and the stop command if there is one.
fn programs(
    spec: &mut Spec,
    scratch: Option<&Path>,
    inherited: &InheritedSignals,
) -> Result<(Program, Option<Program>), StartError> {
    let words = [spec.wrapper.as_slice(), &spec.command].concat();
    let mut program = environment::build_program(spec, &words, StartPlace::of(spec, scratch), inherited)?;
    let pipe = spec.detach.as_mut().and_then(|detach| detach.ready_pipe.as_mut());
    if let Some((write, number)) = pipe.and_then(|pipe| Some((pipe.write.take()?, pipe.number))) {
        program.descriptor(write, number);
    }
    let usual = InheritedSignals { mask: SignalSet::empty(), child_ignored: false };
    let stop_program = match spec.stop_command.as_slice() {
        [] => None,
        words => {
            let scratch = environment::scratch_of(scratch, spec.identity.as_ref());
            let place = match &spec.jail {
                None => StartPlace::of(spec, scratch.as_deref()),
                Some(jail) => StartPlace::in_jail(jail, None, scratch.as_deref()),
            };
            let mut program = environment::build_program(spec, words, place, &usual)?;
            if let Some(identity) = &spec.identity {
                identity::set_user(&mut program, identity).map_err(StartError::NoUser)?;
            }
            Some(program)
        }
    };
    let mut programs = (program, stop_program);
    if spec.has_own_ipc() && spec.contain != Contain::Pidns {
        let ipc = IpcEntry::default();
        programs.1.as_mut().map(|stop_program| stop_program.enter_ipc(ipc.clone()));
        programs.0.enter_ipc(ipc);
    }
    Ok(programs)
}

/// Forks the supervisor directly. Every later child of this process is a member, so the launcher itself is the second
/// subreaper.
fn start_supervisor(
    setup: Setup,
    own_end: OwnedFd,
    settings: LauncherSettings,
    signals: LauncherSignals,
) -> Launcher {
    let supervisor = match SandboxParts::create(setup) {
        Ok(parts) => match fork() {
            Ok(ForkSide::Child) => {
                drop((own_end, signals, settings));
                supervisor::run_supervisor(parts, None)
            }
            Ok(ForkSide::Parent(supervisor)) => {
                penfold_sys::crash_point!("launcher-forked");
                match pidfd_open(supervisor, PidfdFlags::empty()) {
                    Ok(pidfd) => {
                        SupervisorHandle::Direct { pid: supervisor, pidfd, parts: Some(Box::new(parts)) }
                    }
                    Err(errno) => {
                        end_child(supervisor);
                        let reason = format!("the supervisor cannot be watched: {errno}");
                        SupervisorHandle::Refused(Box::new(give_up_started(parts, reason)))
                    }
                }
            }
            Err(error) => SupervisorHandle::Refused(Box::new(parts.give_up(format!("cannot fork: {error}")))),
        },
        Err(outcome) => SupervisorHandle::Refused(outcome),
    };
    Launcher::new(supervisor, own_end, settings, signals)
}

/// Kills and reaps a child of this process.
#[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
fn end_child(pid: Pid) {
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
}

fn start_standby(
    setup: Setup,
    own_end: OwnedFd,
    mut settings: LauncherSettings,
    signals: LauncherSignals,
    enter: Option<&mut dyn FnMut(Pid) -> ScopeEntry>,
) -> Result<Launcher, StartError> {
    let gate = enter.as_ref().map(|_| ScopeGate::create()).transpose().map_err(system("make a pipe"))?;
    match fork().map_err(system("fork"))? {
        ForkSide::Child => {
            drop((own_end, signals, settings));
            standby::run_standby(setup, gate)
        }
        ForkSide::Parent(standby) => {
            if let (Some(enter), Some(gate)) = (enter, gate) {
                let entered = enter(standby);
                if !gate.open(&entered) {
                    // It has created nothing.
                    end_child(standby);
                    if let Some(mut name) = setup.spec.claim {
                        let _ = name.release(false);
                    }
                    return Err(StartError::NoScope);
                }
                if let ScopeEntry::Scope(path) = entered {
                    settings.scope = ScopeDir::of(&path, &settings.id);
                }
            }
            let pidfd = pidfd_open(standby, PidfdFlags::empty()).ok();
            Ok(Launcher::new(SupervisorHandle::Standby { pid: standby, pidfd }, own_end, settings, signals))
        }
    }
}

/// Returns the identity of the parent of this process, for the record.
fn parent_id() -> Option<ProcessId> {
    let mut proc = ProcFs::open().ok()?;
    Some(proc.stat(getppid()?).ok()??.id())
}

/// Opens a pidfd of the parent of this process, and returns its pid. A parent outside of this pid namespace has no pid here and cannot be
/// watched.
fn owner() -> Option<(OwnedFd, i32)> {
    let parent = getppid()?;
    let owner = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    // If the parent died before `pidfd_open(2)`, its pid may belong to another process. A changed getppid(2) shows this.
    (getppid() == Some(parent)).then(|| (owner, parent.as_raw_nonzero().get()))
}
