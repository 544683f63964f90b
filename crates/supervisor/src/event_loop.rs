//! The event loop of a supervisor: the [`TeardownHost`](penfold_teardown::TeardownHost) of its teardown.
//!
//! The same loop serves a child, a child of our init in a pid namespace, and an adopted tree. They differ in the source
//! of news about the leader. An adopted tree has neither launcher nor owner.

mod job_control;
mod late_stop;
mod launcher;
mod leader;

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::Stat;
use penfold_state::DescribedProcess;
use penfold_state::state::Status;
use penfold_sys::child::Exit;
use penfold_teardown::lifecycle::{LifecycleEvent, Phase};
use penfold_teardown::{Cause, Findings, Level, Linger, StopPolicy, Survivor, Teardown, drive_teardown};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

pub(crate) use self::leader::LeaderSource;
use crate::at_limit;
use crate::detached_parts::DetachedParts;
use crate::engine_clients;
use crate::launch::PendingLeader;
use crate::left_behind::Genealogy;
use crate::outcome::{ExitStatus, StartFailure};
use crate::policy::Policy;
use crate::poll::poll_or_pause;
use crate::restart;
use crate::sandbox_parts::SandboxKind;
use crate::supervision::{Supervision, has_ended};

/// The host of the teardown: receives every external event of a sandbox.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct EventLoop {
    pub(crate) sandbox: Supervision,
    leader: LeaderSource,
    /// These three pidfds are polled until they report the death of their process, then dropped.
    standby: Option<OwnedFd>,
    launcher: Option<OwnedFd>,
    owner: Option<OwnedFd>,
    channel_open: bool,
    /// The launcher has a pidfd, so EOF on the channel does not mean its death.
    launcher_has_pidfd: bool,
    /// An event to return from the next wait.
    pub(crate) due: Option<LifecycleEvent>,
    pub(crate) failure: Option<StartFailure>,
    /// The exit of a leader that is not a child of this process.
    status: Option<ExitStatus>,
    /// The exit of the leader was lost with the link to our init.
    exit_lost: bool,
    /// This process still holds the descriptors that the caller passed to the command.
    holds_inherited: bool,
    /// Set if the processes that the leader leaves behind are to be described.
    genealogy: Option<Genealogy>,
    /// What ran when the time limit was reached.
    running: Vec<DescribedProcess>,
    /// The launcher was asked to stop together with the leader.
    suspended: bool,
}

/// The age of a command at which the supervisor closes the descriptors meant for the command. Most commands end earlier
/// and save the work.
const CLOSE_INHERITED_DELAY: Duration = Duration::from_millis(5);

/// The results of one poll(2), by source.
#[expect(clippy::struct_excessive_bools, reason = "one for each descriptor that is polled")]
struct ReadySources {
    signals: bool,
    link: bool,
    root: bool,
    standby: bool,
    channel: bool,
    launcher: bool,
    owner: bool,
    detached: Vec<bool>,
}

