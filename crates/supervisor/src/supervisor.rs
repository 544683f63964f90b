//! The supervisor: starts the leader, waits, ends the sandbox.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use penfold_process::{Pid, ProcFs, Process};
use penfold_state::state::Status;
use penfold_state::{Contain, Spec};
use penfold_sys::schedule;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Level, Scope, Teardown};
use rustix::process::{Signal, getpid, setsid};

use crate::host::{Host, Leader};
use crate::launch::{self, Interruption, Join, NotStarted, Starting, Watch};
use crate::outcome::StartFailure;
use crate::policy::Kind;
use crate::prepared::Prepared;
use crate::signals;
use crate::supervised::Supervised;
use crate::wire::{self, Answer};

/// The process between the launcher and this one, if there is one.
pub(crate) struct Standby {
    /// Its pidfd.
    pub(crate) pidfd: OwnedFd,
    /// Readable once it has a session of its own.
    pub(crate) apart: OwnedFd,
}

/// What the launcher and the standby are called, whatever the program's file is called: `doctor` knows them by it.
pub(crate) const NAME: &std::ffi::CStr = c"penfold";
/// What the supervisor is called: who kills by name, or by a word of the command line, leaves one of the two alive.
pub(crate) const SUPERVISOR: &std::ffi::CStr = c"pf-supervisor";

/// Names this process after its sandbox. Not by its name or its command, for who ends processes by such a word is to miss the
/// supervisor.
pub(crate) fn set_title(spec: &Spec) {
    penfold_sys::title::set(SUPERVISOR, &[&spec.id.short()]);
}

/// Runs the supervisor; ends when the sandbox is gone.
pub(crate) fn run(mut prepared: Prepared, standby: Option<Standby>) -> ! {
    set_title(&prepared.setup.spec);
    // Before anything is started that would have to be looked after.
    let signals = match signals::open() {
        Ok(signals) => signals,
        Err(error) => {
            let channel = prepared.setup.channel.try_clone();
            let outcome = prepared.give_up(format!("cannot make a signalfd: {error}"));
            let told = channel.and_then(|channel| wire::send(&channel, &Answer::Outcome(Box::new(outcome))));
            penfold_sys::fork::exit_now(i32::from(told.is_err()))
        }
    };
    let lead = match start(&mut prepared, standby.as_ref(), &signals) {
        Ok(starting) => Lead::Starting(starting),
        Err(NotStarted::Failed(failure)) => Lead::Failed(failure),
        Err(NotStarted::Interrupted(interruption)) => Lead::Interrupted(interruption),
    };
    penfold_sys::crash_point!("supervisor-started");
    look_after(prepared, Some(signals), standby.map(|standby| standby.pidfd), lead);
    // Only when not even the means to look were there; who forked this process takes over.
    penfold_sys::fork::exit_now(1)
}

/// Runs the supervisor of a command that was put into a sandbox.
pub(crate) fn run_exec(prepared: Prepared) -> ! {
    run(prepared, None)
}

/// Clones the leader, checks that it is where it belongs, and lets it go.
fn start(
    prepared: &mut Prepared,
    standby: Option<&Standby>,
    signals: &SignalFd,
) -> Result<Starting, NotStarted> {
    let mut watch = Watch::new(prepared, standby.map(|standby| standby.pidfd.as_fd()), signals);
    // A command may stop its supervisor: then the death of who forked it lets it go on.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| StartFailure::Other(format!("cannot become a subreaper: {error}")))?;
    if let Some(detached) = &mut prepared.detached {
        detached.output.equip(&mut prepared.setup.program);
    }
    if prepared.setup.idle {
        // For a command that is put into the sandbox: its supervisor is a copy of one that has left the policy.
        schedule::enter_idle();
    }
    let mut starting =
        launch::clone(&mut prepared.setup, prepared.leaf.as_ref(), prepared.level, Join::Born)?;
    prepared.leader.note(starting.pid());
    penfold_sys::crash_point!("supervisor-cloned");
    if !launch::joined(&starting, prepared, &mut watch)? {
        // Killed at birth: this kernel has the trap, and the cgroup that we are in was killed once. Or an old kernel.
        starting.reap();
        starting = launch::clone(&mut prepared.setup, prepared.leaf.as_ref(), prepared.level, Join::Written)?;
        prepared.leader.note(starting.pid());
        if !launch::joined(&starting, prepared, &mut watch)? {
            starting.reap();
            starting = start_without_leaf(prepared, &mut watch)?;
        }
    }
    if prepared.setup.idle {
        schedule::leave_idle();
    }
    // After the clone, for the leader stays in its caller's session; before its exec, so that no `kill 0` reaches us.
    let _ = setsid();
    if let Some(Standby { apart, .. }) = standby {
        watch.until_apart(&prepared.setup, apart.as_fd())?;
    }
    // From now on the command may stop this process.
    if let Some(at) = prepared.first_deadline() {
        prepared.set_alarm(at);
    }
    starting.release().map_err(|error| StartFailure::Other(format!("cannot start the command: {error}")))?;
    prepared.setup.program.close_stdio();
    Ok(starting)
}

