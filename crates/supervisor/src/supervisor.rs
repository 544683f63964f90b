//! Runs the supervisor: starts the leader, waits, and ends the sandbox.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use penfold_process::{Pid, ProcFs, Process};
use penfold_state::state::Status;
use penfold_state::{Contain, Spec};
use penfold_sys::schedule;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::{LifecycleEvent, Phase};
use penfold_teardown::{Cause, Completion, Level, MemberScope, Teardown};
use rustix::process::{Signal, getpid, setsid};

use crate::event_loop::{EventLoop, LeaderSource};
use crate::jail::{JailLeader, find_jail};
use crate::launch::{self, Interruption, JoinMethod, LaunchWatch, PendingLeader, ReleaseError};
use crate::outcome::StartFailure;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::setup::Setup;
use crate::signals;
use crate::supervision::Supervision;
use crate::wire::{self, Answer};

/// The standby, seen from its child, the supervisor.
pub(crate) struct Standby {
    pub(crate) pidfd: OwnedFd,
    /// An eventfd, readable once the standby has a session of its own.
    pub(crate) session_ready: OwnedFd,
}

/// The process name of launcher and standby, independent of the program's file name. `doctor` searches for it.
pub(crate) const NAME: &std::ffi::CStr = c"penfold";
/// The process name of the supervisor. `pkill` with one name, or with a word of the command line, misses one of the two
/// processes.
pub(crate) const SUPERVISOR: &std::ffi::CStr = c"pf-supervisor";

/// Sets the process title to the sandbox's id. The sandbox's name and command are left out: a `pkill -f` by such a word
/// must miss the supervisor.
pub(crate) fn set_title(spec: &Spec) {
    penfold_sys::title::set_title(SUPERVISOR, &[&spec.id.short()]);
}

/// Runs the supervisor until the sandbox is gone, then exits.
pub(crate) fn run_supervisor(mut parts: SandboxParts, standby: Option<Standby>) -> ! {
    set_title(&parts.setup.spec);
    // The signalfd is opened first: on failure there is no member yet to end.
    let signals = match signals::open_signals() {
        Ok(signals) => signals,
        Err(error) => {
            let channel = parts.setup.channel.try_clone();
            let outcome = parts.give_up(format!("cannot make a signalfd: {error}"));
            let sent =
                channel.and_then(|channel| wire::send_message(&channel, &Answer::Outcome(Box::new(outcome))));
            penfold_sys::fork::exit_now(i32::from(sent.is_err()))
        }
    };
    let leader_state = match start(&mut parts, standby.as_ref(), &signals) {
        Ok(starting) => LeaderState::Starting(starting),
        Err(ReleaseError::Failed(failure)) => LeaderState::Failed(failure),
        Err(ReleaseError::Interrupted(interruption)) => LeaderState::Interrupted(interruption),
    };
    penfold_sys::crash_point!("supervisor-started");
    supervise(parts, Some(signals), standby.map(|standby| standby.pidfd), leader_state);
    // `supervise` returns only if `/proc` cannot be opened. The parent of this process takes over.
    penfold_sys::fork::exit_now(1)
}

/// Runs the exec supervisor of one command.
pub(crate) fn run_exec(parts: SandboxParts) -> ! {
    run_supervisor(parts, None)
}

/// Clones the leader, verifies its membership, and releases it to call execve(2).
fn start(
    parts: &mut SandboxParts,
    standby: Option<&Standby>,
    signals: &SignalFd,
) -> Result<PendingLeader, ReleaseError> {
    let mut watch = LaunchWatch::new(parts, standby.map(|standby| standby.pidfd.as_fd()), signals);
    // A command may stop its supervisor with SIGSTOP. This parent-death signal continues the supervisor when its parent
    // dies.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| StartFailure::Other(format!("cannot become a subreaper: {error}")))?;
    if let SandboxKind::Detached(detached) = &mut parts.kind {
        let Setup { program, spec, .. } = &mut parts.setup;
        detached.output.set_stdio(program, spec.identity.as_ref());
    }
    if parts.setup.idle {
        // An exec supervisor is a fork of a supervisor that has left `SCHED_IDLE`. Its command must start under that
        // policy again.
        schedule::enter_idle();
    }
    let mut starting = launch::clone_leader(
        &mut parts.setup,
        parts.leaf.as_ref(),
        parts.level,
        JoinMethod::CloneIntoCgroup,
    )?;
    parts.leader.store(starting.pid());
    penfold_sys::crash_point!("supervisor-cloned");
    if !launch::is_in_leaf(&starting, parts, &mut watch)? {
        // The child died at birth: the cgroup of this process was killed once (the trap of Linux 6.14, see
        // ARCHITECTURE.md). Or the kernel is old.
        starting.reap();
        starting = launch::clone_leader(
            &mut parts.setup,
            parts.leaf.as_ref(),
            parts.level,
            JoinMethod::CgroupProcs,
        )?;
        parts.leader.store(starting.pid());
        if !launch::is_in_leaf(&starting, parts, &mut watch)? {
            starting.reap();
            starting = start_without_leaf(parts, &mut watch)?;
        }
    }
    if parts.setup.idle {
        schedule::leave_idle();
    }
    // After the clone, because the leader stays in the caller's session. Before its execve(2), so that `kill 0` misses
    // the supervisor.
    let _ = setsid();
    if let Some(Standby { session_ready, .. }) = standby {
        watch.until_standby_session(&parts.setup, session_ready.as_fd())?;
    }
    // A released command may stop this process, so the alarm is set before.
    if let Some(at) = parts.first_deadline() {
        parts.set_alarm(at);
    }
    parts.note_leader(starting.pid());
    starting.release().map_err(|error| StartFailure::Other(format!("cannot start the command: {error}")))?;
    parts.setup.program.close_given();
    Ok(starting)
}

