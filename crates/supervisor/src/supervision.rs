//! The parts shared by the supervisor of a child and of an adopted tree: ask the [`Policy`], carry out its decisions.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs};
use penfold_state::events::EventKind;
use penfold_state::evidence::fingerprints;
use penfold_state::launch::is_own_failure;
use penfold_state::state::Status;
use penfold_state::{Requester, TtlAction};
use penfold_sys::signal::{SignalFd, SignalRecord, signal_of_number};
use penfold_teardown::lifecycle::LifecycleEvent;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::control_server::ClientMessage;
use crate::detached_parts::DetachedParts;
use crate::exec::{self, NewExec};
use crate::exec_request::{EXEC_REQUEST, ExecRequest};
use crate::outcome::{ExitStatus, Outcome, Report};
use crate::policy::{Activity, Deadlines, Decision, Effect, LeaderKind, Policy, Terms, stronger_event};
use crate::poll::poll_or_pause;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::wire::{self, Answer, Ending, Request, Size};

/// A sandbox, its policy, and the descriptors that both kinds of supervisor need.
pub(crate) struct Supervision {
    pub(crate) parts: SandboxParts,
    pub(crate) policy: Policy,
    pub(crate) signals: Option<SignalFd>,
    /// A pidfd of the leader, for forwarded signals.
    pub(crate) leader: Option<OwnedFd>,
    /// Who requested the end of the sandbox.
    by: Option<Requester>,
    /// Who sends the requests that come over the channel of the launcher.
    sender: Option<Requester>,
    /// The key of the terminal that was last left to the leader.
    key: Option<Requester>,
    /// A client has asked to send SIGTERM to the leader only.
    pub(crate) forwarded_term: bool,
    /// The leader's pid, if it is a child of this process or of our init.
    pub(crate) leader_pid: Option<Pid>,
    /// The main function of an exec supervisor.
    supervise: fn(SandboxParts) -> !,
}

/// The shortest alarm during a teardown. A member that stops the supervisor can delay a teardown step by this time.
const MIN_ALARM_DELAY: Duration = Duration::from_secs(1);

impl Supervision {
    pub(crate) fn new(
        parts: SandboxParts,
        kind: LeaderKind,
        signals: Option<SignalFd>,
        leader: Option<OwnedFd>,
        supervise: fn(SandboxParts) -> !,
    ) -> Supervision {
        let policy = policy(&parts, kind);
        Supervision {
            parts,
            policy,
            signals,
            leader,
            by: None,
            sender: None,
            key: None,
            forwarded_term: false,
            leader_pid: None,
            supervise,
        }
    }

    /// Sets the alarm to the end of this wait. A member that stops this process can then delay neither a deadline nor a
    /// teardown step.
    pub(crate) fn set_alarm(&mut self, deadline: Option<Instant>, timeout: Option<Duration>) {
        let now = Instant::now();
        let ending = self.policy.is_ending();
        // A teardown has many short waits; a timer that is still pending is not set again for each.
        let at = if ending {
            timeout.and_then(|timeout| now.checked_add(timeout.max(MIN_ALARM_DELAY)))
        } else {
            deadline
        };
        let Some(at) = at else { return };
        let is_soon = self.parts.alarm.as_ref().is_some_and(|(_, set)| *set > now && *set <= at);
        if !(ending && is_soon) {
            self.parts.set_alarm(at);
        }
    }

    /// Returns the activity that the idle time is measured by.
    pub(crate) fn activity(&self) -> Option<Activity> {
        self.parts.kind.detached().map(DetachedParts::activity)
    }

    /// Reads all queued signals. Children are reaped by the driver.
    pub(crate) fn take_signals(&mut self) -> Option<LifecycleEvent> {
        let mut event = None;
        while let Some(Ok(Some(signalled))) = self.signals.as_ref().map(SignalFd::take) {
            if signalled.signal == Signal::TERM.as_raw() {
                let by = sender(&signalled);
                event = self.decide_for(by, |policy| policy.terminated(signalled.carried)).or(event);
            } else if signalled.signal == EXEC_REQUEST && self.policy.is_exec() {
                let request = ExecRequest::decode(signalled.value);
                event = stronger_event(event, request.and_then(|request| self.act_on_exec(request)));
            }
        }
        event
    }

