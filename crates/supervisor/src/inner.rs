//! The inner process, the supervisor: starts the leader, waits, ends the sandbox.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, Process};
use penfold_sandbox::{Contain, OwnerExit};
use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, SignalSet, signal};
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Leader, Level, Scope, Survivor, Teardown, drive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, setsid};

use crate::environment::CHILD;
use crate::held::{Held, conclude};
use crate::launch::{self, Join, News, Starting};
use crate::outcome::{StartFailure, Status};
use crate::wire::{self, Answer, Ending, Received, Request};

/// The process between the front and this one, if there is one.
pub(crate) struct Outer {
    /// Its pidfd.
    pub(crate) pidfd: OwnedFd,
    /// Readable once it has a session of its own.
    pub(crate) apart: OwnedFd,
}

/// What the processes of ours are called, whatever the program's file is called: `doctor` knows them by it.
pub(crate) const NAME: &std::ffi::CStr = c"penfold";

/// Runs the supervisor; ends when the sandbox is gone.
pub(crate) fn run(mut held: Held, outer: Option<Outer>) -> ! {
    let _ = rustix::thread::set_name(NAME);
    // Before anything is started that would have to be looked after.
    let signals = match SignalFd::open(&SignalSet::of([CHILD, Signal::TERM.as_raw()])) {
        Ok(signals) => signals,
        Err(error) => {
            let channel = held.setup.channel.try_clone();
            let outcome = held.give_up(format!("cannot make a signalfd: {error}"));
            let told = channel.and_then(|channel| wire::send(&channel, &Answer::Outcome(Box::new(outcome))));
            penfold_sys::fork::exit_now(i32::from(told.is_err()))
        }
    };
    let (starting, failure) = match start(&mut held, outer.as_ref()) {
        Ok(starting) => (Some(starting), None),
        Err(failure) => (None, Some(failure)),
    };
    penfold_sys::crash_point!("inner-started");
    look_after(held, signals, outer.map(|outer| outer.pidfd), starting, failure);
    // Only when not even the means to look were there; who forked this process takes over.
    penfold_sys::fork::exit_now(1)
}

