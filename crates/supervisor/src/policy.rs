//! The policy of a supervisor: when a sandbox ends, for which cause, and how politely.
//!
//! Pure: the policy reads no descriptor and no clock. The driver, `event_loop.rs`, reports events; `supervision.rs`
//! carries out each [`Decision`]. The lifecycle table decides the effect of an [`LifecycleEvent`].

use std::time::{Duration, Instant};

use penfold_state::OwnerExit;
use penfold_state::time::whole_millis;
use penfold_sys::signal::signal_of_number;
use penfold_teardown::lifecycle::LifecycleEvent;
use penfold_teardown::{Cause, StopPolicy};
use rustix::process::Signal;

use crate::outcome::{ExitStatus, Outcome};
use crate::wire::{Answer, Ending, Request};

/// The time after an INT of the terminal in which the leader's end counts as its consequence.
const INTERRUPT_WINDOW: Duration = Duration::from_mins(1);
/// [`INTERRUPTS_TO_KILL`] INT of the terminal within this time mean that a person insists.
const INSIST_WINDOW: Duration = Duration::from_secs(1);
const INTERRUPTS_TO_KILL: usize = 3;

/// The kind of a sandbox, by its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaderKind {
    /// A child of the supervisor; its launcher waits for it.
    Foreground,
    /// A child without a launcher; the sandbox has a control socket.
    Detached,
    /// The child of an exec supervisor in a running sandbox.
    Exec,
    /// A process that penfold did not start.
    Adopted,
}

/// The fixed options of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) kind: LeaderKind,
    pub(crate) stop_policy: StopPolicy,
    pub(crate) on_owner_exit: OwnerExit,
    /// The sandbox continues when supervisor or standby is killed.
    pub(crate) keep: bool,
}

/// The times at which a sandbox ends without a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadlines {
    /// The end of the time limit.
    pub(crate) limit: Option<Instant>,
    /// The end of the lease.
    pub(crate) lease: Option<Instant>,
    /// The time that the sandbox may be idle.
    pub(crate) idle: Option<Duration>,
}

/// The activity that the idle time is measured by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activity {
    /// The time of the last output or input.
    pub(crate) last: Instant,
    /// The number of running execs.
    pub(crate) execs: usize,
}

/// The result of an event or request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The event for the lifecycle.
    pub(crate) event: Option<LifecycleEvent>,
    /// The answer to the client.
    pub(crate) answer: Option<Answer>,
    /// The change that the driver records before it answers.
    pub(crate) effect: Option<Effect>,
}