    /// Handles a request of the sandbox's supervisor to this exec supervisor.
    fn act_on_exec(&mut self, request: ExecRequest) -> Option<LifecycleEvent> {
        match request {
            ExecRequest::Kill => self.handle(&Request::Kill, None).0,
            ExecRequest::Stop { signal: number, grace_ms } => {
                self.decide(|policy| policy.stop_exec(signal_of_number(number.into()), grace_ms))
            }
            ExecRequest::Signal(number) => {
                let _ = self.forward(number.into());
                None
            }
            ExecRequest::Resize(size) => {
                if let SandboxKind::RecordedExec(exec) = &mut self.parts.kind {
                    exec.resize(size);
                }
                None
            }
            ExecRequest::CloseInput => {
                if let SandboxKind::RecordedExec(exec) = &mut self.parts.kind {
                    exec.close_input();
                }
                None
            }
        }
    }

    /// Handles the ready descriptors of the sandbox's kind. `init` is our init in the pid namespace, if there is one.
    pub(crate) fn serve(&mut self, ready: &[bool], init: Option<Pid>) -> Option<LifecycleEvent> {
        match &mut self.parts.kind {
            SandboxKind::Detached(_) => self.serve_clients(ready, init),
            SandboxKind::RecordedExec(exec) => {
                if ready.contains(&true) {
                    exec.serve(ready);
                }
                None
            }
            SandboxKind::Foreground(_) | SandboxKind::Exec => None,
        }
    }

    /// Handles ready client connections of a detached sandbox.
    fn serve_clients(&mut self, ready: &[bool], init: Option<Pid>) -> Option<LifecycleEvent> {
        let (level, patience) = (self.parts.level, self.parts.setup.spec.patience);
        let SandboxKind::Detached(detached) = &mut self.parts.kind else { return None };
        if detached.execs.next_look().is_some() {
            detached.settle_execs(level, patience);
            detached.answer_exec_waiters();
        }
        if !ready.contains(&true) {
            self.write_stale_state();
            return None;
        }
        let before = detached.execs.running();
        let messages = detached.serve(ready);
        if detached.execs.running() < before {
            detached.settle_execs(level, patience);
            detached.mark_state_stale();
        }
        self.write_stale_state();
        let mut strongest = None;
        for ClientMessage { client, request, by, fds } in messages {
            let (event, answer) = match request {
                Request::Exec(exec) => (None, self.exec(NewExec { client, exec, fds }, init)),
                Request::Attach(size) => {
                    (None, Some(self.attach_or_resize(client, size, fds.into_iter().next())))
                }
                Request::Resize(size) => (None, Some(self.attach_or_resize(client, size, None))),
                Request::AwaitExec(number) => {
                    if let SandboxKind::Detached(detached) = &mut self.parts.kind {
                        detached.await_exec(client, number);
                    }
                    (None, None)
                }
                request => self.handle(&request, by),
            };
            if let (SandboxKind::Detached(detached), Some(answer)) = (&self.parts.kind, answer) {
                detached.control.answer(client, &answer);
            }
            strongest = stronger_event(strongest, event);
        }
        if let SandboxKind::Detached(detached) = &mut self.parts.kind {
            detached.answer_exec_waiters();
        }
        strongest
    }

    /// Writes `state.json` if it lists an ended exec and is due.
    fn write_stale_state(&self) {
        let due = self.parts.kind.detached().and_then(DetachedParts::next_state);
        if due.is_some_and(|due| due.is_zero()) && !self.policy.is_ending() {
            self.write_status(Status::Running);
        }
    }

    fn attach_or_resize(&mut self, client: u64, size: Size, stream: Option<OwnedFd>) -> Answer {
        let SandboxKind::Detached(detached) = &mut self.parts.kind else {
            return Answer::Refused("the sandbox has no terminal".to_owned());
        };
        match detached.output.attach_or_resize(client, size, stream) {
            Ok(()) => Answer::Done,
            Err(reason) => Answer::Refused(reason),
        }
    }