impl penfold_teardown::TeardownHost for EventLoop {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        let looked = Instant::now();
        let ready = self.poll(watch, timeout);
        if !self.sandbox.policy.is_ending()
            && let Some(genealogy) = &mut self.genealogy
        {
            genealogy.look_if_due();
        }
        if ready.signals {
            self.follow_leader();
        }
        if ready.signals
            && let Some(event) = self.sandbox.take_signals()
        {
            return Some(event);
        }
        if ready.link
            && let Some(event) = self.take_leader_event()
        {
            return Some(event);
        }
        if ready.standby
            && let Some(event) = self.standby_died()
        {
            return Some(event);
        }
        if ready.channel
            && let Some(event) = self.take_request()
        {
            return Some(event);
        }
        if let Some(event) = self.sandbox.serve(&ready.detached, self.leader.link().map(PendingLeader::pid)) {
            return Some(event);
        }
        if ready.root {
            self.root_ended();
        }
        // An ended leader that is no child of this process is handled after the requests. The client that requested the
        // end is then answered, and its request is the cause.
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        if ready.launcher
            && let Some(event) = self.launcher_died()
        {
            return Some(event);
        }
        if ready.owner {
            self.owner = None;
            return self.sandbox.owner_gone();
        }
        self.time_out(looked)
    }

    fn stop_policy(&self) -> StopPolicy {
        self.sandbox.policy.stop_policy()
    }

    fn out_of_memory(&mut self, at_limit: bool) {
        // An exec has the limits of its sandbox.
        let limited = self.sandbox.parts.setup.spec.limits.memory_bytes.is_some();
        self.sandbox.policy.out_of_memory(if at_limit && limited { Cause::Memory } else { Cause::Oom });
    }

    fn leader_ended(&mut self, exit: Option<Exit>) -> LifecycleEvent {
        self.wake_launcher();
        let status = self.status_of(exit.map(ExitStatus::from));
        let requested = self.drain_launcher(status);
        let requested = requested.or_else(|| self.take_late_stop(status));
        let requested = requested.or_else(|| self.sandbox.take_noted());
        let rest = self.sandbox.leader_left_members(status);
        let cause = self.sandbox.policy.leader_ended(status);
        let parts = &mut self.sandbox.parts;
        parts.find_nested();
        match &mut parts.kind {
            SandboxKind::Detached(detached) => {
                detached.execs.mark_ending();
                if self.failure.is_none() {
                    parts.leader.store_exit_written();
                    detached.write_exited(status, cause);
                }
            }
            SandboxKind::RecordedExec(exec) if self.failure.is_none() => {
                if exec.lingers() {
                    self.sandbox.policy.cancel_limit();
                    exec.save_output();
                }
                exec.write_exited(status, cause);
            }
            SandboxKind::Foreground(_) | SandboxKind::Exec | SandboxKind::RecordedExec(_) => {}
        }
        requested.or(rest).unwrap_or(LifecycleEvent::LeaderExited)
    }

    fn linger(&self) -> Linger {
        match &self.sandbox.parts.kind {
            SandboxKind::RecordedExec(exec) if exec.lingers() => Linger::Freely,
            _ => self.sandbox.parts.setup.spec.leaks_after.map_or(Linger::Never, Linger::For),
        }
    }

    fn describes(&self) -> bool {
        self.genealogy.as_ref().is_some_and(Genealogy::describes)
    }

    fn describe(&mut self, members: &[Stat]) {
        if let Some(genealogy) = &mut self.genealogy {
            genealogy.describe(members);
        }
    }

    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()> {
        let blind = findings.survivors.iter().all(|survivor| matches!(survivor, Survivor::Unknown { .. }));
        if blind && (self.launcher.is_some() || self.standby.is_some()) {
            // A command can take away this process's descriptors with prlimit(2). The parent has its own, and takes
            // over.
            penfold_sys::fork::exit_now(1);
        }
        // Who reads the status may kill this process at once.
        self.sandbox.parts.remember(findings);
        self.sandbox.write_status(Status::Unkillable);
        self.report(leader.map(ExitStatus::from), findings.clone());
        ControlFlow::Continue(())
    }
}

impl EventLoop {
    /// Creates the host of a sandbox in this phase.
    pub(crate) fn new(
        mut sandbox: Supervision,
        leader: LeaderSource,
        standby: Option<OwnedFd>,
        phase: Phase,
    ) -> EventLoop {
        let setup = &mut sandbox.parts.setup;
        let adopted = matches!(leader, LeaderSource::Adopted { .. });
        EventLoop {
            leader,
            standby,
            launcher_has_pidfd: setup.launcher.is_some(),
            launcher: setup.launcher.take().filter(|_| phase == Phase::Starting),
            owner: setup.owner.take(),
            channel_open: !adopted,
            due: None,
            failure: None,
            status: None,
            exit_lost: false,
            // An exec supervisor begins without them, and shares the pages of its code with the sandbox's supervisor.
            holds_inherited: !adopted && !sandbox.policy.is_exec(),
            suspended: false,
            genealogy: Genealogy::start(&sandbox.parts.setup.spec),
            running: Vec::new(),
            sandbox,
        }
    }

    /// Runs the teardown driver and exits with 0 once the sandbox is gone.
    pub(crate) fn run(mut self, mut teardown: Teardown, phase: Phase) -> ! {
        let mut resources = std::mem::take(&mut self.sandbox.parts.resources);
        let findings = drive_teardown(&mut teardown, phase, &mut self, &mut resources);
        self.report(teardown.leader_exit().map(ExitStatus::from), findings);
        if self.standby.is_none() {
            restart::begin_next_life(&self.sandbox.parts);
        }
        // Exits without dropping `self`: exit closes all descriptors at once, drop closes them one by one.
        penfold_sys::fork::exit_now(0)
    }