/// Clones the leader where the leaf would not take it. The leaf stays, empty, and goes with the sandbox.
fn start_without_leaf(prepared: &mut Prepared, watch: &mut Watch<'_>) -> Result<Starting, NotStarted> {
    let reason = "the command cannot join the cgroup made for it".to_owned();
    if prepared.level != Level::Cgroup || prepared.setup.spec.contain != Contain::Auto {
        return Err(StartFailure::Other(reason).into());
    }
    prepared.weaker = Some(reason);
    prepared.level = Level::Subreaper;
    let starting = launch::clone(&mut prepared.setup, None, prepared.level, Join::Written)?;
    prepared.leader.note(starting.pid());
    if launch::stands(&starting, prepared, watch)? {
        return Ok(starting);
    }
    starting.reap();
    Err(StartFailure::Other("the cloned process died".to_owned()).into())
}

/// Takes the place of a supervisor that was killed: goes on where that is wanted and its command still runs, and ends the
/// sandbox where not. All children of this process are members now.
pub(crate) fn carry_on(mut prepared: Prepared) -> ! {
    set_title(&prepared.setup.spec);
    penfold_sys::crash_point!("taking-over");
    // Without it the timeouts of the drive still bring an end forward.
    let signals = signals::open().ok();
    let lead = inherit(&mut prepared, signals.is_some());
    look_after(prepared, signals, None, lead);
    penfold_sys::fork::exit_now(1)
}

/// Takes on what a supervisor that was killed has left. One that cannot be `woken` does not go on.
fn inherit(prepared: &mut Prepared, woken: bool) -> Lead {
    let Some((pid, runs)) = prepared.leader.noted() else { return Lead::Ending(None) };
    let ours = prepared.proc.as_mut().is_some_and(|proc| {
        proc.stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.parent == Some(getpid())))
    });
    // `exit.json` alone would be anybody's word.
    let exited = prepared.leader.is_end_told();
    let leaf = prepared.leaf_of_execs();
    if let (Some(detached), true) = (&mut prepared.detached, runs) {
        detached.inherit(exited);
        let written = detached.written_execs();
        detached.execs.recall(written, leaf.as_deref());
    }
    let wanted = prepared.setup.spec.detach.as_ref().is_some_and(|detach| detach.keep);
    let goes_on = wanted && woken && runs && ours && !exited;
    let pidfd = goes_on.then(|| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
    match pidfd {
        Some(Ok(pidfd)) => Lead::Running(pid, pidfd),
        Some(Err(_)) | None => Lead::Ending(Some(pid)),
    }
}

/// How far the leader has come.
enum Lead {
    /// It waits to become its program, or is about to.
    Starting(Starting),
    /// It could not be made.
    Failed(StartFailure),
    /// Something ends the sandbox before it could be let go.
    Interrupted(Interruption),
    /// It has run for a while.
    Running(Pid, OwnedFd),
    /// It is to end: its supervisor was killed, and may have been so before it was cloned.
    Ending(Option<Pid>),
}

/// Looks after the sandbox and exits with 0 once it is gone; returns if it cannot look.
fn look_after(mut prepared: Prepared, signals: Option<SignalFd>, standby: Option<OwnedFd>, lead: Lead) {
    let Ok(proc) = prepared.proc.take().map_or_else(ProcFs::open, Ok) else { return };
    // The leader is started and does not inherit it: the waits of a teardown are shorter than the usual 50 µs of slack.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut teardown = Teardown::new(proc, prepared.leaf.take(), Scope::Children);
    if prepared.setup.spec.report.is_some() || prepared.detached.is_some() {
        teardown.want_details();
    }
    let of_init = prepared.level == Level::Pidns;
    let (mut link, mut failure, mut leader, mut interruption) = (None, None, None, None);
    let mut status = Status::Created;
    match lead {
        Lead::Failed(why) => failure = Some(why),
        Lead::Interrupted(why) => {
            let noted = prepared.leader.noted().map(|(pid, _)| pid);
            leader = noted.map(|pid| of_child(&mut teardown, pid, of_init, None));
            interruption = Some(why);
        }
        Lead::Running(pid, pidfd) => {
            leader = Some((pid, Some(pidfd)));
            status = Status::Running;
        }
        Lead::Ending(pid) => {
            leader = pid.map(|pid| of_child(&mut teardown, pid, of_init, None));
            status = Status::Stopping;
        }
        Lead::Starting(cloned) => {
            let pidfd = cloned.pidfd();
            leader = Some(of_child(&mut teardown, cloned.pid(), of_init, pidfd));
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
    let kind = match (&prepared.detached, prepared.setup.apart) {
        (Some(_), _) => Kind::Detached,
        (None, true) => Kind::Exec,
        (None, false) => Kind::Foreground,
    };
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
    host.look_after(teardown, phase)
}

/// The leader, and a handle to it: this child, or who is below it where it is our init.
fn of_child(teardown: &mut Teardown, pid: Pid, init: bool, pidfd: Option<OwnedFd>) -> (Pid, Option<OwnedFd>) {
    if !init {
        return (pid, pidfd);
    }
    teardown.led_by_init(pid);
    in_namespace(teardown, pid)
}

/// The leader below our init, and a handle to it.
fn in_namespace(teardown: &mut Teardown, init: Pid) -> (Pid, Option<OwnedFd>) {
    let mut children = Vec::new();
    let _ = teardown.proc().children(init, &mut children);
    let pid = children.first().copied().unwrap_or(init);
    (pid, Process::open(teardown.proc(), pid).ok().flatten().map(Process::into_pidfd))
}
