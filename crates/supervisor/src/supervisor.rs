//! Runs the supervisor: starts the leader, waits, and ends the sandbox.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use penfold_process::{Pid, ProcFs, Process};
use penfold_state::state::Status;
use penfold_state::{Contain, Spec};
use penfold_sys::schedule;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Completion, Level, Scope, Teardown};
use rustix::process::{Signal, getpid, setsid};

use crate::host::{Host, Leader};
use crate::jail::{JailLeader, find_jail};
use crate::launch::{self, Interruption, Join, NotStarted, Starting, Watch};
use crate::outcome::StartFailure;
use crate::policy::LeaderKind;
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::signals;
use crate::supervised::Supervised;
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
    penfold_sys::title::set(SUPERVISOR, &[&spec.id.short()]);
}

/// Runs the supervisor until the sandbox is gone, then exits.
pub(crate) fn run(mut prepared: Prepared, standby: Option<Standby>) -> ! {
    set_title(&prepared.setup.spec);
    // The signalfd is opened first: on failure there is no member yet to end.
    let signals = match signals::open() {
        Ok(signals) => signals,
        Err(error) => {
            let channel = prepared.setup.channel.try_clone();
            let outcome = prepared.give_up(format!("cannot make a signalfd: {error}"));
            let sent = channel.and_then(|channel| wire::send(&channel, &Answer::Outcome(Box::new(outcome))));
            penfold_sys::fork::exit_now(i32::from(sent.is_err()))
        }
    };
    let leader_state = match start(&mut prepared, standby.as_ref(), &signals) {
        Ok(starting) => LeaderState::Starting(starting),
        Err(NotStarted::Failed(failure)) => LeaderState::Failed(failure),
        Err(NotStarted::Interrupted(interruption)) => LeaderState::Interrupted(interruption),
    };
    penfold_sys::crash_point!("supervisor-started");
    supervise(prepared, Some(signals), standby.map(|standby| standby.pidfd), leader_state);
    // `supervise` returns only if `/proc` cannot be opened. The parent of this process takes over.
    penfold_sys::fork::exit_now(1)
}

/// Runs the exec supervisor of one command.
pub(crate) fn run_exec(prepared: Prepared) -> ! {
    run(prepared, None)
}

/// Clones the leader, verifies its membership, and releases it to call execve(2).
fn start(
    prepared: &mut Prepared,
    standby: Option<&Standby>,
    signals: &SignalFd,
) -> Result<Starting, NotStarted> {
    let mut watch = Watch::new(prepared, standby.map(|standby| standby.pidfd.as_fd()), signals);
    // A command may stop its supervisor with SIGSTOP. This parent-death signal continues the supervisor when its parent
    // dies.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| StartFailure::Other(format!("cannot become a subreaper: {error}")))?;
    if let Some(detached) = &mut prepared.detached {
        let Setup { program, spec, .. } = &mut prepared.setup;
        detached.output.set_stdio(program, spec.identity.as_ref());
    }
    if prepared.setup.idle {
        // An exec supervisor is a fork of a supervisor that has left `SCHED_IDLE`. Its command must start under that
        // policy again.
        schedule::enter_idle();
    }
    let mut starting =
        launch::clone(&mut prepared.setup, prepared.leaf.as_ref(), prepared.level, Join::CloneIntoCgroup)?;
    prepared.leader.store(starting.pid());
    penfold_sys::crash_point!("supervisor-cloned");
    if !launch::is_in_leaf(&starting, prepared, &mut watch)? {
        // The child died at birth: the cgroup of this process was killed once (the trap of Linux 6.14, see
        // ARCHITECTURE.md). Or the kernel is old.
        starting.reap();
        starting =
            launch::clone(&mut prepared.setup, prepared.leaf.as_ref(), prepared.level, Join::CgroupProcs)?;
        prepared.leader.store(starting.pid());
        if !launch::is_in_leaf(&starting, prepared, &mut watch)? {
            starting.reap();
            starting = start_without_leaf(prepared, &mut watch)?;
        }
    }
    if prepared.setup.idle {
        schedule::leave_idle();
    }
    // After the clone, because the leader stays in the caller's session. Before its execve(2), so that `kill 0` misses
    // the supervisor.
    let _ = setsid();
    if let Some(Standby { session_ready, .. }) = standby {
        watch.until_standby_session(&prepared.setup, session_ready.as_fd())?;
    }
    // A released command may stop this process, so the alarm is set before.
    if let Some(at) = prepared.first_deadline() {
        prepared.set_alarm(at);
    }
    prepared.note_leader(starting.pid());
    starting.release().map_err(|error| StartFailure::Other(format!("cannot start the command: {error}")))?;
    prepared.setup.program.close_given();
    Ok(starting)
}

/// Clones the leader without the leaf that it cannot join. The empty leaf is removed with the sandbox.
fn start_without_leaf(prepared: &mut Prepared, watch: &mut Watch<'_>) -> Result<Starting, NotStarted> {
    let reason = "the command cannot join the cgroup made for it".to_owned();
    if prepared.level != Level::Cgroup || prepared.setup.spec.contain != Contain::Auto {
        return Err(StartFailure::Other(reason).into());
    }
    prepared.weaker = Some(reason);
    prepared.level = Level::Subreaper;
    let starting = launch::clone(&mut prepared.setup, None, prepared.level, Join::CgroupProcs)?;
    prepared.leader.store(starting.pid());
    if launch::is_ready(&starting, prepared, watch)? {
        return Ok(starting);
    }
    starting.reap();
    Err(StartFailure::Other("the cloned process died".to_owned()).into())
}