    fn poll(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> ReadySources {
        let close_after = self.holds_inherited.then_some(CLOSE_INHERITED_DELAY);
        let until = self.sandbox.policy.next_deadline(self.sandbox.activity());
        self.sandbox.set_alarm(until.map(|(at, _)| at), timeout);
        let until = until.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let detached = self.sandbox.parts.kind.detached();
        let accept_pause = detached.and_then(|detached| detached.control.accept_pause());
        let exec_look = detached.and_then(|detached| detached.execs.next_look());
        let state = detached.filter(|_| !self.sandbox.policy.is_ending()).and_then(DetachedParts::next_state);
        let genealogy = self.genealogy.as_ref().filter(|_| !self.sandbox.policy.is_ending());
        let executions = genealogy.and_then(Genealogy::source);
        let genealogy = genealogy.and_then(Genealogy::due_in);
        let due = [timeout, until, accept_pause, exec_look, state, genealogy].into_iter().flatten().min();
        let timespec = |duration: Option<Duration>| duration.and_then(|due| Timespec::try_from(due).ok());
        let root = match self.leader {
            LeaderSource::Adopted { lives: true } => self.sandbox.leader.as_ref(),
            _ => None,
        };
        let sources = [
            self.sandbox.signals.as_ref().map(AsFd::as_fd),
            self.leader.link().map(PendingLeader::link),
            root.map(AsFd::as_fd),
            self.standby.as_ref().map(AsFd::as_fd),
            self.channel_open.then_some(self.sandbox.parts.setup.channel.as_fd()),
            self.launcher.as_ref().map(AsFd::as_fd),
            self.owner.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match &self.sandbox.parts.kind {
            SandboxKind::Detached(detached) => fds.extend(detached.sources()),
            SandboxKind::RecordedExec(exec) => fds.extend(exec.sources()),
            SandboxKind::Foreground(_) | SandboxKind::Exec => {}
        }
        let before = fds.len();
        fds.extend(executions.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(watch);
        let mut polled = poll_or_pause(&mut fds, timespec(due.into_iter().chain(close_after).min()).as_ref());
        let close_now = close_after.is_some() && !matches!(polled, Ok(1..));
        if close_now {
            // Closes the inherited copies, so that a pipe of the caller reaches EOF when the command closes it.
            let _ = penfold_sys::descriptors::drop_inherited();
            penfold_sys::memory::drop_unneeded_pages();
            // Polls again at once: other code would fault its dropped pages back in.
            polled = poll_or_pause(
                &mut fds,
                timespec(due.map(|due| due.saturating_sub(CLOSE_INHERITED_DELAY))).as_ref(),
            );
        }
        if polled.is_err() {
            fds.clear();
        }
        let mut fds = fds.iter().take(before).map(|fd| !fd.revents().is_empty());
        let [signals, link, root, standby, channel, launcher, owner] =
            sources.map(|source| source.is_some() && fds.next().unwrap_or(false));
        let detached = fds.collect();
        self.holds_inherited &= !close_now;
        ReadySources { signals, link, root, standby, channel, launcher, owner, detached }
    }

    /// Handles the death of the standby.
    fn standby_died(&mut self) -> Option<LifecycleEvent> {
        self.standby = None;
        if let SandboxKind::Detached(detached) = &self.sandbox.parts.kind {
            detached.control.listen_again();
        }
        self.sandbox.decide(Policy::standby_gone)
    }

    /// Ends a sandbox whose deadline had already passed at `looked`.
    fn time_out(&mut self, looked: Instant) -> Option<LifecycleEvent> {
        let cause = self.sandbox.policy.overdue(looked, self.sandbox.activity())?;
        // The leader ended before the deadline, and both were seen late: the driver reaps the leader first.
        if let LeaderSource::Adopted { lives } = self.leader {
            if lives && self.sandbox.leader.as_ref().is_some_and(has_ended) {
                self.root_ended();
                return self.due.take();
            }
        } else if self.sandbox.leader.take_if(|leader| has_ended(leader)).is_some() {
            return None;
        }
        // A command that stopped this process may have stopped launcher and standby too.
        for above in [&self.launcher, &self.standby].into_iter().flatten() {
            let _ = rustix::process::pidfd_send_signal(above, Signal::CONT);
        }
        if cause == Cause::Ttl && self.sandbox.pause_at_ttl() {
            return None;
        }
        // A time limit may also shorten the grace of another end.
        if cause == Cause::Timeout && self.sandbox.policy.cause().is_none() {
            let parts = &self.sandbox.parts;
            // There, `/proc` and the pids are those of the sandbox.
            let is_inside = parts.kind.is_exec() && parts.level == Level::Pidns;
            self.running = if is_inside { Vec::new() } else { at_limit::running(parts.leaf_path.as_deref()) };
        }
        self.sandbox.decide(|policy| policy.time_out(cause))
    }

    /// Publishes the report of the end, or of the survivors.
    fn report(&mut self, reaped: Option<ExitStatus>, findings: Findings) {
        let exit = self.status_of(reaped).filter(|_| self.failure.is_none());
        let cause = match self.failure {
            Some(_) => Cause::StartFailed,
            None => self.sandbox.policy.cause().unwrap_or(Cause::Exit),
        };
        let mut report = self.sandbox.parts.report(cause, exit, self.failure.clone(), findings);
        report.by = self.sandbox.requester();
        report.running.clone_from(&self.running);
        if let Some(genealogy) = &self.genealogy {
            report.leaks = genealogy.leaks(&report.findings);
            report.objects = genealogy.objects();
        }
        let is_by_itself = matches!(cause, Cause::Exit | Cause::Signal | Cause::StartFailed);
        if self.genealogy.is_some() || !is_by_itself || !report.findings.ended.is_empty() {
            let seen = self.genealogy.as_ref().map(Genealogy::clients);
            let command = &self.sandbox.parts.setup.spec.command;
            report.engine_clients = engine_clients::find_engine_clients(command, &report.findings, seen);
        }
        self.sandbox.publish_outcome(&report);
    }
}