/// Clones the leader without the leaf that it cannot join. The empty leaf is removed with the sandbox.
fn start_without_leaf(
    parts: &mut SandboxParts,
    watch: &mut LaunchWatch<'_>,
) -> Result<PendingLeader, ReleaseError> {
    let reason = "the command cannot join the cgroup made for it".to_owned();
    if parts.level != Level::Cgroup || parts.setup.spec.contain != Contain::Auto {
        return Err(StartFailure::Other(reason).into());
    }
    parts.weaker = Some(reason);
    parts.level = Level::Subreaper;
    let starting = launch::clone_leader(&mut parts.setup, None, parts.level, JoinMethod::CgroupProcs)?;
    parts.leader.store(starting.pid());
    if launch::is_ready(&starting, parts, watch)? {
        return Ok(starting);
    }
    starting.reap();
    Err(StartFailure::Other("the cloned process died".to_owned()).into())
}

/// Takes over from a killed supervisor. Continues the sandbox if `--on-supervisor-exit keep` is set and the command
/// runs; ends it otherwise. All children of this process are members now.
pub(crate) fn run_takeover(mut parts: SandboxParts) -> ! {
    set_title(&parts.setup.spec);
    penfold_sys::crash_point!("taking-over");
    // Without a signalfd the teardown still progresses by its timeouts.
    let signals = signals::open_signals().ok();
    let leader_state = inherit(&mut parts, signals.is_some());
    supervise(parts, signals, None, leader_state);
    penfold_sys::fork::exit_now(1)
}

/// Loads the state of the killed supervisor. Without a signalfd (`has_signals`) the sandbox is not continued.
fn inherit(parts: &mut SandboxParts, has_signals: bool) -> LeaderState {
    let Some((pid, runs)) = parts.leader.load() else { return LeaderState::Ending(None) };
    let is_child = parts.proc.as_mut().is_some_and(|proc| {
        proc.stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.parent == Some(getpid())))
    });
    // Any member may have written `exit.json`, so only the bit in the leader cell counts.
    let exited = parts.leader.is_exit_written();
    let leaf = parts.leaf_of_execs();
    if let (SandboxKind::Detached(detached), true) = (&mut parts.kind, runs) {
        detached.inherit(exited);
        detached.restore_execs(leaf.as_deref());
    }
    let keep = parts.setup.spec.detach.as_ref().is_some_and(|detach| detach.keep);
    let continues = keep && has_signals && runs && is_child && !exited;
    let pidfd = continues.then(|| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
    match pidfd {
        Some(Ok(pidfd)) => LeaderState::Running(pid, pidfd),
        Some(Err(_)) | None => LeaderState::Ending(Some(pid)),
    }
}

/// The state of the leader when supervision begins.
enum LeaderState {
    /// The leader waits for its release, or is about to call execve(2).
    Starting(PendingLeader),
    /// The leader could not be created.
    Failed(StartFailure),
    /// An event ends the sandbox before the leader was released.
    Interrupted(Interruption),
    /// The leader ran before a takeover.
    Running(Pid, OwnedFd),
    /// The leader is to be ended: its supervisor was killed, perhaps before it cloned a leader.
    Ending(Option<Pid>),
}

