//! What can happen to a sandbox from outside, and what follows: the host of its teardown.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_sandbox::OwnerExit;
use penfold_sandbox::events::What;
use penfold_sandbox::state::Word;
use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, signal};
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Survivor};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::desk::Said;
use crate::exec;
use crate::held::Held;
use crate::launch::{News, Starting};
use crate::outcome::{Outcome, StartFailure, Status};
use crate::poll::poll;
use crate::wire::{self, Answer, Ending, Exec, Received, Request, Size};

/// The host of the teardown: everything that can happen to a sandbox from outside comes in here.
pub(super) struct Inner {
    held: Held,
    signals: Option<SignalFd>,
    /// Those below are watched until they tell that their process has ended, which they do once.
    outer: Option<OwnedFd>,
    front: Option<OwnedFd>,
    owner: Option<OwnedFd>,
    channel_open: bool,
    /// The death of the front is told by its pidfd, not by the end of the channel.
    by_pidfd: bool,
    pub(super) starting: Option<Starting>,
    /// A handle to the leader, for signals that are passed on.
    pub(super) leader: Option<OwnedFd>,
    /// When something ends the sandbox that nobody asks for, and why.
    deadline: Option<Instant>,
    /// Something that is to be told at the next wait.
    pub(super) due: Option<Event>,
    pub(super) failure: Option<StartFailure>,
    /// How the leader ended, when it is not a child of this process.
    status: Option<Status>,
    cause: Option<Cause>,
    /// What is left of it after a kill that took too long.
    stuck: Option<Box<Outcome>>,
    ladder: Ladder,
    /// The descriptors that the caller of penfold gave to the command are still open here, too.
    holds_inherited: bool,
}

impl Host for Inner {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        let looked = Instant::now();
        let ready = self.poll(watch, timeout);
        if ready.signals
            && let Some(event) = self.take_signals()
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
            if let Some(desk) = &self.held.desk {
                desk.listen_again();
            }
            if !self.held.setup.spec.detach.as_ref().is_some_and(|detach| detach.keep) {
                return Some(self.end(Cause::Supervisor, Event::KillRequested));
            }
        }
        if ready.channel
            && let Some(event) = self.take_request()
        {
            return Some(event);
        }
        if let Some(event) = self.serve(&ready.desk) {
            return Some(event);
        }
        if ready.front {
            self.front = None;
            // Nobody was told of a detached sandbox that does not run yet.
            return if self.held.desk.is_some() {
                Some(self.end(Cause::Owner, Event::KillRequested))
            } else {
                self.owner_gone()
            };
        }
        if ready.owner {
            self.owner = None;
            return self.owner_gone();
        }
        // One that has passed since the look waits for the next: who has renewed it in time may not have been seen.
        let (at, cause) = self.next_deadline()?;
        if at <= looked {
            // It ended before, and both are seen late: the driver reaps it first.
            if self.leader.take_if(|leader| has_ended(leader)).is_some() {
                return None;
            }
            self.deadline = None;
            return Some(self.end_politely(cause));
        }
        None
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn out_of_memory(&mut self) {
        self.cause.get_or_insert(Cause::Oom);
    }

    fn leader_ended(&mut self, exit: Option<Exit>) {
        let signalled = matches!(self.status.or(exit.map(Status::from)), Some(Status::Signal(_)));
        let cause = *self.cause.get_or_insert(if signalled { Cause::Signal } else { Cause::Exit });
        if let Some(desk) = &mut self.held.desk {
            desk.ends();
        }
        if let (Some(desk), None) = (&self.held.desk, &self.failure) {
            self.held.note_exited();
            desk.write_exited(self.status.or(exit.map(Status::from)), cause);
        }
    }

    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()> {
        let blind = findings.survivors.iter().all(|survivor| matches!(survivor, Survivor::Unknown { .. }));
        if blind && (self.front.is_some() || self.outer.is_some()) {
            // A command can take away our descriptors; who forked us has its own, and takes over.
            penfold_sys::fork::exit_now(1);
        }
        self.say(Word::Unkillable);
        self.tell(leader.map(Status::from), findings.clone());
        ControlFlow::Continue(())
    }
}