    /// Starts a command in the sandbox. From then on its exec supervisor answers the client.
    fn exec(&mut self, request: NewExec, init: Option<Pid>) -> Option<Answer> {
        let leaf = self.parts.leaf_path.as_deref();
        let begun = match self.policy.refuse_exec() {
            Some(reason) => Err(reason.to_owned()),
            None if leaf.is_some_and(fingerprints::is_frozen) => Err("the sandbox is paused".to_owned()),
            None => exec::begin_exec(&mut self.parts, request, init, self.supervise),
        };
        begun.err().map(Answer::Refused)
    }

    /// Handles a request of the launcher, which names the sender of a signal before.
    pub(crate) fn handle_launcher(&mut self, request: Request) -> Option<LifecycleEvent> {
        if let Request::By(by) = request {
            self.sender = Some(by);
            return None;
        }
        let by = self.sender.take();
        self.handle(&request, by).0
    }

    /// Takes the request of a command that has ended the members itself, since this process has not answered in time.
    pub(crate) fn take_noted(&mut self) -> Option<LifecycleEvent> {
        let files = &self.parts.kind.detached().filter(|_| !self.policy.is_ending())?.files();
        let asked = files.asked()?;
        let stop = Request::Stop { signal: 0, spared_group: None, grace_ms: Some(0) };
        let request = if asked.kills { Request::Kill } else { stop };
        self.handle(&request, Some(asked.by)).0
    }

    /// Handles a request. Returns the resulting event for the sandbox, and the answer.
    fn handle(
        &mut self,
        request: &Request,
        by: Option<Requester>,
    ) -> (Option<LifecycleEvent>, Option<Answer>) {
        let answer = match *request {
            Request::Stop { .. }
            | Request::Kill
            | Request::Patience(_)
            | Request::OwnerGone
            | Request::StdinClosed { .. }
            | Request::Extend(_) => {
                let decision = self.policy.request(request, Instant::now());
                return self.carry_out(decision, by);
            }
            Request::Key { signal, group } => {
                let ignores_int = self.ignores_int(group);
                let decision = self.policy.key(signal, group, ignores_int, Instant::now());
                if decision.effect == Some(Effect::PassOn) {
                    self.key.clone_from(&by);
                }
                return self.carry_out(decision, by);
            }
            Request::Heard | Request::By(_) => Answer::Done,
            Request::Forward(number) => self.forward(number).map_or_else(Answer::Refused, |()| Answer::Done),
            Request::KillExec(number) => self.ask_exec(number, Some(ExecRequest::Kill)),
            Request::StopExec { number, signal, grace_ms } => {
                let request = u8::try_from(signal).map(|signal| ExecRequest::Stop { signal, grace_ms });
                self.ask_exec(number, request.ok())
            }
            Request::SignalExec { number, signal } => {
                self.ask_exec(number, u8::try_from(signal).ok().map(ExecRequest::Signal))
            }
            Request::ResizeExec { number, size } => self.ask_exec(number, Some(ExecRequest::Resize(size))),
            Request::CloseExecInput(number) => self.ask_exec(number, Some(ExecRequest::CloseInput)),
            Request::Execs => {
                let detached = self.parts.kind.detached();
                Answer::Execs(detached.map(|detached| detached.execs.numbers()).unwrap_or_default())
            }
            Request::UnwrittenEnds => {
                let detached = self.parts.kind.detached();
                Answer::UnwrittenEnds(detached.map(|detached| detached.execs.unwritten()).unwrap_or_default())
            }
            Request::LetGo => Answer::Refused("only the launcher may detach".to_owned()),
            // These requests carry descriptors, which the channel of a launcher does not transport.
            Request::Exec(_) | Request::Attach(_) | Request::Resize(_) | Request::AwaitExec(_) => {
                Answer::Refused("the descriptors of the request are missing".to_owned())
            }
        };
        (None, Some(answer))
    }

    /// Sends a request to an exec supervisor; `None` for a signal that does not exist.
    fn ask_exec(&self, number: u32, request: Option<ExecRequest>) -> Answer {
        let request = request.filter(|request| match *request {
            ExecRequest::Signal(number) => signal_of_number(number.into()).is_some(),
            ExecRequest::Stop { signal: number, .. } => {
                number == 0 || signal_of_number(number.into()).is_some()
            }
            ExecRequest::Kill | ExecRequest::Resize(_) | ExecRequest::CloseInput => true,
        });
        let Some(request) = request else { return Answer::Refused("there is no such signal".to_owned()) };
        let SandboxKind::Detached(detached) = &self.parts.kind else {
            return Answer::Refused("it runs in the foreground".to_owned());
        };
        detached.execs.request(number, request).map_or_else(Answer::Refused, |()| Answer::Done)
    }

