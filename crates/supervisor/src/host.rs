//! What a supervisor waits for, and what follows: the host of its teardown.
//!
//! The same for a child, for a child of our init in a pid namespace and for an adopted tree. They differ in what tells of the
//! leader; an adopted tree has neither a launcher nor an owner.

mod job_control;
mod launcher;
mod leader;

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_state::state::Status;
use penfold_sys::child::Exit;
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, StopPolicy, Survivor, Teardown, drive};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

pub(crate) use self::leader::Leader;
use crate::launch::Starting;
use crate::outcome::{ExitStatus, StartFailure};
use crate::policy::Policy;
use crate::poll::poll;
use crate::supervised::{Supervised, has_ended};

/// The host of the teardown: everything that can happen to a sandbox from outside comes in here.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct Host {
    pub(crate) sandbox: Supervised,
    leader: Leader,
    /// Those below are watched until they tell that their process has ended, which they do once.
    standby: Option<OwnedFd>,
    launcher: Option<OwnedFd>,
    owner: Option<OwnedFd>,
    channel_open: bool,
    /// The death of the launcher is told by its pidfd, not by the end of the channel.
    by_pidfd: bool,
    /// Something that is to be told at the next wait.
    pub(crate) due: Option<Event>,
    pub(crate) failure: Option<StartFailure>,
    /// How the leader ended, when it is not a child of this process.
    status: Option<ExitStatus>,
    /// How it ended could not be heard.
    unheard: bool,
    /// The descriptors that the caller of penfold gave to the command are still open here, too.
    holds_inherited: bool,
    /// The launcher was told to stop as the leader did.
    suspended: bool,
}

/// How long a command must run until the supervisor lets go of the descriptors that were meant for it. Most are over by
/// then, and spared the work.
const SETTLE: Duration = Duration::from_millis(5);

/// Which descriptors had something to say.
#[expect(clippy::struct_excessive_bools, reason = "one for each descriptor that is polled")]
struct Ready {
    signals: bool,
    link: bool,
    root: bool,
    standby: bool,
    channel: bool,
    launcher: bool,
    owner: bool,
    detached: Vec<bool>,
}

impl penfold_teardown::Host for Host {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        let looked = Instant::now();
        let ready = self.poll(watch, timeout);
        if ready.signals {
            self.follow_leader();
        }
        if ready.signals
            && let Some(event) = self.sandbox.take_signals()
        {
            return Some(event);
        }
        if ready.link
            && let Some(event) = self.take_news()
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
        if let Some(event) = self.sandbox.serve(&ready.detached, self.leader.link().map(Starting::pid)) {
            return Some(event);
        }
        if ready.root {
            self.root_ended();
        }
        // The end of a leader that is no child of ours comes after the requests: who asked for it is answered, and is its
        // cause.
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
            return self.sandbox.decide(Policy::owner_gone);
        }
        self.time_out(looked)
    }

    fn stop_policy(&self) -> StopPolicy {
        self.sandbox.policy.stop_policy()
    }

    fn out_of_memory(&mut self) {
        self.sandbox.policy.out_of_memory();
    }

    fn leader_ended(&mut self, exit: Option<Exit>) -> Event {
        self.wake_launcher();
        let asked = self.hear_launcher();
        let status = self.status_of(exit.map(ExitStatus::from));
        let rest = self.sandbox.decide(|policy| policy.rest(status, Instant::now()));
        let cause = self.sandbox.policy.leader_ended(status);
        self.sandbox.prepared.find_nested();
        if let Some(detached) = &mut self.sandbox.prepared.detached {
            detached.execs.ends();
        }
        if let (Some(detached), None) = (&self.sandbox.prepared.detached, &self.failure) {
            self.sandbox.prepared.leader.note_end_told();
            detached.write_exited(status, cause);
        }
        asked.or(rest).unwrap_or(Event::LeaderExited)
    }

    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()> {
        let blind = findings.survivors.iter().all(|survivor| matches!(survivor, Survivor::Unknown { .. }));
        if blind && (self.launcher.is_some() || self.standby.is_some()) {
            // A command can take away our descriptors; who forked us has its own, and takes over.
            penfold_sys::fork::exit_now(1);
        }
        self.sandbox.say(Status::Unkillable);
        self.tell(leader.map(ExitStatus::from), findings.clone());
        ControlFlow::Continue(())
    }
}

impl Host {
    /// The host of a sandbox in this phase.
    pub(crate) fn new(
        mut sandbox: Supervised,
        leader: Leader,
        standby: Option<OwnedFd>,
        phase: Phase,
    ) -> Host {
        let setup = &mut sandbox.prepared.setup;
        let adopted = matches!(leader, Leader::Adopted { .. });
        Host {
            leader,
            standby,
            by_pidfd: setup.launcher.is_some(),
            launcher: setup.launcher.take().filter(|_| phase == Phase::Starting),
            owner: setup.owner.take(),
            channel_open: !adopted,
            due: None,
            failure: None,
            status: None,
            unheard: false,
            holds_inherited: !adopted,
            suspended: false,
            sandbox,
        }
    }