/// A change that the driver records or sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The end of the sandbox begins.
    Begin {
        /// The first cause of the end.
        cause: Cause,
        /// The way of the end.
        ending: Ending,
    },
    /// The leader handles the signal of its terminal itself.
    PassOn,
    /// The lease was renewed for this many milliseconds; 0 means without end.
    Renew {
        /// The length in milliseconds.
        ms: u64,
        /// The end of the lease.
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

/// Returns the stronger of two events requested in one poll round: a kill wins, otherwise the later one.
pub(crate) fn stronger_event(
    earlier: Option<LifecycleEvent>,
    later: Option<LifecycleEvent>,
) -> Option<LifecycleEvent> {
    if earlier == Some(LifecycleEvent::KillRequested) { earlier } else { later.or(earlier) }
}

/// The policy of one sandbox.
pub(crate) struct Policy {
    terms: Terms,
    deadlines: Deadlines,
    stop: StopPolicy,
    cause: Option<Cause>,
    /// The times of the last INT signals of the terminal that were left to the leader.
    interrupts: Vec<Instant>,
    /// The outcome of a teardown with survivors after its patience.
    stuck: Option<Box<Outcome>>,
}

impl Policy {
    pub(crate) fn new(terms: Terms, deadlines: Deadlines) -> Policy {
        Policy { terms, deadlines, stop: terms.stop_policy, cause: None, interrupts: Vec::new(), stuck: None }
    }

    pub(crate) fn is_exec(&self) -> bool {
        self.terms.kind == LeaderKind::Exec
    }

    pub(crate) fn is_adopted(&self) -> bool {
        self.terms.kind == LeaderKind::Adopted
    }

    /// Returns the policy by which the sandbox is ended.
    pub(crate) fn stop_policy(&self) -> StopPolicy {
        self.stop
    }

    /// Returns the first cause of the end, which is never replaced.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Tells whether the sandbox is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.cause.is_some()
    }

    /// Decides on a request. The driver handles requests that need a descriptor; these change nothing here.
    pub(crate) fn request(&mut self, request: &Request, now: Instant) -> Decision {
        if let (Request::Stop { .. } | Request::Kill, Some(stuck)) = (request, &self.stuck) {
            // The sandbox is looked at again at once, but the client gets the known survivors without a wait.
            let look = Decision { event: Some(LifecycleEvent::Look), ..Decision::default() };
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
            Request::StdinClosed { kill } => self.stdin_closed(kill),
            Request::Extend(_) if self.is_ending() => Decision::refuse("the sandbox is being ended"),
            Request::Extend(ms) => self.extend(ms, now).answer(Answer::Done),
            Request::Forward(_)
            | Request::Key { .. }
            | Request::Heard
            | Request::By(_)
            | Request::Exec(_)
            | Request::KillExec(_)
            | Request::StopExec { .. }
            | Request::SignalExec { .. }
            | Request::ResizeExec { .. }
            | Request::CloseExecInput(_)
            | Request::Execs
            | Request::UnwrittenEnds
            | Request::AwaitExec(_)
            | Request::Attach(_)
            | Request::Resize(_)
            | Request::LetGo => Decision::default(),
        }
    }

    /// Returns the reason why no command may be started in the sandbox.
    pub(crate) fn refuse_exec(&self) -> Option<&'static str> {
        if self.is_adopted() {
            return Some("penfold did not start this sandbox and puts no command into it");
        }
        self.is_ending().then_some("the sandbox is being ended")
    }

    fn stop(&mut self, number: i32, spared_group: Option<i32>, grace_ms: Option<u64>) -> Decision {
        // The client of an exec sends the signal that it received itself: it does not know the sandbox's polite signal.
        // Its process group is not part of the sandbox.
        let free = !self.is_exec() || self.stop.signal == Signal::TERM;
        if let Some(signal) = signal_of_number(number).filter(|_| free) {
            self.stop.signal = signal;
        }
        self.stop.spared_group = spared_group.filter(|_| !self.is_exec());
        let grace = grace_ms.map_or(self.terms.stop_policy.grace, Duration::from_millis);
        self.stop.give(grace, self.is_ending());
        let stopping = self.stopping();
        self.end(Cause::Stop, LifecycleEvent::StopRequested).answer(Answer::Ending(stopping))
    }

    /// Decides on the request of the sandbox's supervisor to stop an exec. Without a signal or grace, the exec's own
    /// apply.
    pub(crate) fn stop_exec(&mut self, signal: Option<Signal>, grace_ms: Option<u64>) -> Decision {
        if self.stuck.is_some() {
            return Decision { event: Some(LifecycleEvent::Look), ..Decision::default() };
        }
        self.stop.signal = signal.unwrap_or(self.stop.signal);
        let grace = grace_ms.map_or(self.terms.stop_policy.grace, Duration::from_millis);
        self.stop.give(grace, self.is_ending());
        self.end(Cause::Stop, LifecycleEvent::StopRequested)
    }

    /// Decides on INT or QUIT that a terminal sent to its foreground group, the launcher's group. With `ignores_int`,
    /// INT has no effect on the leader.
    ///
    /// The leader comes first: it may die of INT, clean up and exit, or continue.
    /// - INT that the leader ignores is a stop request.
    /// - INT during an end is a kill request.
    /// - QUIT after an INT that did not end the sandbox is a kill request.
    pub(crate) fn key(&mut self, number: i32, group: i32, ignores_int: bool, now: Instant) -> Decision {
        if self.terms.kind != LeaderKind::Foreground {
            return Decision::refuse("the sandbox does not run in the foreground");
        }
        if number == Signal::QUIT.as_raw() {
            // QUIT without an earlier INT is for the leader alone.
            return if self.is_interrupted(now) { self.kill(Cause::Kill) } else { Decision::default() };
        }
        if self.is_ending() {
            return self.kill(Cause::Kill);
        }
        self.stop.spared_group = Some(group).filter(|&group| group != 0);
        if ignores_int {
            return self.end_politely(Cause::Stop);
        }
        self.interrupts.retain(|at| now.saturating_duration_since(*at) < INSIST_WINDOW);
        self.interrupts.push(now);
        if self.interrupts.len() >= INTERRUPTS_TO_KILL {
            return self.kill(Cause::Kill);
        }
        Decision { effect: Some(Effect::PassOn), ..Decision::default() }
    }

    /// Tells whether an event of the leader now counts as a consequence of an INT of its terminal.
    fn is_interrupted(&self, now: Instant) -> bool {
        self.interrupts.last().is_some_and(|at| now.saturating_duration_since(*at) < INTERRUPT_WINDOW)
    }

    /// Decides on the remaining members once the leader has ended. After an INT of the terminal they get the grace: a
    /// person requested the end, and the leader did not simply leave them behind.
    pub(crate) fn leader_left_members(&mut self, status: Option<ExitStatus>, now: Instant) -> Decision {
        if self.is_ending() || !self.is_interrupted(now) {
            return Decision::default();
        }
        self.end_politely(Self::cause_of(status))
    }

    /// Decides on the end of the standard input, which only the launcher of a foreground sandbox watches.
    fn stdin_closed(&mut self, kill: bool) -> Decision {
        if self.terms.kind != LeaderKind::Foreground {
            return Decision::refuse("the sandbox does not run in the foreground");
        }
        if kill {
            return self.kill(Cause::Stdin);
        }
        // The launcher has waited for the first half of the grace.
        self.stop.give(self.terms.stop_policy.grace / 2, self.is_ending());
        self.end(Cause::Stdin, LifecycleEvent::StopRequested)
    }

    fn extend(&mut self, ms: u64, now: Instant) -> Decision {
        if !matches!(self.terms.kind, LeaderKind::Detached | LeaderKind::Adopted) {
            return Decision::default();
        }
        let length = (ms > 0).then(|| Duration::from_millis(ms));
        let end = length.and_then(|length| now.checked_add(length));
        self.deadlines.lease = end;
        Decision { effect: Some(Effect::Renew { ms, end }), ..Decision::default() }
    }

    /// Decides on a SIGTERM to the supervisor, which stops the sandbox. An enclosing supervisor adds its own polite
    /// signal.
    pub(crate) fn terminated(&mut self, carried: Option<Signal>) -> Decision {
        match carried {
            // Members of an adopted tree get that signal from the enclosing supervisor: they are not descendants of
            // this one.
            Some(_) if self.is_adopted() => return Decision::default(),
            Some(signal) if self.stop.signal == Signal::TERM => self.stop.signal = signal,
            Some(_) | None => {}
        }
        self.end_politely(Cause::Stop)
    }

    /// Decides on the death of the standby.
    pub(crate) fn standby_gone(&mut self) -> Decision {
        if self.terms.keep { Decision::default() } else { self.kill(Cause::Supervisor) }
    }

    /// Decides on the death of a launcher that did not detach the sandbox. The id of a detached sandbox is unknown
    /// then.
    pub(crate) fn launcher_gone(&mut self) -> Decision {
        if self.terms.kind == LeaderKind::Detached { self.kill(Cause::Owner) } else { self.owner_gone() }
    }

    pub(crate) fn owner_gone(&mut self) -> Decision {
        match self.terms.on_owner_exit {
            OwnerExit::Kill => self.kill(Cause::Owner),
            OwnerExit::Stop => self.end_politely(Cause::Owner),
            OwnerExit::Keep => Decision::default(),
        }
    }

    /// Returns the next deadline and its cause.
    pub(crate) fn next_deadline(&self, activity: Option<Activity>) -> Option<(Instant, Cause)> {
        let Deadlines { limit, lease, idle } = self.deadlines;
        let idle = activity
            .filter(|activity| activity.execs == 0)
            .and_then(|activity| activity.last.checked_add(idle?));
        let all = [(limit, Cause::Timeout), (idle, Cause::Idle), (lease, Cause::Ttl)];
        all.into_iter().filter_map(|(at, cause)| Some((at?, cause))).min_by_key(|(at, _)| *at)
    }

    /// Returns the cause of a deadline that had passed at `looked`, before poll(2). A deadline that expired since then
    /// is ignored for this round: a renewal may still be queued.
    pub(crate) fn overdue(&self, looked: Instant, activity: Option<Activity>) -> Option<Cause> {
        self.next_deadline(activity).filter(|(at, _)| *at <= looked).map(|(_, cause)| cause)
    }

    /// Decides on a deadline that passed before the leader ended.
    pub(crate) fn time_out(&mut self, cause: Cause) -> Decision {
        self.deadlines.limit = None;
        self.end_politely(cause)
    }

    /// Sets the cause when the kernel's OOM killer has killed the leader: [`Cause::Memory`] or [`Cause::Oom`].
    pub(crate) fn out_of_memory(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
    }

    /// Handles the leader's end, with its exit if known. Returns the cause of the sandbox's end.
    pub(crate) fn leader_ended(&mut self, status: Option<ExitStatus>) -> Cause {
        self.cancel_lease();
        *self.cause.get_or_insert(Self::cause_of(status))
    }

    fn cause_of(status: Option<ExitStatus>) -> Cause {
        if matches!(status, Some(ExitStatus::Signal(_))) { Cause::Signal } else { Cause::Exit }
    }

    /// Handles an outcome that was sent to the clients. With survivors, each later stop or kill gets this outcome at
    /// once.
    pub(crate) fn reported(&mut self, outcome: &Outcome) {
        self.stuck = (!outcome.report.findings.verified).then(|| Box::new(outcome.clone()));
    }

    pub(crate) fn kill(&mut self, cause: Cause) -> Decision {
        self.end(cause, LifecycleEvent::KillRequested)
    }

    /// Ends the sandbox with the grace of its spec, or with less if a shorter end has begun.
    fn end_politely(&mut self, cause: Cause) -> Decision {
        self.stop.give(self.terms.stop_policy.grace, self.is_ending());
        self.end(cause, LifecycleEvent::StopRequested)
    }

    /// Begins or hastens the end; the first cause stands.
    fn end(&mut self, cause: Cause, event: LifecycleEvent) -> Decision {
        let first = self.cause.is_none();
        let ending = if event == LifecycleEvent::StopRequested { self.stopping() } else { Ending::Killing };
        if first {
            self.cause = Some(cause);
            self.cancel_lease();
        }
        let effect = first.then_some(Effect::Begin { cause, ending });
        Decision { event: Some(event), answer: None, effect }
    }

    /// Cancels lease and idle time. The time limit stays and can shorten a longer grace.
    fn cancel_lease(&mut self) {
        (self.deadlines.lease, self.deadlines.idle) = (None, None);
    }

    /// Cancels the time limit of a command that has ended; what it has left goes on.
    pub(crate) fn cancel_limit(&mut self) {
        self.deadlines.limit = None;
    }

    fn stopping(&self) -> Ending {
        Ending::Stopping(whole_millis(self.stop.grace))
    }
}

#[cfg(test)]
mod tests;