    /// Tells whether a terminal's SIGINT to `group` has no effect: the leader ignores SIGINT or is in another group.
    fn ignores_int(&self, group: i32) -> bool {
        // An ended leader has no dispositions, and its pid may be reused.
        let alive = self.leader.as_ref().is_some_and(|leader| !has_ended(leader));
        let (Some(pid), true) = (self.leader_pid, alive) else { return false };
        let Ok(mut proc) = ProcFs::open() else { return false };
        let in_other_group =
            matches!(proc.stat(pid), Ok(Some(stat)) if !stat.is_dead() && stat.group != group);
        in_other_group || matches!(proc.status(pid), Ok(Some(status)) if status.ignores(Signal::INT))
    }

    /// Forwards a signal to the leader. A leader that has ended, or belongs to another user, is an error for the
    /// answer.
    fn forward(&mut self, number: i32) -> Result<(), String> {
        let signal = signal_of_number(number).ok_or_else(|| format!("no signal {number}"))?;
        let leader = self.leader.as_ref().ok_or("the command cannot be seen")?;
        let name = if self.policy.is_adopted() { "process" } else { "command" };
        self.forwarded_term |= signal == Signal::TERM;
        rustix::process::pidfd_send_signal(leader, signal)
            .map_err(|error| format!("the {name} cannot be signalled: {error}"))
    }

    /// Asks the policy, carries out its decision, and returns the resulting event.
    pub(crate) fn decide(&mut self, ask: impl FnOnce(&mut Policy) -> Decision) -> Option<LifecycleEvent> {
        self.decide_for(None, ask)
    }

    /// As [`Supervision::decide`]; if the end begins, `by` has requested it.
    pub(crate) fn decide_for(
        &mut self,
        by: Option<Requester>,
        ask: impl FnOnce(&mut Policy) -> Decision,
    ) -> Option<LifecycleEvent> {
        let decision = ask(&mut self.policy);
        self.carry_out(decision, by).0
    }

    /// Freezes the sandbox at the end of its lease, if it is to be paused then, and removes the lease. False if it is to be ended.
    pub(crate) fn pause_at_ttl(&mut self) -> bool {
        let pauses =
            self.parts.setup.spec.detach.as_ref().is_some_and(|detach| detach.ttl_action == TtlAction::Pause);
        let leaf = self.parts.leaf_path.as_deref().filter(|_| pauses && !self.policy.is_ending());
        let Some(Ok(Some(leaf))) = leaf.map(Leaf::open) else { return false };
        if leaf.freeze().is_err() {
            return false;
        }
        penfold_sys::crash_point!("paused-at-ttl");
        // After it: a supervisor that takes over finds the lease at its end, and freezes again.
        self.handle(&Request::Extend(0), None);
        true
    }

    /// Decides on the death of the owner.
    pub(crate) fn owner_gone(&mut self) -> Option<LifecycleEvent> {
        let by = Requester { pid: self.parts.setup.owner_pid, ..Requester::default() };
        self.decide_for(by.pid.is_some().then_some(by), Policy::owner_gone)
    }

    /// Decides on the members that the leader has left.
    pub(crate) fn leader_left_members(&mut self, status: Option<ExitStatus>) -> Option<LifecycleEvent> {
        let key = self.key.clone();
        self.decide_for(key, |policy| policy.leader_left_members(status, Instant::now()))
    }

