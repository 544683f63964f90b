//! The supervisor of an adopted tree.

use std::io;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_sandbox::events::What;
use penfold_sandbox::state::Word;
use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, SignalSet, signal};
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Leader, Scope, Search, Teardown, drive};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, getppid, setsid};

use super::join::Joined;
use crate::desk::Said;
use crate::environment::CHILD;
use crate::held::Held;
use crate::inner::{NAME, Outer};
use crate::outcome::Outcome;
use crate::poll::poll;
use crate::wire::{self, Answer, Ending, Request};

/// Runs the supervisor; ends when the sandbox is gone.
pub(super) fn run(mut held: Held, joined: Joined, outer: Outer) -> ! {
    let _ = rustix::thread::set_name(NAME);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let _ = setsid();
    let Ok(signals) = signals() else {
        // Who forked this process takes over.
        penfold_sys::fork::exit_now(1)
    };
    let mut fds = [PollFd::new(&outer.apart, PollFlags::IN), PollFd::new(&outer.pidfd, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
    if let Some(desk) = &mut held.desk {
        desk.has_run();
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut held, search) else { penfold_sys::fork::exit_now(1) };
    teardown.lead_by(Leader { pid: root.pid, session: root.session });
    held.note_running(root.pid);
    held.identify(&mut teardown, root.pid, getppid(), Word::Running);
    if let Some(desk) = &held.desk {
        let command = held.setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned());
        desk.happened([What::Adopted { pid: root.pid.as_raw_nonzero().get(), command: command.collect() }]);
    }
    penfold_sys::crash_point!("adopted-kept");
    let _ = wire::offer(&held.setup.channel, &Answer::Running);
    penfold_sys::memory::forget_code();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    Adopted::new(held, Some(signals), Some(outer.pidfd), pidfd).look_after(teardown)
}

/// Ends the tree in the place of a supervisor that was killed.
pub(super) fn take_over(mut held: Held, joined: Joined) -> ! {
    penfold_sys::crash_point!("taking-over");
    if let Some(desk) = &mut held.desk {
        desk.inherit();
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut held, search) else {
        // Without a look at /proc nothing is known to be gone: the record stays for the next command.
        penfold_sys::fork::exit_now(1)
    };
    teardown.lead_by(Leader { pid: root.pid, session: root.session });
    held.identify(&mut teardown, root.pid, None, Word::Stopping);
    // Without signals the timeouts of the drive still bring it forward.
    let mut host = Adopted::new(held, signals().ok(), None, pidfd);
    host.due = Some(host.end(Cause::Supervisor, Event::KillRequested));
    host.look_after(teardown)
}

fn signals() -> io::Result<SignalFd> {
    SignalFd::open(&SignalSet::of([CHILD, Signal::TERM.as_raw()]))
}

fn teardown(held: &mut Held, search: Search) -> Option<Teardown> {
    let proc = held.proc.take().map_or_else(ProcFs::open, Ok).ok()?;
    let mut teardown = Teardown::new(proc, held.leaf.take(), Scope::Host(Box::new(search)));
    teardown.want_details();
    Some(teardown)
}

/// The host of the teardown.
struct Adopted {
    held: Held,
    signals: Option<SignalFd>,
    /// Watched until it tells that its process has ended, which it does once.
    outer: Option<OwnedFd>,
    /// For signals that are passed on; watched while it lives.
    root: OwnedFd,
    root_lives: bool,
    ladder: Ladder,
    /// Something that is to be told at the next wait.
    due: Option<Event>,
    cause: Option<Cause>,
    /// What is left of it after a kill that took too long.
    stuck: Option<Box<Outcome>>,
}

impl Host for Adopted {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        let looked = Instant::now();
        let due = self.held.desk.as_ref().and_then(|desk| desk.due());
        let until = due.map(|(at, _)| at.saturating_duration_since(looked));
        let opens = self.held.desk.as_ref().and_then(|desk| desk.opens_in());
        let timeout = [timeout, until, opens].into_iter().flatten().min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let sources = [
            self.signals.as_ref().map(AsFd::as_fd),
            self.outer.as_ref().map(AsFd::as_fd),
            self.root_lives.then_some(self.root.as_fd()),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if let Some(desk) = &self.held.desk {
            fds.extend(desk.sources());
        }
        let before = fds.len();
        fds.extend(watch);
        if poll(&mut fds, timeout.as_ref()).is_err() {
            fds.clear();
        }
        let mut ready = fds.iter().take(before).map(|fd| !fd.revents().is_empty());
        let [signals, outer, root] = sources.map(|source| source.is_some() && ready.next().unwrap_or(false));
        let desk: Vec<bool> = ready.collect();
        if signals && self.is_asked_to_stop() {
            return Some(self.end_politely(Cause::Stop));
        }
        if outer {
            self.outer = None;
            return Some(self.end(Cause::Supervisor, Event::KillRequested));
        }
        // Before the end of the root: who asked for that is answered, and is its cause.
        if let Some(event) = self.serve(&desk) {
            return Some(event);
        }
        if root {
            self.root_lives = false;
            return Some(Event::LeaderExited);
        }
        // Not what was due before: the lease may have been renewed. What has passed since the look waits for the next, for who
        // has renewed it in time may not have been seen.
        let due = self.held.desk.as_ref().and_then(|desk| desk.due());
        let (_, cause) = due.filter(|(at, _)| *at <= looked)?;
        Some(self.end_politely(cause))
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn out_of_memory(&mut self) {
        self.cause.get_or_insert(Cause::Oom);
    }

    /// How it ended is told to its parent, and to nobody else.
    fn leader_ended(&mut self, _: Option<Exit>) {
        let cause = *self.cause.get_or_insert(Cause::Exit);
        if let Some(desk) = &mut self.held.desk {
            desk.ends();
            desk.write_exited(None, cause);
        }
    }

    fn stuck(&mut self, findings: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        self.say(Word::Unkillable);
        self.tell(findings.clone());
        ControlFlow::Continue(())
    }
}

impl Adopted {
    fn new(held: Held, signals: Option<SignalFd>, outer: Option<OwnedFd>, root: OwnedFd) -> Adopted {
        let ladder = held.ladder();
        Adopted { held, signals, outer, root, root_lives: true, ladder, due: None, cause: None, stuck: None }
    }

    /// Exits once nothing of it is left.
    fn look_after(mut self, mut teardown: Teardown) -> ! {
        let mut resources = std::mem::take(&mut self.held.resources);
        let findings = drive(&mut teardown, Phase::Running, &mut self, &mut resources);
        self.tell(findings);
        penfold_sys::fork::exit_now(0)
    }

    fn is_asked_to_stop(&self) -> bool {
        let mut asked = false;
        while let Some(Ok(Some(signalled))) = self.signals.as_ref().map(SignalFd::take) {
            // What a sandbox around this one passes on it says to the members itself: they are not below this process.
            asked |= signalled.signal == Signal::TERM.as_raw() && signalled.carried.is_none();
        }
        asked
    }

    fn serve(&mut self, ready: &[bool]) -> Option<Event> {
        if !ready.contains(&true) {
            return None;
        }
        let said = self.held.desk.as_mut().map(|desk| desk.serve(ready)).unwrap_or_default();
        let mut wanted = None;
        for Said { client, request, .. } in said {
            let (event, answer) = self.act(&request);
            if let Some(desk) = &self.held.desk {
                desk.answer(client, &answer);
            }
            if wanted != Some(Event::KillRequested) {
                wanted = event.or(wanted);
            }
        }
        wanted
    }

    fn act(&mut self, request: &Request) -> (Option<Event>, Answer) {
        if let (Request::Stop { .. } | Request::Kill, Some(stuck)) = (request, &self.stuck) {
            // It is tried again at once; who asks need not wait to hear what stood in the way so far.
            return (Some(Event::Look), Answer::Outcome(stuck.clone()));
        }
        let refused = |reason: &str| (None, Answer::Refused(reason.to_owned()));
        match *request {
            Request::Stop { signal: number, spared_group, grace_ms } => {
                if let Some(signal) = signal(number) {
                    self.ladder.signal = signal;
                }
                self.ladder.spared_group = spared_group;
                let grace = grace_ms.map_or(self.held.ladder().grace, Duration::from_millis);
                self.ladder.give(grace, self.cause.is_some());
                let event = self.end(Cause::Stop, Event::StopRequested);
                (Some(event), Answer::Ending(Ending::Stopping(millis(self.ladder.grace))))
            }
            Request::Kill => {
                (Some(self.end(Cause::Kill, Event::KillRequested)), Answer::Ending(Ending::Killing))
            }
            Request::Patience(ms) => {
                self.ladder.report_within(Duration::from_millis(ms), self.cause.is_some());
                (None, Answer::Done)
            }
            Request::Forward(number) => {
                let sent = signal(number).ok_or_else(|| format!("no signal {number}")).and_then(|signal| {
                    rustix::process::pidfd_send_signal(&self.root, signal)
                        .map_err(|error| format!("the process cannot be signalled: {error}"))
                });
                (None, sent.map_or_else(Answer::Refused, |()| Answer::Done))
            }
            Request::Extend(_) if self.cause.is_some() => refused("the sandbox is being ended"),
            Request::Extend(ms) => {
                if let Some(desk) = &mut self.held.desk {
                    desk.extend(ms);
                    self.say(Word::Running);
                }
                (None, Answer::Done)
            }
            Request::OwnerGone => (None, Answer::Done),
            Request::KillExec(number) => {
                (None, Answer::Refused(format!("no exec {number} runs in this sandbox")))
            }
            Request::Exec(_) => refused("penfold did not start this sandbox and puts no command into it"),
            Request::Attach(_) | Request::Resize(_) => refused("the sandbox has no terminal"),
        }
    }

    fn say(&self, word: Word) {
        if let Some(desk) = &self.held.desk {
            desk.say(word, self.held.level, &self.held.missing);
        }
    }

    /// Ends it with the grace that it was made with. Nobody has to wait longer because somebody wanted to.
    fn end_politely(&mut self, cause: Cause) -> Event {
        self.ladder.give(self.held.ladder().grace, self.cause.is_some());
        self.end(cause, Event::StopRequested)
    }

    /// The first reason stands.
    fn end(&mut self, cause: Cause, event: Event) -> Event {
        if self.cause.is_none() {
            self.cause = Some(cause);
            let polite = event == Event::StopRequested;
            let grace_ms = polite.then(|| millis(self.ladder.grace));
            if let Some(desk) = &mut self.held.desk {
                desk.ends();
                desk.happened([What::Stop { cause, grace_ms }]);
            }
            self.say(Word::Stopping);
        }
        event
    }

    fn tell(&mut self, findings: Findings) {
        let report = self.held.report(self.cause.unwrap_or(Cause::Exit), None, None, findings);
        let outcome = Box::new(self.held.conclude(&report));
        self.stuck = (!outcome.report.findings.verified).then(|| outcome.clone());
        let answer = Answer::Outcome(outcome);
        if let Some(desk) = &self.held.desk {
            desk.tell(&answer);
        }
        // Who adopts may still wait to hear that it is looked after; once it has, it is gone.
        let _ = wire::send(&self.held.setup.channel, &answer);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
