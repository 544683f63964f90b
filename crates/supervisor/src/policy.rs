//! When a sandbox ends, why, and how politely: the policy of a supervisor.
//!
//! Pure: the policy reads no descriptor and no clock. The driver, `host.rs`, reports what happened;
//! `supervised.rs` carries out each [`Decision`]. What the lifecycle makes of an [`Event`] is decided by its own table.

use std::time::{Duration, Instant};

use penfold_state::OwnerExit;
use penfold_state::time::millis;
use penfold_sys::signal::signal;
use penfold_teardown::lifecycle::Event;
use penfold_teardown::{Cause, StopPolicy};
use rustix::process::Signal;

use crate::outcome::{ExitStatus, Outcome};
use crate::wire::{Answer, Ending, Request};

/// How long after an INT of its terminal the end of a leader counts as what came of it.
const AFTERMATH: Duration = Duration::from_mins(1);
/// Within this time so many INT of the terminal mean that a person insists.
const AT_ONCE: Duration = Duration::from_secs(1);
const INSISTS: usize = 3;

/// Which leader the supervisor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A child whose launcher waits for it.
    Foreground,
    /// A child that runs without its launcher, and has a control socket.
    Detached,
    /// A child that was put into a running sandbox.
    Exec,
    /// A process that penfold did not start.
    Adopted,
}

/// What a sandbox was made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) stop_policy: StopPolicy,
    pub(crate) on_owner_exit: OwnerExit,
    /// The sandbox goes on when one of its two supervisors is killed.
    pub(crate) keep: bool,
}

/// When a sandbox ends without a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadlines {
    /// The end of the time limit.
    pub(crate) limit: Option<Instant>,
    /// The end of the lease.
    pub(crate) lease: Option<Instant>,
    /// How long the sandbox may be idle.
    pub(crate) idle: Option<Duration>,
}

/// What the idle time is measured by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activity {
    /// The time of the last output or input.
    pub(crate) last: Instant,
    /// How many execs run.
    pub(crate) execs: usize,
}

/// What follows from something that happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The event for the lifecycle.
    pub(crate) event: Option<Event>,
    /// The answer to the client.
    pub(crate) answer: Option<Answer>,
    /// What the driver writes down before it answers.
    pub(crate) effect: Option<Effect>,
}

/// What a driver writes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The sandbox is being ended from now on.
    Begin {
        /// Why.
        cause: Cause,
        /// How.
        ending: Ending,
    },
    /// The leader is left to deal with what its terminal sent.
    PassOn,
    /// The lease is so many milliseconds long; 0 means that it never ends.
    Renew {
        /// The length.
        ms: u64,
        /// When it ends.
        end: Option<Instant>,
    },
}

impl Decision {
    fn answer(self, answer: Answer) -> Decision {
        Decision { answer: Some(answer), ..self }
    }

    fn refuse(reason: &str) -> Decision {
        Decision::default().answer(Answer::Refused(reason.to_owned()))
    }
}

/// The stronger of the events that clients asked for in one poll round: a kill outdoes all others, else the last one counts.
pub(crate) fn outdo(earlier: Option<Event>, later: Option<Event>) -> Option<Event> {
    if earlier == Some(Event::KillRequested) { earlier } else { later.or(earlier) }
}

/// The policy of one sandbox.
pub(crate) struct Policy {
    terms: Terms,
    deadlines: Deadlines,
    stop: StopPolicy,
    cause: Option<Cause>,
    /// When a terminal sent INT that the leader is left to deal with, the last ones.
    interrupts: Vec<Instant>,
    /// The outcome of a teardown whose patience is over while something is left.
    stuck: Option<Box<Outcome>>,
}

impl Policy {
    pub(crate) fn new(terms: Terms, deadlines: Deadlines) -> Policy {
        Policy { terms, deadlines, stop: terms.stop_policy, cause: None, interrupts: Vec::new(), stuck: None }
    }

    pub(crate) fn is_exec(&self) -> bool {
        self.terms.kind == Kind::Exec
    }

    pub(crate) fn is_adopted(&self) -> bool {
        self.terms.kind == Kind::Adopted
    }

    /// How to end the sandbox.
    pub(crate) fn stop_policy(&self) -> StopPolicy {
        self.stop
    }

