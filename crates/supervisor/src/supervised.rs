//! What the supervisors of a child and of an adopted tree have in common: they ask the [`Policy`] and carry out its decisions.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs};
use penfold_state::events::EventKind;
use penfold_state::state::Status;
use penfold_sys::signal::{SignalFd, signal};
use penfold_teardown::lifecycle::Event;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::control_server::ClientMessage;
use crate::exec::{self, ExecRequest};
use crate::outcome::{Outcome, Report};
use crate::policy::{Activity, Deadlines, Decision, Effect, Kind, Policy, Terms, outdo};
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::wire::{self, Answer, Ending, Request, Size};

/// A sandbox, its policy, and the descriptors that both supervisors need.
pub(crate) struct Supervised {
    pub(crate) prepared: Prepared,
    pub(crate) policy: Policy,
    pub(crate) signals: Option<SignalFd>,
    /// A handle to the leader, for signals that are passed on.
    pub(crate) leader: Option<OwnedFd>,
    /// Its pid, where it is a child of ours or of our init.
    pub(crate) leader_pid: Option<Pid>,
    /// The life of a process that looks after a command put into the sandbox.
    supervise: fn(Prepared) -> !,
}

/// How long a member that stops us may hold up the steps of an end that has begun.
const CARE: Duration = Duration::from_secs(1);

impl Supervised {
    pub(crate) fn new(
        prepared: Prepared,
        kind: Kind,
        signals: Option<SignalFd>,
        leader: Option<OwnedFd>,
        supervise: fn(Prepared) -> !,
    ) -> Supervised {
        let policy = policy(&prepared, kind);
        Supervised { prepared, policy, signals, leader, leader_pid: None, supervise }
    }

    /// Sets an alarm to when this wait is over, so that a member that stops this process holds up no deadline, and no end
    /// that has begun.
    pub(crate) fn set_alarm(&mut self, deadline: Option<Instant>, timeout: Option<Duration>) {
        let now = Instant::now();
        let ending = self.policy.is_ending();
        // Not anew for each of many short waits.
        let at =
            if ending { timeout.and_then(|timeout| now.checked_add(timeout.max(CARE))) } else { deadline };
        let Some(at) = at else { return };
        let is_soon = self.prepared.alarm.as_ref().is_some_and(|(_, set)| *set > now && *set <= at);
        if !(ending && is_soon) {
            self.prepared.set_alarm(at);
        }
    }

    /// What the idle time is measured by.
    pub(crate) fn activity(&self) -> Option<Activity> {
        self.prepared.detached.as_ref().map(|detached| detached.activity())
    }

    /// Takes all queued signals. Children are reaped by the drive.
    pub(crate) fn take_signals(&mut self) -> Option<Event> {
        let mut event = None;
        while let Some(Ok(Some(signalled))) = self.signals.as_ref().map(SignalFd::take) {
            if signalled.signal == Signal::TERM.as_raw() {
                event = self.decide(|policy| policy.terminated(signalled.carried)).or(event);
            }
        }
        event
    }

    /// Hears the clients. `init` is ours in the pid namespace, if there is one.
    pub(crate) fn serve(&mut self, ready: &[bool], init: Option<Pid>) -> Option<Event> {
        if !ready.contains(&true) {
            return None;
        }
        let execs =
            |prepared: &Prepared| prepared.detached.as_ref().map_or(0, |detached| detached.execs.running());
        let before = execs(&self.prepared);
        let said = self.prepared.detached.as_mut().map(|detached| detached.serve(ready)).unwrap_or_default();
        if execs(&self.prepared) < before && !self.policy.is_ending() {
            self.say(Status::Running);
        }
        let mut wanted = None;
        for ClientMessage { client, request, fds } in said {
            let (event, answer) = match request {
                Request::Exec(exec) => (None, self.exec(ExecRequest { client, exec, fds }, init)),
                Request::Attach(size) => (None, Some(self.at_terminal(client, size, fds.into_iter().next()))),
                Request::Resize(size) => (None, Some(self.at_terminal(client, size, None))),
                request => self.act(&request),
            };
            if let (Some(detached), Some(answer)) = (&self.prepared.detached, answer) {
                detached.control.answer(client, &answer);
            }
            wanted = outdo(wanted, event);
        }
        wanted
    }

    fn at_terminal(&mut self, client: u64, size: Size, stream: Option<OwnedFd>) -> Answer {
        match self
            .prepared
            .detached
            .as_mut()
            .map(|detached| detached.output.at_terminal(client, size, stream))
        {
            Some(Ok(())) => Answer::Done,
            Some(Err(reason)) => Answer::Refused(reason),
            None => Answer::Refused("the sandbox has no terminal".to_owned()),
        }
    }

    /// Puts a command into the sandbox. The process that looks after that command answers the client from now on.
    fn exec(&mut self, request: ExecRequest, init: Option<Pid>) -> Option<Answer> {
        let begun = match self.policy.refuse_exec() {
            Some(reason) => Err(reason.to_owned()),
            None => exec::begin(&mut self.prepared, request, init, self.supervise),
        };
        begun.err().map(Answer::Refused)
    }

