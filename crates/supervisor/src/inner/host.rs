//! What can happen to a sandbox from outside, and what follows: the host of its teardown.

mod job_control;

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_state::state::Word;
use penfold_sys::child::Exit;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Survivor};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::held::Held;
use crate::launch::{Interruption, News, Starting};
use crate::outcome::{StartFailure, Status};
use crate::policy::{Kind, Policy, outdo};
use crate::poll::poll;
use crate::supervised::{Supervised, has_ended};
use crate::wire::{self, Answer, Received, Request};

/// The host of the teardown: everything that can happen to a sandbox from outside comes in here.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(super) struct Inner {
    pub(super) sandbox: Supervised,
    /// Those below are watched until they tell that their process has ended, which they do once.
    outer: Option<OwnedFd>,
    front: Option<OwnedFd>,
    owner: Option<OwnedFd>,
    channel_open: bool,
    /// The death of the front is told by its pidfd, not by the end of the channel.
    by_pidfd: bool,
    pub(super) starting: Option<Starting>,
    /// Something that is to be told at the next wait.
    pub(super) due: Option<Event>,
    pub(super) failure: Option<StartFailure>,
    /// How the leader ended, when it is not a child of this process.
    status: Option<Status>,
    /// How it ended could not be heard.
    unheard: bool,
    /// The descriptors that the caller of penfold gave to the command are still open here, too.
    holds_inherited: bool,
    /// The front was told to stop as the leader did.
    suspended: bool,
}

impl Host for Inner {
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
        if ready.outer {
            self.outer = None;
            if let Some(desk) = &self.sandbox.held.desk {
                desk.listen_again();
            }
            if let Some(event) = self.sandbox.decide(Policy::outer_gone) {
                return Some(event);
            }
        }
        if ready.channel
            && let Some(event) = self.take_request()
        {
            return Some(event);
        }
        if let Some(event) = self.sandbox.serve(&ready.desk, self.starting.as_ref().map(Starting::pid)) {
            return Some(event);
        }
        if ready.front
            && let Some(event) = self.front_died()
        {
            return Some(event);
        }
        if ready.owner {
            self.owner = None;
            return self.sandbox.decide(Policy::owner_gone);
        }
        let cause = self.sandbox.policy.overdue(looked, self.sandbox.activity())?;
        // It ended before, and both are seen late: the driver reaps it first.
        if self.sandbox.leader.take_if(|leader| has_ended(leader)).is_some() {
            return None;
        }
        // Who has stopped this process may have stopped those above it, too.
        for above in [&self.front, &self.outer].into_iter().flatten() {
            let _ = rustix::process::pidfd_send_signal(above, Signal::CONT);
        }
        self.sandbox.decide(|policy| policy.time_out(cause))
    }

    fn ladder(&self) -> Ladder {
        self.sandbox.policy.ladder()
    }

    fn out_of_memory(&mut self) {
        self.sandbox.policy.out_of_memory();
    }

    fn leader_ended(&mut self, exit: Option<Exit>) -> Event {
        self.wake_front();
        let asked = self.hear_front();
        let status = self.status_of(exit.map(Status::from));
        let rest = self.sandbox.decide(|policy| policy.rest(status, Instant::now()));
        let cause = self.sandbox.policy.leader_ended(status);
        self.sandbox.held.find_nested();
        if let Some(desk) = &mut self.sandbox.held.desk {
            desk.ends();
        }
        if let (Some(desk), None) = (&self.sandbox.held.desk, &self.failure) {
            self.sandbox.held.note_exited();
            desk.write_exited(status, cause);
        }
        asked.or(rest).unwrap_or(Event::LeaderExited)
    }

    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()> {
        let blind = findings.survivors.iter().all(|survivor| matches!(survivor, Survivor::Unknown { .. }));
        if blind && (self.front.is_some() || self.outer.is_some()) {
            // A command can take away our descriptors; who forked us has its own, and takes over.
            penfold_sys::fork::exit_now(1);
        }
        self.sandbox.say(Word::Unkillable);
        self.tell(leader.map(Status::from), findings.clone());
        ControlFlow::Continue(())
    }
}

/// How long a front that is not scheduled, or is stopped by its terminal, may take to say what it was sent.
const HEARD: Duration = Duration::from_secs(2);

/// How long a command must run until the supervisor lets go of the descriptors that were meant for it. Most are over by
/// then, and spared the work.
const SETTLE: Duration = Duration::from_millis(5);