    /// Returns who requested the end of the sandbox.
    pub(crate) fn requester(&self) -> Option<Requester> {
        self.by.clone()
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        by: Option<Requester>,
    ) -> (Option<LifecycleEvent>, Option<Answer>) {
        let Decision { event, answer, effect } = decision;
        match effect {
            None => {}
            Some(Effect::Begin { cause, ending }) => {
                self.parts.find_nested();
                self.by.clone_from(&by);
                // The client of an adoption expects only one answer: the tree is supervised, or the reason why not.
                if !self.policy.is_adopted() {
                    let _ = wire::send_message(&self.parts.setup.channel, &Answer::Ending(ending));
                }
                if let SandboxKind::Detached(detached) = &mut self.parts.kind {
                    detached.execs.mark_ending();
                    let grace_ms = match ending {
                        Ending::Stopping(grace) => Some(grace),
                        Ending::Killing => None,
                    };
                    detached.publish_events([EventKind::Stop { cause, grace_ms, by: by.map(Box::new) }]);
                }
                self.write_status(Status::Stopping);
            }
            Some(Effect::PassOn) => {
                let _ = wire::offer_message(&self.parts.setup.channel, &Answer::PassedOn);
            }
            Some(Effect::Renew { ms, end }) => {
                if let SandboxKind::Detached(detached) = &mut self.parts.kind {
                    detached.lease.renew(ms, end);
                }
                self.write_status(Status::Running);
            }
        }
        (event, answer)
    }

    /// Writes the status to `state.json`.
    pub(crate) fn write_status(&self, status: Status) {
        if let SandboxKind::Detached(detached) = &self.parts.kind {
            detached.write_status(status, self.parts.level, &self.parts.missing);
        }
    }

    /// Sends the outcome to the launcher and to all clients.
    pub(crate) fn publish_outcome(&mut self, report: &Report) {
        let exec = match &self.parts.kind {
            SandboxKind::RecordedExec(exec) => Some(exec.number()),
            SandboxKind::Foreground(_) | SandboxKind::Detached(_) | SandboxKind::Exec => None,
        };
        let outcome = Outcome { of_exec: self.policy.is_exec(), exec, ..self.parts.conclude(report) };
        self.policy.reported(&outcome);
        let answer = Answer::Outcome(Box::new(outcome));
        let verified = report.findings.verified;
        if !verified {
            // The launcher does not wait for the exit of this process.
            self.parts.keep(report);
            self.publish_delay(report);
        }
        if let SandboxKind::Detached(detached) = &self.parts.kind {
            detached.control.broadcast(&answer);
        }
        // The send fails if the launcher is dead or has already received its answer.
        let _ = wire::send_message(&self.parts.setup.channel, &answer);
        self.parts.count(report);
        if verified {
            self.parts.keep(report);
        }
    }
}

impl Supervision {
    /// Publishes that the restart waits for survivors.
    fn publish_delay(&self, report: &Report) {
        let detach = self.parts.setup.spec.detach.as_ref();
        let has_policy = detach.is_some_and(|detach| detach.restart.is_some());
        if let Some(detached) = self.parts.kind.detached().filter(|_| has_policy && is_own_failure(report)) {
            let reason = match report.findings.survivors.len() {
                1 => "1 of its members or resources is not gone".to_owned(),
                left => format!("{left} of its members or resources are not gone"),
            };
            detached.publish_no_restart(reason);
        }
    }
}

/// Returns the sender of a SIGTERM to this process. The standby forwards those of others, whose senders are unknown.
fn sender(signalled: &SignalRecord) -> Option<Requester> {
    let pid = i32::try_from(signalled.sender).ok().filter(|&pid| pid > 0)?;
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    (parent != Some(pid)).then(|| Requester {
        signal: Some(signalled.signal),
        pid: Some(pid),
        uid: Some(signalled.uid),
        ..Requester::default()
    })
}

/// Tells whether the process of a pidfd has ended.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll_or_pause(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Builds the policy, with the current end of the lease. An adopted tree has no time limit and always ends when one of
/// its supervisors dies.
fn policy(parts: &SandboxParts, kind: LeaderKind) -> Policy {
    let spec = &parts.setup.spec;
    let detach = spec.detach.as_ref();
    let started = kind != LeaderKind::Adopted;
    let limit = spec.timeout.filter(|_| started);
    let keep = started && detach.is_some_and(|detach| detach.keep);
    let deadlines = Deadlines {
        limit: limit.and_then(|limit| parts.setup.began.checked_add(limit)),
        lease: parts.kind.detached().and_then(|detached| detached.lease.end()),
        idle: detach.and_then(|detach| detach.idle),
    };
    Policy::new(
        Terms { kind, stop_policy: parts.stop_policy(), on_owner_exit: spec.on_owner_exit, keep },
        deadlines,
    )
}