/// Supervises the sandbox and exits with 0 once it is gone; returns if `/proc` cannot be opened.
fn supervise(
    mut parts: SandboxParts,
    signals: Option<SignalFd>,
    standby: Option<OwnedFd>,
    leader_state: LeaderState,
) {
    let Ok(proc) = parts.proc.take().map_or_else(ProcFs::open, Ok) else { return };
    // After the clone, so the leader does not inherit the slack. Teardown waits are shorter than the default slack of
    // 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut teardown = parts.teardown(proc, MemberScope::Children);
    if parts.is_reported() {
        teardown.want_details();
    }
    let of_init = parts.level == Level::Pidns;
    let (mut link, mut failure, mut leader, mut interruption) = (None, None, None, None);
    let mut status = Status::Created;
    match leader_state {
        LeaderState::Failed(why) => failure = Some(why),
        LeaderState::Interrupted(why) => {
            let stored = parts.leader.load().map(|(pid, _)| pid);
            leader = stored.map(|pid| leader_of_child(&mut teardown, pid, of_init, None));
            interruption = Some(why);
        }
        LeaderState::Running(pid, pidfd) => {
            leader = Some((pid, Some(pidfd)));
            status = Status::Running;
        }
        LeaderState::Ending(pid) => {
            leader = pid.map(|pid| leader_of_child(&mut teardown, pid, of_init, None));
            status = Status::Stopping;
        }
        LeaderState::Starting(cloned) => {
            let pidfd = cloned.pidfd();
            leader = Some(leader_of_child(&mut teardown, cloned.pid(), of_init, pidfd));
            link = Some(cloned);
        }
    }
    if let Some((pid, _)) = leader {
        teardown.lead_by(penfold_teardown::Leader { pid, session: parts.session_of(pid) });
        parts.identify(&mut teardown, pid, standby.as_ref().and_then(|_| rustix::process::getppid()), status);
    }
    teardown.ask_at_launchers();
    if let Some(program) = parts.setup.stop_program.take() {
        let complete = complete_stop_program(&parts, leader.as_ref().map(|(pid, _)| *pid));
        teardown.stop_by(program, complete);
    }
    let kind = parts.kind.leader_kind();
    let phase = if status == Status::Created { Phase::Starting } else { Phase::Running };
    let (pid, pidfd) = leader.map_or((None, None), |(pid, pidfd)| (Some(pid), pidfd));
    let mut sandbox = Supervision::new(parts, kind, signals, pidfd, run_exec);
    sandbox.leader_pid = pid;
    let leader = if of_init { LeaderSource::NamespaceInit(link) } else { LeaderSource::Child(link) };
    let mut event_loop = EventLoop::new(sandbox, leader, standby, phase);
    event_loop.due = failure.is_some().then_some(LifecycleEvent::StartFailed);
    event_loop.failure = failure;
    if let Some(interruption) = interruption {
        event_loop.interrupted(interruption);
    }
    if status == Status::Stopping {
        event_loop.due = event_loop.sandbox.decide(|policy| policy.kill(Cause::Supervisor));
    }
    event_loop.run(teardown, phase)
}

/// Returns what lets the stop command enter the jail of the sandbox, if there is a jail. The command is then of no use outside.
fn complete_stop_program(parts: &SandboxParts, leader: Option<Pid>) -> Option<Completion> {
    let jail = parts.setup.spec.jail.clone()?;
    let stored = parts.leader.load().map(|(pid, _)| pid).or(leader);
    let is_init = parts.level == Level::Pidns;
    Some(Box::new(move |program| {
        let pid = stored.ok_or_else(|| std::io::Error::other("the command of the sandbox is unknown"))?;
        let leader = JailLeader { pid, is_init, parent: getpid() };
        program.enter_jail(find_jail(leader, &jail, false).map_err(std::io::Error::other)?);
        Ok(())
    }))
}

/// Returns the leader's pid and pidfd: of this child, or of the child below if this child is our init.
fn leader_of_child(
    teardown: &mut Teardown,
    pid: Pid,
    init: bool,
    pidfd: Option<OwnedFd>,
) -> (Pid, Option<OwnedFd>) {
    if !init {
        return (pid, pidfd);
    }
    teardown.led_by_init(pid);
    leader_below_init(teardown, pid)
}

/// The pid of the leader in the pid namespace of our init, which starts it first.
const LEADER_IN_NAMESPACE: i32 = 2;

/// Returns the pid and a pidfd of the leader, a child of our init. A leader that has ended already has left its place among
/// the children to a process that lost its parent; then the pid is that of our init.
fn leader_below_init(teardown: &mut Teardown, init: Pid) -> (Pid, Option<OwnedFd>) {
    let mut children = Vec::new();
    let _ = teardown.proc().children(init, &mut children);
    let leader = children.into_iter().find(|&pid| {
        let status = teardown.proc().status(pid).ok().flatten();
        status.is_some_and(|status| {
            status.namespace_pids.last().map(|pid| pid.as_raw_pid()) == Some(LEADER_IN_NAMESPACE)
        })
    });
    let Some(pid) = leader else { return (init, None) };
    (pid, Process::open(teardown.proc(), pid).ok().flatten().map(Process::into_pidfd))
}