/// Which descriptors had something to say.
#[expect(clippy::struct_excessive_bools, reason = "one for each descriptor that is polled")]
struct Ready {
    signals: bool,
    link: bool,
    outer: bool,
    channel: bool,
    front: bool,
    owner: bool,
    desk: Vec<bool>,
}

impl Inner {
    pub(super) fn new(
        mut held: Held,
        signals: Option<SignalFd>,
        outer: Option<OwnedFd>,
        phase: Phase,
    ) -> Inner {
        let kind = match (&held.desk, held.setup.apart) {
            (Some(_), _) => Kind::Detached,
            (None, true) => Kind::Exec,
            (None, false) => Kind::Foreground,
        };
        Inner {
            outer,
            by_pidfd: held.setup.front.is_some(),
            front: held.setup.front.take().filter(|_| phase == Phase::Starting),
            owner: held.setup.owner.take(),
            channel_open: true,
            starting: None,
            due: None,
            failure: None,
            status: None,
            unheard: false,
            holds_inherited: true,
            suspended: false,
            sandbox: Supervised::new(held, kind, signals, None, super::run_exec),
        }
    }

    fn poll(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Ready {
        let settle = self.holds_inherited.then_some(SETTLE);
        let until = self.sandbox.policy.next_deadline(self.sandbox.activity());
        self.sandbox.set_alarm(until.map(|(at, _)| at), timeout);
        let until = until.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let opens = self.sandbox.held.desk.as_ref().and_then(|desk| desk.opens_in());
        let due = [timeout, until, opens].into_iter().flatten().min();
        let timespec = |duration: Option<Duration>| duration.and_then(|due| Timespec::try_from(due).ok());
        let sources = [
            self.sandbox.signals.as_ref().map(AsFd::as_fd),
            self.starting.as_ref().map(Starting::link),
            self.outer.as_ref().map(AsFd::as_fd),
            self.channel_open.then_some(self.sandbox.held.setup.channel.as_fd()),
            self.front.as_ref().map(AsFd::as_fd),
            self.owner.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if let Some(desk) = &self.sandbox.held.desk {
            fds.extend(desk.sources());
        }
        let before = fds.len();
        fds.extend(watch);
        let mut happened = poll(&mut fds, timespec(due.into_iter().chain(settle).min()).as_ref());
        let settled = settle.is_some() && !matches!(happened, Ok(1..));
        if settled {
            // A pipe is at its end when the command closes it, not when we do.
            let _ = penfold_sys::descriptors::drop_inherited();
            penfold_sys::memory::forget_code();
            // Right away, with hardly any code touched in between.
            happened = poll(&mut fds, timespec(due.map(|due| due.saturating_sub(SETTLE))).as_ref());
        }
        if happened.is_err() {
            fds.clear();
        }
        let mut fds = fds.iter().take(before).map(|fd| !fd.revents().is_empty());
        let [signals, link, outer, channel, front, owner] =
            sources.map(|source| source.is_some() && fds.next().unwrap_or(false));
        let desk = fds.collect();
        self.holds_inherited &= !settled;
        Ready { signals, link, outer, channel, front, owner, desk }
    }

    /// What follows from something that happened before the leader could be let go: it never is.
    pub(super) fn interrupted(&mut self, interruption: Interruption) -> Event {
        let event = match interruption {
            Interruption::Limit => self.sandbox.decide(|policy| policy.time_out(Cause::Timeout)),
            Interruption::Terminated(carried) => self.sandbox.decide(|policy| policy.terminated(carried)),
            Interruption::Front => self.sandbox.decide(Policy::front_gone),
            Interruption::Outer => self.sandbox.decide(|policy| policy.kill(Cause::Supervisor)),
            Interruption::Asked(request) => self.sandbox.act(&request).0,
        };
        event
            .or_else(|| self.sandbox.decide(|policy| policy.kill(Cause::Owner)))
            .unwrap_or(Event::KillRequested)
    }

    fn take_news(&mut self) -> Option<Event> {
        let news = self.starting.as_ref()?.news();
        match news {
            // Its leaf was killed before it became its program, and that looks the same.
            Ok(Some(News::Running)) if self.sandbox.policy.is_ending() => {
                self.starting.take_if(|starting| !starting.stays());
                None
            }
            Ok(Some(News::Running)) => {
                if self.starting.as_ref().is_some_and(|starting| !starting.stays()) {
                    self.starting = None;
                }
                self.runs();
                Some(Event::Started)
            }
            Ok(Some(News::Failed(failure))) => {
                self.starting = None;
                self.failure = Some(failure);
                Some(Event::StartFailed)
            }
            Ok(Some(News::Ended(status))) => {
                self.status = Some(status);
                Some(Event::LeaderExited)
            }
            Ok(Some(News::Stopped(signal))) => {
                self.leader_stopped(signal);
                None
            }
            Ok(Some(News::Continued)) => {
                self.wake_front();
                None
            }
            Ok(None) => None,
            // Our init was killed, or cannot be heard; what it held in its namespace may still take a while to go.
            Err(error) => {
                self.starting = None;
                // At the end of the link all was heard. Else the end of our init tells how the leader ended only if that
                // lives until then.
                self.unheard = error.kind() != ErrorKind::UnexpectedEof
                    && self.sandbox.leader.as_ref().is_none_or(has_ended);
                self.sandbox.decide(|policy| policy.kill(Cause::Supervisor))
            }
        }
    }

    /// The front is dead: what it has said before counts first, for it may have let the sandbox go.
    fn front_died(&mut self) -> Option<Event> {
        while self.front.is_some() {
            match wire::receive(&self.sandbox.held.setup.channel) {
                Ok(Received::Message(Request::LetGo)) => self.front = None,
                Ok(Received::Message(request)) => {
                    if let Some(event) = self.sandbox.act(&request).0 {
                        return Some(event);
                    }
                }
                Ok(Received::Nothing | Received::End) | Err(_) => {
                    self.front = None;
                    return self.sandbox.decide(Policy::front_gone);
                }
            }
        }
        None
    }

    fn take_request(&mut self) -> Option<Event> {
        match wire::receive(&self.sandbox.held.setup.channel) {
            // Who started it may go now.
            Ok(Received::Message(Request::LetGo)) => {
                self.front = None;
                None
            }
            Ok(Received::Message(request)) => self.sandbox.act(&request).0,
            Ok(Received::Nothing) => None,
            // Who started a sandbox closes its end only by dying, and its pidfd says so.
            Ok(Received::End) | Err(_) => {
                self.channel_open = false;
                if self.by_pidfd { None } else { self.sandbox.decide(Policy::owner_gone) }
            }
        }
    }

    /// Hears all that a terminal has sent to the front until the leader ended, and what follows.
    ///
    /// The kernel sends to a whole group before one of it is seen to have ended: `kill_pgrp()` holds the lock that an exit
    /// takes. So the front has what the leader had, but may not have come to say so.
    fn hear_front(&mut self) -> Option<Event> {
        if !self.sandbox.held.setup.keys || self.front.is_none() || !self.channel_open {
            return None;
        }
        wire::offer(&self.sandbox.held.setup.channel, &Answer::LeaderEnded).ok()?;
        let until = Instant::now() + HEARD;
        let mut event = None;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            let channel = &self.sandbox.held.setup.channel;
            let sources = [Some(channel), self.front.as_ref()];
            let mut fds: Vec<PollFd<'_>> =
                sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if matches!(poll(&mut fds, left.as_ref()), Ok(0)) {
                return event;
            }
            match wire::receive(channel) {
                Ok(Received::Message(Request::Heard)) => return event,
                Ok(Received::Message(request)) => event = outdo(event, self.sandbox.act(&request).0),
                Ok(Received::Nothing) if self.front.as_ref().is_some_and(|front| !has_ended(front)) => {}
                // A front that has died is told by its pidfd.
                Ok(Received::Nothing | Received::End) | Err(_) => return event,
            }
        }
    }

    /// How the leader ended: what our init says of it, or how the process in its place was `reaped`.
    fn status_of(&self, reaped: Option<Status>) -> Option<Status> {
        self.status.or(reaped.filter(|_| !self.unheard))
    }

    /// The leader has become its program.
    fn runs(&mut self) {
        if !self.sandbox.held.setup.apart {
            return;
        }
        if let Some(desk) = &mut self.sandbox.held.desk {
            desk.has_run();
            if let Some((pid, _)) = self.sandbox.held.noted_leader() {
                self.sandbox.held.note_running(pid);
            }
            self.sandbox.say(Word::Running);
            self.sandbox.held.tell_start();
        }
        penfold_sys::crash_point!("running");
        wire::offer_once(&self.sandbox.held.setup.channel, &Answer::Running);
    }

    pub(super) fn tell(&mut self, reaped: Option<Status>, findings: Findings) {
        let exit = self.status_of(reaped).filter(|_| self.failure.is_none());
        let cause = match self.failure {
            Some(_) => Cause::StartFailed,
            None => self.sandbox.policy.cause().unwrap_or(Cause::Exit),
        };
        let report = self.sandbox.held.report(cause, exit, self.failure.clone(), findings);
        self.sandbox.tell(&report);
    }
}
