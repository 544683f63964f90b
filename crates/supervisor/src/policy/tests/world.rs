//! The fake host.
//!
//! It follows the rules of the real host: requests before deadlines, `looked` before poll(2), the lifecycle table.
//! Grace and patience are armed as by the driver.

use penfold_teardown::lifecycle::{Action, step_lifecycle};

use super::*;

/// The host and the driver.
pub(super) struct World {
    pub(super) base: Instant,
    pub(super) now: u64,
    pub(super) policy: Policy,
    pub(super) history: History,
    pub(super) phase: Phase,
    pub(super) grace: Option<u64>,
    pub(super) patience: Option<u64>,
    pub(super) asked: Option<u64>,
    pub(super) killed: Option<u64>,
    pub(super) reported: Option<u64>,
    pub(super) looks: usize,
    pub(super) begun: usize,
    turns: usize,
}

impl World {
    pub(super) fn new(script: Script) -> World {
        let base = Instant::now();
        let at = |ticks: u64| base + ms(ticks);
        let deadlines =
            Deadlines { limit: script.limit.map(at), lease: script.lease.map(at), idle: script.idle.map(ms) };
        World {
            base,
            now: 0,
            policy: Policy::new(script.terms, deadlines),
            history: History::new(script),
            phase: Phase::Running,
            grace: None,
            patience: None,
            asked: None,
            killed: None,
            reported: None,
            looks: 0,
            begun: 0,
            turns: 0,
        }
    }

    pub(super) fn run(script: Script) -> World {
        let rounds = script.rounds.clone();
        let mut world = World::new(script);
        for round in rounds {
            world.round(&round);
        }
        // No more clients; the remaining deadlines expire.
        world.round(&Round { after: 10_000, inputs: Vec::new(), stalled: false });
        world
    }

    fn at(&self, ticks: u64) -> Instant {
        self.base + ms(ticks)
    }

    pub(super) fn activity(&self) -> Option<Activity> {
        let (last, execs) = self.history.active;
        has_control_socket(self.history.kind()).then(|| Activity { last: self.at(last), execs })
    }

    /// Sleeps until the inputs arrive, and handles them.
    pub(super) fn round(&mut self, round: &Round) {
        let arrival = self.now + round.after;
        let mut inputs = Some(&round.inputs);
        while let Some(queued) = inputs {
            self.turns += 1;
            assert!(self.turns < 1000, "the supervisor does not rest");
            self.due();
            let looked = self.now;
            let deadline = self.policy.next_deadline(self.activity()).map(|(at, _)| ticks(at - self.base));
            let wake = [deadline, self.grace, self.patience].into_iter().flatten().min();
            let stalled = round.stalled && !self.policy.is_ending();
            let event = if let Some(wake) = wake.filter(|wake| *wake < arrival && !stalled) {
                self.now = self.now.max(wake);
                None
            } else {
                self.now = arrival;
                inputs = None;
                queued.iter().fold(None, |wanted, input| stronger_event(wanted, self.take(input)))
            };
            let event = event.or_else(|| self.time_out(looked));
            self.apply(event);
        }
        self.due();
    }

    /// Passes one input to the policy and compares the decision with the model.
    fn take(&mut self, input: &Input) -> Option<LifecycleEvent> {
        let (event, answer, begins) = self.history.note(self.now, input);
        let now = self.at(self.now);
        let decision = match input {
            Input::Asked(request) => self.policy.request(request, now),
            Input::Term(carried) => self.policy.terminated(*carried),
            Input::StandbyGone => self.policy.standby_gone(),
            Input::LauncherGone => self.policy.launcher_gone(),
            Input::OwnerGone => self.policy.owner_gone(),
            Input::LeaderEnded(_) | Input::OutOfMemory => {
                if let Input::OutOfMemory = input {
                    self.policy.out_of_memory(Cause::Oom);
                }
                let status = if let Input::LeaderEnded(status) = input { *status } else { None };
                assert_eq!(Some(self.policy.leader_ended(status)), self.history.cause());
                Decision { event: Some(LifecycleEvent::LeaderExited), ..Decision::default() }
            }
            Input::Active(_) => Decision::default(),
        };
        assert_eq!((decision.event, &decision.answer), (event, &answer), "{input:?} at {}", self.now);
        self.check_effect(&decision, begins, input);
        self.compare();
        decision.event
    }