    /// Why the sandbox ends; the first cause stands.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether the sandbox is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.cause.is_some()
    }

    /// Decides on a request. Those that need a descriptor are the driver's, and change nothing here.
    pub(crate) fn request(&mut self, request: &Request, now: Instant) -> Decision {
        if let (Request::Stop { .. } | Request::Kill, Some(stuck)) = (request, &self.stuck) {
            // The next look comes at once, but the client need not wait for it to learn what is left.
            let look = Decision { event: Some(Event::Look), ..Decision::default() };
            return look.answer(Answer::Outcome(stuck.clone()));
        }
        match *request {
            Request::Stop { signal, spared_group, grace_ms } => self.stop(signal, spared_group, grace_ms),
            Request::Kill => self.kill(Cause::Kill).answer(Answer::Ending(Ending::Killing)),
            Request::Patience(ms) => {
                self.stop.report_within(Duration::from_millis(ms), self.is_ending());
                Decision::default().answer(Answer::Done)
            }
            Request::OwnerGone if self.is_adopted() => Decision::default().answer(Answer::Done),
            Request::OwnerGone => self.owner_gone(),
            Request::Extend(_) if self.is_ending() => Decision::refuse("the sandbox is being ended"),
            Request::Extend(ms) => self.extend(ms, now).answer(Answer::Done),
            Request::Forward(_)
            | Request::Key { .. }
            | Request::Heard
            | Request::Exec(_)
            | Request::KillExec(_)
            | Request::Attach(_)
            | Request::Resize(_)
            | Request::LetGo => Decision::default(),
        }
    }

    /// Why no command may be put into the sandbox.
    pub(crate) fn refuse_exec(&self) -> Option<&'static str> {
        if self.is_adopted() {
            return Some("penfold did not start this sandbox and puts no command into it");
        }
        self.is_ending().then_some("the sandbox is being ended")
    }

    fn stop(&mut self, number: i32, spared_group: Option<i32>, grace_ms: Option<u64>) -> Decision {
        // The client of an exec passes on the signal that it got itself: it does not know the sandbox's polite signal, and
        // its process group is no part of the sandbox.
        let free = !self.is_exec() || self.stop.signal == Signal::TERM;
        if let Some(signal) = signal(number).filter(|_| free) {
            self.stop.signal = signal;
        }
        self.stop.spared_group = spared_group.filter(|_| !self.is_exec());
        let grace = grace_ms.map_or(self.terms.stop_policy.grace, Duration::from_millis);
        self.stop.give(grace, self.is_ending());
        let stopping = self.stopping();
        self.end(Cause::Stop, Event::StopRequested).answer(Answer::Ending(stopping))
    }

    /// A terminal has sent INT or QUIT to its foreground group, that of the launcher. `deaf`: INT does nothing to the leader.
    ///
    /// The leader comes first: it may die of INT, clean up and exit, or go on. Only where nothing comes of INT is it the
    /// wish to stop, and what is being ended already, or was not ended by INT, is killed.
    pub(crate) fn key(&mut self, number: i32, group: i32, deaf: bool, now: Instant) -> Decision {
        if self.terms.kind != Kind::Foreground {
            return Decision::refuse("the sandbox does not run in the foreground");
        }
        if number == Signal::QUIT.as_raw() {
            // Without an INT before, it is the leader's alone.
            return if self.is_interrupted(now) { self.kill(Cause::Kill) } else { Decision::default() };
        }
        if self.is_ending() {
            return self.kill(Cause::Kill);
        }
        self.stop.spared_group = Some(group).filter(|&group| group != 0);
        if deaf {
            return self.end_politely(Cause::Stop);
        }
        self.interrupts.retain(|at| now.saturating_duration_since(*at) < AT_ONCE);
        self.interrupts.push(now);
        if self.interrupts.len() >= INSISTS {
            return self.kill(Cause::Kill);
        }
        Decision { effect: Some(Effect::PassOn), ..Decision::default() }
    }

    /// Whether what happens to the leader now follows from an INT of its terminal.
    fn is_interrupted(&self, now: Instant) -> bool {
        self.interrupts.last().is_some_and(|at| now.saturating_duration_since(*at) < AFTERMATH)
    }

    /// The leader has ended; decides on the members that it has left. After an INT of the terminal they get the grace: it was
    /// a person who wanted an end, and not the leader who forgot them.
    pub(crate) fn rest(&mut self, status: Option<ExitStatus>, now: Instant) -> Decision {
        if self.is_ending() || !self.is_interrupted(now) {
            return Decision::default();
        }
        self.end_politely(Self::cause_of(status))
    }

    fn extend(&mut self, ms: u64, now: Instant) -> Decision {
        if !matches!(self.terms.kind, Kind::Detached | Kind::Adopted) {
            return Decision::default();
        }
        let length = (ms > 0).then(|| Duration::from_millis(ms));
        let end = length.and_then(|length| now.checked_add(length));
        self.deadlines.lease = end;
        Decision { effect: Some(Effect::Renew { ms, end }), ..Decision::default() }
    }

    /// A SIGTERM to the supervisor stops the sandbox. A supervisor around this one sends its own polite signal along.
    pub(crate) fn terminated(&mut self, carried: Option<Signal>) -> Decision {
        match carried {
            // The members of an adopted tree get that signal from the supervisor around: they are not below this one.
            Some(_) if self.is_adopted() => return Decision::default(),
            Some(signal) if self.stop.signal == Signal::TERM => self.stop.signal = signal,
            Some(_) | None => {}
        }
        self.end_politely(Cause::Stop)
    }

    /// The other supervisor was killed.
    pub(crate) fn standby_gone(&mut self) -> Decision {
        if self.terms.keep { Decision::default() } else { self.kill(Cause::Supervisor) }
    }

    /// The launcher has died before it let the sandbox go. Nobody knows the id of a detached sandbox by then.
    pub(crate) fn launcher_gone(&mut self) -> Decision {
        if self.terms.kind == Kind::Detached { self.kill(Cause::Owner) } else { self.owner_gone() }
    }

    pub(crate) fn owner_gone(&mut self) -> Decision {
        match self.terms.on_owner_exit {
            OwnerExit::Kill => self.kill(Cause::Owner),
            OwnerExit::Stop => self.end_politely(Cause::Owner),
            OwnerExit::Keep => Decision::default(),
        }
    }

    /// The next deadline, and the cause that it is.
    pub(crate) fn next_deadline(&self, activity: Option<Activity>) -> Option<(Instant, Cause)> {
        let Deadlines { limit, lease, idle } = self.deadlines;
        let idle = activity
            .filter(|activity| activity.execs == 0)
            .and_then(|activity| activity.last.checked_add(idle?));
        let all = [(limit, Cause::Timeout), (idle, Cause::Idle), (lease, Cause::Ttl)];
        all.into_iter().filter_map(|(at, cause)| Some((at?, cause))).min_by_key(|(at, _)| *at)
    }

    /// The cause of a deadline that had passed when the driver looked at the clock, before it called poll(2). One that
    /// expired since then waits for the next round: a renewal may still be queued.
    pub(crate) fn overdue(&self, looked: Instant, activity: Option<Activity>) -> Option<Cause> {
        self.next_deadline(activity).filter(|(at, _)| *at <= looked).map(|(_, cause)| cause)
    }

    /// A deadline has passed, and the leader had not ended before it.
    pub(crate) fn time_out(&mut self, cause: Cause) -> Decision {
        self.deadlines.limit = None;
        self.end_politely(cause)
    }

    /// The kernel killed the leader because the sandbox had no memory left.
    pub(crate) fn out_of_memory(&mut self) {
        self.cause.get_or_insert(Cause::Oom);
    }

    /// The leader has ended, and how if that is known. Returns why the sandbox ends.
    pub(crate) fn leader_ended(&mut self, status: Option<ExitStatus>) -> Cause {
        self.cancel_lease();
        *self.cause.get_or_insert(Self::cause_of(status))
    }

    fn cause_of(status: Option<ExitStatus>) -> Cause {
        if matches!(status, Some(ExitStatus::Signal(_))) { Cause::Signal } else { Cause::Exit }
    }

    /// The clients were sent this outcome. Where something is left, each later stop or kill gets it at once.
    pub(crate) fn reported(&mut self, outcome: &Outcome) {
        self.stuck = (!outcome.report.findings.verified).then(|| Box::new(outcome.clone()));
    }

    pub(crate) fn kill(&mut self, cause: Cause) -> Decision {
        self.end(cause, Event::KillRequested)
    }

    /// Ends the sandbox with the grace that it was made with, or less if it is being ended with less.
    fn end_politely(&mut self, cause: Cause) -> Decision {
        self.stop.give(self.terms.stop_policy.grace, self.is_ending());
        self.end(cause, Event::StopRequested)
    }

    /// The first cause stands.
    fn end(&mut self, cause: Cause, event: Event) -> Decision {
        let first = self.cause.is_none();
        let ending = if event == Event::StopRequested { self.stopping() } else { Ending::Killing };
        if first {
            self.cause = Some(cause);
            self.cancel_lease();
        }
        let effect = first.then_some(Effect::Begin { cause, ending });
        Decision { event: Some(event), answer: None, effect }
    }

    /// Lease and idle time end nothing any more. The time limit still shortens a longer grace.
    fn cancel_lease(&mut self) {
        (self.deadlines.lease, self.deadlines.idle) = (None, None);
    }

    fn stopping(&self) -> Ending {
        Ending::Stopping(millis(self.stop.grace))
    }
}

#[cfg(test)]
mod tests;