/// Whether the process of a pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

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
        let timeout = held.setup.spec.timeout;
        Inner {
            ladder: held.ladder(),
            signals,
            outer,
            by_pidfd: held.setup.front.is_some(),
            front: held.setup.front.take().filter(|_| phase == Phase::Starting),
            owner: held.setup.owner.take(),
            channel_open: true,
            starting: None,
            leader: None,
            deadline: timeout.and_then(|timeout| held.setup.began.checked_add(timeout)),
            due: None,
            failure: None,
            status: None,
            cause: None,
            stuck: None,
            holds_inherited: true,
            held,
        }
    }

    fn poll(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Ready {
        let settle = self.holds_inherited.then_some(SETTLE);
        let until = self.next_deadline().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let opens = self.held.desk.as_ref().and_then(|desk| desk.opens_in());
        let due = [timeout, until, opens].into_iter().flatten().min();
        let timespec = |duration: Option<Duration>| duration.and_then(|due| Timespec::try_from(due).ok());
        let sources = [
            self.signals.as_ref().map(AsFd::as_fd),
            self.starting.as_ref().map(Starting::link),
            self.outer.as_ref().map(AsFd::as_fd),
            self.channel_open.then_some(self.held.setup.channel.as_fd()),
            self.front.as_ref().map(AsFd::as_fd),
            self.owner.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if let Some(desk) = &self.held.desk {
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

    /// Children are reaped by the driver; a TERM to the supervisor itself is a wish to stop. The sandbox that this one is in
    /// says with it how it is asked, which counts where nobody has said how this one is.
    fn take_signals(&mut self) -> Option<Event> {
        let mut event = None;
        while let Some(Ok(Some(signalled))) = self.signals.as_ref().map(SignalFd::take) {
            if signalled.signal == Signal::TERM.as_raw() {
                if let Some(signal) = signalled.carried.filter(|_| self.ladder.signal == Signal::TERM) {
                    self.ladder.signal = signal;
                }
                event = Some(self.end_politely(Cause::Stop));
            }
        }
        event
    }

    fn take_news(&mut self) -> Option<Event> {
        let news = self.starting.as_ref()?.news();
        match news {
            // Its leaf was killed before it became its program, and that looks the same.
            Ok(Some(News::Running)) if self.cause.is_some() => {
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
            Ok(None) => None,
            // Our init was killed; what it held in its namespace may still take a while to go.
            Err(_) => {
                self.starting = None;
                Some(self.end(Cause::Supervisor, Event::KillRequested))
            }
        }
    }

    fn take_request(&mut self) -> Option<Event> {
        match wire::receive(&self.held.setup.channel) {
            Ok(Received::Message(request)) => self.act(&request).0,
            Ok(Received::Nothing) => None,
            // Who started a sandbox closes its end only by dying, and its pidfd says so.
            Ok(Received::End) | Err(_) => {
                self.channel_open = false;
                if self.by_pidfd { None } else { self.owner_gone() }
            }
        }
    }

    /// Hears who is at the desk. A wish to kill outdoes the others.
    fn serve(&mut self, ready: &[bool]) -> Option<Event> {
        if !ready.contains(&true) {
            return None;
        }
        let execs = |held: &Held| held.desk.as_ref().map_or(0, |desk| desk.execs.running());
        let before = execs(&self.held);
        let said = self.held.desk.as_mut().map(|desk| desk.serve(ready)).unwrap_or_default();
        if execs(&self.held) < before && self.cause.is_none() {
            self.say(Word::Running);
        }
        let mut wanted = None;
        for Said { client, request, fds } in said {
            let (event, answer) = match request {
                Request::Exec(exec) => (None, self.exec(client, exec, fds)),
                Request::Attach(size) => (None, Some(self.at_terminal(size, fds.into_iter().next()))),
                request => self.act(&request),
            };
            if let (Some(desk), Some(answer)) = (&self.held.desk, answer) {
                desk.answer(client, &answer);
            }
            if wanted != Some(Event::KillRequested) {
                wanted = event.or(wanted);
            }
        }
        wanted
    }

    fn at_terminal(&mut self, size: Size, seat: Option<OwnedFd>) -> Answer {
        match self.held.desk.as_mut().map(|desk| desk.at_terminal(size, seat)) {
            Some(Ok(())) => Answer::Done,
            Some(Err(reason)) => Answer::Refused(reason),
            None => Answer::Refused("the sandbox has no terminal".to_owned()),
        }
    }

    /// Puts a command into the sandbox. Who asked for it is answered from now on by who looks after that command.
    fn exec(&mut self, client: u64, exec: Exec, fds: Vec<OwnedFd>) -> Option<Answer> {
        if self.cause.is_some() {
            return Some(Answer::Refused("the sandbox is being ended".to_owned()));
        }
        let init = self.starting.as_ref().map(Starting::pid);
        exec::begin(&mut self.held, client, exec, fds, init).err().map(Answer::Refused)
    }

    /// Does what somebody asks for; gives what follows for the sandbox, and the answer.
    fn act(&mut self, request: &Request) -> (Option<Event>, Option<Answer>) {
        if let (Request::Stop { .. } | Request::Kill, Some(stuck)) = (request, &self.stuck) {
            // It is tried again at once; who asks need not wait to hear what stood in the way so far.
            return (Some(Event::Look), Some(Answer::Outcome(stuck.clone())));
        }
        match *request {
            Request::Stop { signal: number, spared_group, grace_ms } => {
                // A client passes on what was sent to it, and knows nothing of how its sandbox wants to be asked.
                let usual = self.ladder.signal == Signal::TERM;
                if let Some(signal) = signal(number).filter(|_| !self.is_exec() || usual) {
                    self.ladder.signal = signal;
                }
                // Its group is no part of the sandbox.
                self.ladder.spared_group = spared_group.filter(|_| !self.is_exec());
                let grace = grace_ms.map_or(self.held.ladder().grace, Duration::from_millis);
                self.ladder.give(grace, self.cause.is_some());
                let event = self.end(Cause::Stop, Event::StopRequested);
                (Some(event), Some(Answer::Ending(self.stopping())))
            }
            Request::Kill => {
                let event = self.end(Cause::Kill, Event::KillRequested);
                (Some(event), Some(Answer::Ending(Ending::Killing)))
            }
            Request::Patience(ms) => {
                self.ladder.report_within(Duration::from_millis(ms), self.cause.is_some());
                (None, Some(Answer::Done))
            }
            Request::Forward(number) => (None, Some(self.forward(number))),
            Request::OwnerGone => (self.owner_gone(), None),
            Request::Extend(_) if self.cause.is_some() => {
                (None, Some(Answer::Refused("the sandbox is being ended".to_owned())))
            }
            Request::Extend(ms) => {
                if let Some(desk) = &mut self.held.desk {
                    desk.extend(ms);
                }
                self.say(Word::Running);
                (None, Some(Answer::Done))
            }
            Request::KillExec(number) => {
                let ended = self.held.desk.as_ref().is_some_and(|desk| desk.execs.stop(number));
                let refused = || Answer::Refused(format!("no exec {number} runs in this sandbox"));
                (None, Some(if ended { Answer::Done } else { refused() }))
            }
            Request::Resize(size) => (None, Some(self.at_terminal(size, None))),
            // Without descriptors, over the channel of a front.
            Request::Exec(_) | Request::Attach(_) => {
                (None, Some(Answer::Refused("what it needs did not come with it".to_owned())))
            }
        }
    }

    /// The leader has become its program.
    fn runs(&mut self) {
        if !self.held.setup.apart {
            return;
        }
        if let Some(desk) = &mut self.held.desk {
            desk.has_run();
            if let Some((pid, _)) = self.held.noted_leader() {
                self.held.note_running(pid);
            }
            self.say(Word::Running);
            self.held.tell_start();
            // Who started it may go now.
            self.front = None;
        }
        penfold_sys::crash_point!("running");
        let _ = wire::offer(&self.held.setup.channel, &Answer::Running);
    }

    /// Writes down how things stand.
    fn say(&self, word: Word) {
        if let Some(desk) = &self.held.desk {
            desk.say(word, self.held.level, &self.held.missing);
        }
    }

    fn next_deadline(&self) -> Option<(Instant, Cause)> {
        let desk = self.held.desk.as_ref().and_then(|desk| desk.due());
        let limit = self.deadline.map(|at| (at, Cause::Timeout));
        [limit, desk].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn stopping(&self) -> Ending {
        Ending::Stopping(u64::try_from(self.ladder.grace.as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether this looks after a command that was put into a sandbox.
    fn is_exec(&self) -> bool {
        self.held.setup.apart && self.held.desk.is_none()
    }

    /// A leader that is gone, or another user's, is as deaf as one that ignores it.
    fn forward(&mut self, number: i32) -> Answer {
        let Some(signal) = signal(number) else { return Answer::Refused(format!("no signal {number}")) };
        let sent = self.leader.as_ref().map(|leader| rustix::process::pidfd_send_signal(leader, signal));
        match sent {
            Some(Ok(())) => Answer::Done,
            Some(Err(error)) => Answer::Refused(format!("the command cannot be signalled: {error}")),
            None => Answer::Refused("the command cannot be seen".to_owned()),
        }
    }

    fn owner_gone(&mut self) -> Option<Event> {
        match self.held.setup.spec.on_owner_exit {
            OwnerExit::Kill => Some(self.end(Cause::Owner, Event::KillRequested)),
            OwnerExit::Stop => Some(self.end_politely(Cause::Owner)),
            OwnerExit::Keep => None,
        }
    }

    /// Ends it with the grace that it was made with. Nobody has to wait longer because somebody wanted to.
    fn end_politely(&mut self, cause: Cause) -> Event {
        self.ladder.give(self.held.ladder().grace, self.cause.is_some());
        self.end(cause, Event::StopRequested)
    }

    /// The first reason stands; what the table makes of the event is its own business.
    pub(super) fn end(&mut self, cause: Cause, event: Event) -> Event {
        if self.cause.is_none() {
            let ending = if event == Event::StopRequested { self.stopping() } else { Ending::Killing };
            let _ = wire::send(&self.held.setup.channel, &Answer::Ending(ending));
            if let Some(desk) = &mut self.held.desk {
                desk.ends();
                let grace_ms = match ending {
                    Ending::Stopping(grace) => Some(grace),
                    Ending::Killing => None,
                };
                desk.happened([What::Stop { cause, grace_ms }]);
            }
            self.say(Word::Stopping);
        }
        self.cause.get_or_insert(cause);
        event
    }

    pub(super) fn tell(&mut self, reaped: Option<Status>, findings: Findings) {
        let exit = self.status.or(reaped).filter(|_| self.failure.is_none());
        let cause = match self.failure {
            Some(_) => Cause::StartFailed,
            None => self.cause.unwrap_or(Cause::Exit),
        };
        let report = self.held.report(cause, exit, self.failure.clone(), findings);
        let outcome = Box::new(Outcome { of_exec: self.is_exec(), ..self.held.conclude(&report) });
        self.stuck = (!outcome.report.findings.verified).then(|| outcome.clone());
        let answer = Answer::Outcome(outcome);
        if let Some(desk) = &self.held.desk {
            desk.tell(&answer);
        }
        // A front that is gone is told nothing; one that was told already does not listen any more.
        let _ = wire::send(&self.held.setup.channel, &answer);
    }
}