    fn check_effect(&mut self, decision: &Decision, begins: bool, input: &Input) {
        self.begun += usize::from(begins);
        let expected = match input {
            _ if begins => {
                let ending = match decision.event {
                    Some(LifecycleEvent::StopRequested) => Ending::Stopping(self.history.grace(self.now)),
                    _ => Ending::Killing,
                };
                Some(Effect::Begin { cause: self.history.cause().unwrap(), ending })
            }
            Input::Asked(Request::Extend(length))
                if decision.answer == Some(Answer::Done) && has_control_socket(self.history.kind()) =>
            {
                let end = (*length > 0).then(|| self.at(self.now + length));
                Some(Effect::Renew { ms: *length, end })
            }
            _ => None,
        };
        assert_eq!(decision.effect, expected, "{input:?} at {}", self.now);
    }

    /// Compares the policy's state with the model.
    fn compare(&self) {
        let stop_policy = self.policy.stop_policy();
        assert_eq!(self.policy.cause(), self.history.cause());
        assert_eq!(self.policy.is_ending(), self.history.cause().is_some());
        assert_eq!(ticks(stop_policy.patience), self.history.patience(self.now));
        assert_eq!((stop_policy.signal.as_raw(), stop_policy.spared_group), {
            (self.history.signal(), self.history.spared_group())
        });
        let adopted = self.history.kind() == LeaderKind::Adopted;
        assert_eq!(self.policy.refuse_exec().is_some(), self.policy.is_ending() || adopted);
        let deadline = self.policy.next_deadline(self.activity());
        assert_eq!(deadline, self.history.deadline().map(|(at, cause)| (self.at(at), cause)));
    }

    fn time_out(&mut self, looked: u64) -> Option<LifecycleEvent> {
        let overdue = self.policy.overdue(self.at(looked), self.activity());
        let expected = self.history.deadline().filter(|(at, _)| *at <= looked);
        assert_eq!(overdue, expected.map(|(_, cause)| cause), "at {}, looked at {looked}", self.now);
        let cause = overdue?;
        let begins = self.history.cause().is_none();
        self.history.wishes.push((self.now, EndRequest::Polite(cause, None)));
        self.history.timed_out = true;
        let decision = self.policy.time_out(cause);
        assert_eq!((decision.event, &decision.answer), (Some(LifecycleEvent::StopRequested), &None));
        self.check_effect(&decision, begins, &Input::Active(0));
        self.compare();
        decision.event
    }

    /// Handles grace and patience, as the driver arms them.
    fn due(&mut self) {
        if self.patience.take_if(|at| *at <= self.now).is_some() {
            self.apply(Some(LifecycleEvent::PatienceOver));
        }
        if self.grace.take_if(|at| *at <= self.now).is_some() {
            self.apply(Some(LifecycleEvent::GraceOver));
        }
        if self.patience.is_some_and(|at| at <= self.now) {
            self.due();
        }
    }

    pub(super) fn apply(&mut self, event: Option<LifecycleEvent>) {
        let Some(event) = event else { return };
        let StopPolicy { grace, patience, .. } = self.policy.stop_policy();
        if matches!(event, LifecycleEvent::StopRequested | LifecycleEvent::KillRequested) {
            self.grace = self.grace.map(|at| at.min(self.now + ticks(grace)));
            self.patience = self.patience.map(|at| at.min(self.now + ticks(patience)));
        }
        let (phase, action) = step_lifecycle(self.phase, event);
        self.phase = phase;
        match action {
            Action::Nothing | Action::Linger | Action::Release => {}
            Action::Ask => {
                assert_eq!(self.killed, None, "asked politely after a kill");
                if self.asked.is_none() {
                    self.asked = Some(self.now);
                    self.grace = Some(self.now + ticks(grace));
                }
            }
            Action::Kill if self.killed.is_none() => {
                self.killed = Some(self.now);
                self.grace = None;
                self.patience = Some(self.now + ticks(patience));
            }
            Action::Kill => self.looks += 1,
            Action::Report => {
                assert_eq!(self.reported.replace(self.now), None, "reported twice");
                self.policy.reported(&outcome(false));
                self.history.stuck = true;
            }
        }
    }
}