/// Clones the leader, checks that it is where it belongs, and lets it go.
fn start(held: &mut Held, outer: Option<&Outer>) -> Result<Starting, StartFailure> {
    // A command may stop its supervisor: then the death of who forked it lets it go on.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    rustix::process::set_child_subreaper(Some(getpid()))
        .map_err(|error| StartFailure::Other(format!("cannot become a subreaper: {error}")))?;
    let mut starting = launch::clone(&mut held.setup, held.leaf.as_ref(), held.level, Join::Born)?;
    held.note_leader(starting.pid());
    penfold_sys::crash_point!("inner-cloned");
    if !launch::joined(&starting, held)? {
        // Killed at birth: this kernel has the trap, and the cgroup that we are in was killed once. Or an old kernel.
        starting.bury();
        starting = launch::clone(&mut held.setup, held.leaf.as_ref(), held.level, Join::Written)?;
        held.note_leader(starting.pid());
        if !launch::joined(&starting, held)? {
            starting.bury();
            starting = start_without_leaf(held)?;
        }
    }
    // After the clone, for the leader stays in its caller's session; before its exec, so that no `kill 0` reaches us.
    let _ = setsid();
    if let Some(Outer { pidfd, apart }) = outer {
        let mut fds = [PollFd::new(apart, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
    }
    starting.release().map_err(|error| StartFailure::Other(format!("cannot start the command: {error}")))?;
    Ok(starting)
}

/// Clones the leader where the leaf would not take it. The leaf stays, empty, and goes with the sandbox.
fn start_without_leaf(held: &mut Held) -> Result<Starting, StartFailure> {
    let reason = "the command cannot join the cgroup made for it".to_owned();
    if held.level != Level::Cgroup || held.setup.spec.contain != Contain::Auto {
        return Err(StartFailure::Other(reason));
    }
    held.weaker = Some(reason);
    held.level = Level::Subreaper;
    let starting = launch::clone(&mut held.setup, None, held.level, Join::Written)?;
    held.note_leader(starting.pid());
    Ok(starting)
}

/// Looks after the sandbox and exits with 0 once it is gone; returns if it cannot look.
fn look_after(
    mut held: Held,
    signals: SignalFd,
    outer: Option<OwnedFd>,
    starting: Option<Starting>,
    failure: Option<StartFailure>,
) {
    let Ok(proc) = held.proc.take().map_or_else(ProcFs::open, Ok) else { return };
    let mut teardown = Teardown::new(proc, held.leaf.take(), Scope::Children);
    if held.setup.spec.report.is_some() {
        teardown.want_details();
    }
    let mut leader = None;
    if let Some(starting) = &starting {
        let mut pid = starting.pid();
        if starting.stays() {
            teardown.kept_by(pid);
            let mut children = Vec::new();
            let _ = teardown.proc().children(pid, &mut children);
            pid = children.first().copied().unwrap_or(pid);
            leader = Process::open(teardown.proc(), pid).ok().flatten().map(Process::into_pidfd);
        } else {
            leader = starting.pidfd();
        }
        teardown.lead_by(Leader { pid, session: held.setup.session });
    }
    teardown.ask_at_fronts();
    let mut resources = std::mem::take(&mut held.resources);
    let deadline = held.setup.spec.timeout.and_then(|timeout| held.setup.began.checked_add(timeout));
    let mut host = Inner {
        ladder: held.ladder(),
        signals,
        outer,
        front: held.setup.front.try_clone().ok(),
        owner: held.setup.owner.take(),
        channel_open: true,
        starting,
        leader,
        deadline,
        due: failure.is_some().then_some(Event::StartFailed),
        failure,
        status: None,
        cause: None,
        holds_inherited: true,
        held,
    };
    let findings = drive(&mut teardown, Phase::Starting, &mut host, &mut resources);
    host.tell(teardown.leader_exit().map(Status::from), findings);
    // Not by returning: to drop all this would close one by one what the exit closes at once.
    penfold_sys::fork::exit_now(0)
}

/// The host of the teardown: everything that can happen to a sandbox from outside comes in here.
struct Inner {
    held: Held,
    signals: SignalFd,
    /// Those below are watched until they tell that their process has ended, which they do once.
    outer: Option<OwnedFd>,
    front: Option<OwnedFd>,
    owner: Option<OwnedFd>,
    channel_open: bool,
    starting: Option<Starting>,
    /// A handle to the leader, for signals that are passed on.
    leader: Option<OwnedFd>,
    deadline: Option<Instant>,
    /// Something that is to be told at the next wait.
    due: Option<Event>,
    failure: Option<StartFailure>,
    /// How the leader ended, when it is not a child of this process.
    status: Option<Status>,
    cause: Option<Cause>,
    ladder: Ladder,
    /// The descriptors that the caller of penfold gave to the command are still open here, too.
    holds_inherited: bool,
}

impl Host for Inner {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
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
            return Some(self.end(Cause::Supervisor, Event::KillRequested));
        }
        if ready.channel
            && let Some(event) = self.take_request()
        {
            return Some(event);
        }
        if ready.front {
            self.front = None;
            return self.owner_gone();
        }
        if ready.owner {
            self.owner = None;
            return self.owner_gone();
        }
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.deadline = None;
            return Some(self.end(Cause::Timeout, Event::StopRequested));
        }
        None
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn leader_ended(&mut self, exit: Option<Exit>) {
        let signalled = matches!(self.status.or(exit.map(Status::from)), Some(Status::Signal(_)));
        self.cause.get_or_insert(if signalled { Cause::Signal } else { Cause::Exit });
    }

    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()> {
        let blind = findings.survivors.iter().all(|survivor| matches!(survivor, Survivor::Unknown { .. }));
        if blind && (self.front.is_some() || self.outer.is_some()) {
            // A command can take away our descriptors; who forked us has its own, and takes over.
            penfold_sys::fork::exit_now(1);
        }
        self.tell(leader.map(Status::from), findings.clone());
        ControlFlow::Continue(())
    }
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
}