    /// Looks after the sandbox, and exits with 0 once it is gone.
    pub(crate) fn look_after(mut self, mut teardown: Teardown, phase: Phase) -> ! {
        let mut resources = std::mem::take(&mut self.sandbox.prepared.resources);
        let findings = drive(&mut teardown, phase, &mut self, &mut resources);
        self.tell(teardown.leader_exit().map(ExitStatus::from), findings);
        // Not by returning: to drop all this would close one by one what the exit closes at once.
        penfold_sys::fork::exit_now(0)
    }

    fn poll(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Ready {
        let settle = self.holds_inherited.then_some(SETTLE);
        let until = self.sandbox.policy.next_deadline(self.sandbox.activity());
        self.sandbox.set_alarm(until.map(|(at, _)| at), timeout);
        let until = until.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let opens = self.sandbox.prepared.detached.as_ref().and_then(|detached| detached.control.opens_in());
        let due = [timeout, until, opens].into_iter().flatten().min();
        let timespec = |duration: Option<Duration>| duration.and_then(|due| Timespec::try_from(due).ok());
        let root = match self.leader {
            Leader::Adopted { lives: true } => self.sandbox.leader.as_ref(),
            _ => None,
        };
        let sources = [
            self.sandbox.signals.as_ref().map(AsFd::as_fd),
            self.leader.link().map(Starting::link),
            root.map(AsFd::as_fd),
            self.standby.as_ref().map(AsFd::as_fd),
            self.channel_open.then_some(self.sandbox.prepared.setup.channel.as_fd()),
            self.launcher.as_ref().map(AsFd::as_fd),
            self.owner.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if let Some(detached) = &self.sandbox.prepared.detached {
            fds.extend(detached.sources());
        }
        let before = fds.len();
        fds.extend(watch);
        let mut happened = poll(&mut fds, timespec(due.into_iter().chain(settle).min()).as_ref());
        let settled = settle.is_some() && !matches!(happened, Ok(1..));
        if settled {
            // A pipe is at its end when the command closes it, not when we do.
            let _ = penfold_sys::descriptors::drop_inherited();
            penfold_sys::memory::drop_text_pages();
            // Right away, with hardly any code touched in between.
            happened = poll(&mut fds, timespec(due.map(|due| due.saturating_sub(SETTLE))).as_ref());
        }
        if happened.is_err() {
            fds.clear();
        }
        let mut fds = fds.iter().take(before).map(|fd| !fd.revents().is_empty());
        let [signals, link, root, standby, channel, launcher, owner] =
            sources.map(|source| source.is_some() && fds.next().unwrap_or(false));
        let detached = fds.collect();
        self.holds_inherited &= !settled;
        Ready { signals, link, root, standby, channel, launcher, owner, detached }
    }

    /// The other supervisor was killed.
    fn standby_died(&mut self) -> Option<Event> {
        self.standby = None;
        if let Some(detached) = &self.sandbox.prepared.detached {
            detached.control.listen_again();
        }
        self.sandbox.decide(Policy::standby_gone)
    }

    /// Ends a sandbox whose deadline had passed when this process `looked`.
    fn time_out(&mut self, looked: Instant) -> Option<Event> {
        let cause = self.sandbox.policy.overdue(looked, self.sandbox.activity())?;
        // It ended before, and both are seen late: the driver reaps it first.
        if let Leader::Adopted { lives } = self.leader {
            if lives && self.sandbox.leader.as_ref().is_some_and(has_ended) {
                self.root_ended();
                return self.due.take();
            }
        } else if self.sandbox.leader.take_if(|leader| has_ended(leader)).is_some() {
            return None;
        }
        // Who has stopped this process may have stopped those above it, too.
        for above in [&self.launcher, &self.standby].into_iter().flatten() {
            let _ = rustix::process::pidfd_send_signal(above, Signal::CONT);
        }
        self.sandbox.decide(|policy| policy.time_out(cause))
    }

    /// Reports the end, or what is left.
    fn tell(&mut self, reaped: Option<ExitStatus>, findings: Findings) {
        let exit = self.status_of(reaped).filter(|_| self.failure.is_none());
        let cause = match self.failure {
            Some(_) => Cause::StartFailed,
            None => self.sandbox.policy.cause().unwrap_or(Cause::Exit),
        };
        let report = self.sandbox.prepared.report(cause, exit, self.failure.clone(), findings);
        self.sandbox.tell(&report);
    }
}