    /// Does what a client asks for. Returns what follows for the sandbox, and the answer.
    pub(crate) fn act(&mut self, request: &Request) -> (Option<Event>, Option<Answer>) {
        let answer = match *request {
            Request::Stop { .. }
            | Request::Kill
            | Request::Patience(_)
            | Request::OwnerGone
            | Request::Extend(_) => {
                let decision = self.policy.request(request, Instant::now());
                return self.carry_out(decision);
            }
            Request::Key { signal, group } => {
                let deaf = self.is_deaf(group);
                let decision = self.policy.key(signal, group, deaf, Instant::now());
                return self.carry_out(decision);
            }
            Request::Heard => Answer::Done,
            Request::Forward(number) => self.forward(number).map_or_else(Answer::Refused, |()| Answer::Done),
            Request::KillExec(number) => {
                let ended =
                    self.prepared.detached.as_ref().is_some_and(|detached| detached.execs.stop(number));
                let refused = || Answer::Refused(format!("no exec {number} runs in this sandbox"));
                if ended { Answer::Done } else { refused() }
            }
            Request::LetGo => Answer::Refused("only who started it lets it go".to_owned()),
            // Without descriptors, over the channel of a launcher.
            Request::Exec(_) | Request::Attach(_) | Request::Resize(_) => {
                Answer::Refused("what it needs did not come with it".to_owned())
            }
        };
        (None, Some(answer))
    }

    /// Whether INT of a terminal, sent to this group, does nothing to the leader: it ignores it or is in another group.
    fn is_deaf(&self, group: i32) -> bool {
        // One that has ended has no dispositions, and its pid may be another's.
        let alive = self.leader.as_ref().is_some_and(|leader| !has_ended(leader));
        let (Some(pid), true) = (self.leader_pid, alive) else { return false };
        let Ok(mut proc) = ProcFs::open() else { return false };
        let elsewhere = matches!(proc.stat(pid), Ok(Some(stat)) if !stat.is_dead() && stat.group != group);
        elsewhere || matches!(proc.status(pid), Ok(Some(status)) if status.is_deaf_to(Signal::INT))
    }

    /// A leader that is gone, or another user's, is as deaf as one that ignores the signal.
    fn forward(&self, number: i32) -> Result<(), String> {
        let signal = signal(number).ok_or_else(|| format!("no signal {number}"))?;
        let leader = self.leader.as_ref().ok_or("the command cannot be seen")?;
        let name = if self.policy.is_adopted() { "process" } else { "command" };
        rustix::process::pidfd_send_signal(leader, signal)
            .map_err(|error| format!("the {name} cannot be signalled: {error}"))
    }

    /// Asks the policy, carries out its decision, and returns what follows for the sandbox.
    pub(crate) fn decide(&mut self, ask: impl FnOnce(&mut Policy) -> Decision) -> Option<Event> {
        let decision = ask(&mut self.policy);
        self.carry_out(decision).0
    }

    fn carry_out(&mut self, decision: Decision) -> (Option<Event>, Option<Answer>) {
        let Decision { event, answer, effect } = decision;
        match effect {
            None => {}
            Some(Effect::Begin { cause, ending }) => {
                self.prepared.find_nested();
                // The client of an adoption expects nothing but that the tree is looked after, or why it is not.
                if !self.policy.is_adopted() {
                    let _ = wire::send(&self.prepared.setup.channel, &Answer::Ending(ending));
                }
                if let Some(detached) = &mut self.prepared.detached {
                    detached.execs.ends();
                    let grace_ms = match ending {
                        Ending::Stopping(grace) => Some(grace),
                        Ending::Killing => None,
                    };
                    detached.happened([EventKind::Stop { cause, grace_ms }]);
                }
                self.say(Status::Stopping);
            }
            Some(Effect::PassOn) => {
                let _ = wire::offer(&self.prepared.setup.channel, &Answer::PassedOn);
            }
            Some(Effect::Renew { ms, end }) => {
                if let Some(detached) = &mut self.prepared.detached {
                    detached.lease.renew(ms, end);
                }
                self.say(Status::Running);
            }
        }
        (event, answer)
    }

    /// Writes down how things stand.
    pub(crate) fn say(&self, status: Status) {
        if let Some(detached) = &self.prepared.detached {
            detached.say(status, self.prepared.level, &self.prepared.missing);
        }
    }

    /// Sends the outcome to the launcher and to all clients.
    pub(crate) fn tell(&mut self, report: &Report) {
        let outcome = Outcome { of_exec: self.policy.is_exec(), ..self.prepared.conclude(report) };
        self.policy.reported(&outcome);
        let answer = Answer::Outcome(Box::new(outcome));
        if let Some(detached) = &self.prepared.detached {
            detached.control.tell(&answer);
        }
        // A launcher that is gone does not get it, and one that had its answer does not listen any more.
        let _ = wire::send(&self.prepared.setup.channel, &answer);
    }
}

/// Whether the process of a pidfd has ended.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The policy of a sandbox, with the lease as it is now. An adopted tree has no time limit, and never outlives one of its
/// supervisors.
fn policy(prepared: &Prepared, kind: Kind) -> Policy {
    let spec = &prepared.setup.spec;
    let detach = spec.detach.as_ref();
    let started = kind != Kind::Adopted;
    let limit = spec.timeout.filter(|_| started);
    let keep = started && detach.is_some_and(|detach| detach.keep);
    let deadlines = Deadlines {
        limit: limit.and_then(|limit| prepared.setup.began.checked_add(limit)),
        lease: prepared.detached.as_ref().and_then(|detached| detached.lease.end()),
        idle: detach.and_then(|detach| detach.idle),
    };
    Policy::new(
        Terms { kind, stop_policy: prepared.stop_policy(), on_owner_exit: spec.on_owner_exit, keep },
        deadlines,
    )
}