impl Inner {
    fn poll(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Ready {
        let settle = self.holds_inherited.then_some(SETTLE);
        let until = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = [timeout, until, settle].into_iter().flatten().min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let sources = [
            Some(self.signals.as_fd()),
            self.starting.as_ref().map(Starting::link),
            self.outer.as_ref().map(AsFd::as_fd),
            self.channel_open.then_some(self.held.setup.channel.as_fd()),
            self.front.as_ref().map(AsFd::as_fd),
            self.owner.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        fds.extend(watch);
        let happened = poll(&mut fds, timeout.as_ref());
        if happened.is_err() {
            fds.clear();
        }
        let mut fds = fds.iter();
        let [signals, link, outer, channel, front, owner] =
            sources.map(|source| source.is_some() && fds.next().is_some_and(|fd| !fd.revents().is_empty()));
        if self.holds_inherited && !matches!(happened, Ok(1..)) {
            // A pipe is at its end when the command closes it, not when we do.
            self.holds_inherited = false;
            let _ = penfold_sys::descriptors::drop_inherited();
            penfold_sys::memory::forget_code();
        }
        Ready { signals, link, outer, channel, front, owner }
    }

    /// Children are reaped by the driver; a TERM to the supervisor itself is a wish to stop.
    fn take_signals(&mut self) -> Option<Event> {
        let mut event = None;
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == Signal::TERM.as_raw() {
                event = Some(self.end(Cause::Stop, Event::StopRequested));
            }
        }
        event
    }

    fn take_news(&mut self) -> Option<Event> {
        let news = self.starting.as_ref()?.news();
        match news {
            Ok(Some(News::Running)) => {
                if self.starting.as_ref().is_some_and(|starting| !starting.stays()) {
                    self.starting = None;
                }
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
            Ok(Received::Message(Request::Stop { signal: number, spared_group, grace_ms })) => {
                if let Some(signal) = signal(number) {
                    self.ladder.signal = signal;
                }
                self.ladder.spared_group = spared_group;
                if let Some(grace) = grace_ms {
                    self.ladder.grace = Duration::from_millis(grace);
                }
                Some(self.end(Cause::Stop, Event::StopRequested))
            }
            Ok(Received::Message(Request::Kill)) => Some(self.end(Cause::Kill, Event::KillRequested)),
            Ok(Received::Message(Request::Forward(number))) => {
                self.forward(number);
                None
            }
            Ok(Received::Message(Request::OwnerGone)) => self.owner_gone(),
            Ok(Received::Message(_) | Received::Nothing) => None,
            // The front closes its end only by dying, and its pidfd says so.
            Ok(Received::End) | Err(_) => {
                self.channel_open = false;
                None
            }
        }
    }

    fn forward(&mut self, number: i32) {
        let Some(signal) = signal(number) else { return };
        if let Some(leader) = &self.leader {
            // A leader that is gone, or another user's, is as deaf as one that ignores it.
            let _ = rustix::process::pidfd_send_signal(leader, signal);
        }
    }

    fn owner_gone(&mut self) -> Option<Event> {
        match self.held.setup.spec.on_owner_exit {
            OwnerExit::Kill => Some(self.end(Cause::Owner, Event::KillRequested)),
            OwnerExit::Stop => Some(self.end(Cause::Owner, Event::StopRequested)),
            OwnerExit::Keep => None,
        }
    }

    /// The first reason stands; what the table makes of the event is its own business.
    fn end(&mut self, cause: Cause, event: Event) -> Event {
        if self.cause.is_none() {
            let grace = u64::try_from(self.ladder.grace.as_millis()).unwrap_or(u64::MAX);
            let stops = event == Event::StopRequested;
            let ending = if stops { Ending::Stopping(grace) } else { Ending::Killing };
            let _ = wire::send(&self.held.setup.channel, &Answer::Ending(ending));
        }
        self.cause.get_or_insert(cause);
        event
    }

    fn tell(&mut self, reaped: Option<Status>, findings: Findings) {
        let exit = self.status.or(reaped).filter(|_| self.failure.is_none());
        let cause = match self.failure {
            Some(_) => Cause::StartFailed,
            None => self.cause.unwrap_or(Cause::Exit),
        };
        let report = self.held.report(cause, exit, self.failure.clone(), findings);
        let outcome = conclude(&self.held.setup, &report);
        // A front that is gone is told nothing; one that was told already does not listen any more.
        let _ = wire::send(&self.held.setup.channel, &Answer::Outcome(Box::new(outcome)));
    }
}