/// Takes over from a killed supervisor. Continues the sandbox if `--on-supervisor-exit keep` is set and the command
/// runs; ends it otherwise. All children of this process are members now.
pub(crate) fn run_takeover(mut prepared: Prepared) -> ! {
    set_title(&prepared.setup.spec);
    penfold_sys::crash_point!("taking-over");
    // Without a signalfd the teardown still progresses by its timeouts.
    let signals = signals::open().ok();
    let leader_state = inherit(&mut prepared, signals.is_some());
    supervise(prepared, signals, None, leader_state);
    penfold_sys::fork::exit_now(1)
}

/// Loads the state of the killed supervisor. Without a signalfd (`has_signals`) the sandbox is not continued.
fn inherit(prepared: &mut Prepared, has_signals: bool) -> LeaderState {
    let Some((pid, runs)) = prepared.leader.load() else { return LeaderState::Ending(None) };
    let is_child = prepared.proc.as_mut().is_some_and(|proc| {
        proc.stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.parent == Some(getpid())))
    });
    // Any member may have written `exit.json`, so only the bit in the leader cell counts.
    let exited = prepared.leader.is_exit_written();
    let leaf = prepared.leaf_of_execs();
    if let (Some(detached), true) = (&mut prepared.detached, runs) {
        detached.inherit(exited);
        detached.restore_execs(leaf.as_deref());
    }
    let keep = prepared.setup.spec.detach.as_ref().is_some_and(|detach| detach.keep);
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
    Starting(Starting),
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
    mut prepared: Prepared,
    signals: Option<SignalFd>,
    standby: Option<OwnedFd>,
    leader_state: LeaderState,
) {
    let Ok(proc) = prepared.proc.take().map_or_else(ProcFs::open, Ok) else { return };
    // After the clone, so the leader does not inherit the slack. Teardown waits are shorter than the default slack of
    // 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut teardown = prepared.teardown(proc, Scope::Children);
    if prepared.is_reported() {
        teardown.want_details();
    }
    let of_init = prepared.level == Level::Pidns;
    let (mut link, mut failure, mut leader, mut interruption) = (None, None, None, None);
    let mut status = Status::Created;
    match leader_state {
        LeaderState::Failed(why) => failure = Some(why),
        LeaderState::Interrupted(why) => {
            let stored = prepared.leader.load().map(|(pid, _)| pid);
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
        teardown.lead_by(penfold_teardown::Leader { pid, session: prepared.session_of(pid) });
        prepared.identify(
            &mut teardown,
            pid,
            standby.as_ref().and_then(|_| rustix::process::getppid()),
            status,
        );
    }
    teardown.ask_at_launchers();
    if let Some(program) = prepared.setup.stop_program.take() {
        let complete = complete_stop_program(&prepared, leader.as_ref().map(|(pid, _)| *pid));
        teardown.stop_by(program, complete);
    }
    let kind = kind(&prepared);
    let phase = if status == Status::Created { Phase::Starting } else { Phase::Running };
    let (pid, pidfd) = leader.map_or((None, None), |(pid, pidfd)| (Some(pid), pidfd));
    let mut sandbox = Supervised::new(prepared, kind, signals, pidfd, run_exec);
    sandbox.leader_pid = pid;
    let leader = if of_init { Leader::NamespaceInit(link) } else { Leader::Child(link) };
    let mut host = Host::new(sandbox, leader, standby, phase);
    host.due = failure.is_some().then_some(Event::StartFailed);
    host.failure = failure;
    if let Some(interruption) = interruption {
        host.interrupted(interruption);
    }
    if status == Status::Stopping {
        host.due = host.sandbox.decide(|policy| policy.kill(Cause::Supervisor));
    }
    host.run(teardown, phase)
}

/// Returns what lets the stop command enter the jail of the sandbox, if there is a jail. The command is then of no use outside.
fn complete_stop_program(prepared: &Prepared, leader: Option<Pid>) -> Option<Completion> {
    let jail = prepared.setup.spec.jail.clone()?;
    let stored = prepared.leader.load().map(|(pid, _)| pid).or(leader);
    let is_init = prepared.level == Level::Pidns;
    Some(Box::new(move |program| {
        let pid = stored.ok_or_else(|| std::io::Error::other("the command of the sandbox is unknown"))?;
        let leader = JailLeader { pid, is_init, parent: getpid() };
        program.enter_jail(find_jail(leader, &jail, false).map_err(std::io::Error::other)?);
        Ok(())
    }))
}

fn kind(prepared: &Prepared) -> LeaderKind {
    match (&prepared.detached, prepared.setup.own_session) {
        (Some(_), _) => LeaderKind::Detached,
        (None, true) => LeaderKind::Exec,
        (None, false) => LeaderKind::Foreground,
    }
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
