//! Ends many sandboxes at once by requests to their supervisors, in one loop. Sandboxes that do not end this way go to
//! [`forced_kill`](super::forced_kill).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, SchedulerState};
use penfold_teardown::{Resource as _, Survivor};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, pidfd_open};

use super::forced_kill::ForceReason;
use super::worker_pool::WorkerPool;
use super::{EndLimits, EndMethod, EndProgress, StopResult};
use crate::client::{ANSWER, SupervisorClient, SupervisorClientError};
use crate::holders::{self, Locks};
use crate::resolve::{Resolver, SandboxRef};
use crate::timeout::poll_timeout;
use penfold_state::evidence::{self, Listing};
use penfold_state::record::Registry;
use penfold_state::survivors::LivingSurvivor;
use penfold_state::time::whole_millis;
use penfold_state::wire::{Answer, Ending, ReceiveResult, Request};
use penfold_state::{REMOVAL_LIMIT, Requester, ScopeDir};

/// The most supervisors that get a request at a time. More would delay each other until some seem unresponsive.
const ASKED: usize = 128;
/// Descriptors that are left for other uses.
const SPARE: u64 = 128;
/// The interval at which a lock is tried: short at first, and the last one while a connection would report the end.
const LOOK_FIRST: Duration = Duration::from_micros(500);
const LOOK_LAST: Duration = Duration::from_millis(20);
const LOOK_MEANWHILE: Duration = Duration::from_millis(100);
/// How often a listener may begin the end and hang up, so that another process takes over.
const PLACES: u32 = 3;
/// The longest stop time that is accepted from a listener that does not hold the lock.
const BELIEVED: Duration = Duration::from_mins(1);

/// Ends sandboxes in parallel, and returns the result for each, in the order of `targets`.
///
/// Each supervisor gets a request first. If it is dead, does not answer within a second, or does not finish in time,
/// its sandbox is ended directly. `slow` is called repeatedly with the number of sandboxes left.
pub(super) fn end_by_request(
    resolver: &Resolver,
    targets: &[SandboxRef],
    how: EndMethod,
    limits: &EndLimits,
    slow: &mut dyn FnMut(EndProgress),
) -> Vec<StopResult> {
    let begun = Instant::now();
    let opened =
        if targets.iter().any(SandboxRef::is_closed) { resolver.opened(targets) } else { Vec::new() };
    let targets = if opened.is_empty() { targets } else { opened.as_slice() };
    std::thread::scope(|scope| {
        let workers = WorkerPool::new(scope, resolver, targets, how, *limits);
        let mut talks = Conversations {
            registry: resolver.registry(),
            limits: *limits,
            request: request(how),
            workers,
            stop_results: targets.iter().map(|_| None).collect(),
            suspects: Vec::new(),
            survivors: resolver.fingerprints().survivors(),
            window: window(targets.len()),
        };
        let mut all: Vec<Conversation<'_>> = targets.iter().enumerate().map(Conversation::new).collect();
        while talks.turn(&mut all) {
            let ending = all.iter().filter(|talk| {
                matches!(talk.stage, ConversationStage::Ending(_) | ConversationStage::Parting(_))
            });
            slow(EndProgress {
                left: all.len(),
                begun: ending.count() + talks.ended(),
                since: begun.elapsed(),
            });
        }
        talks.look_for_members(resolver, targets);
        let Conversations { workers, mut stop_results, .. } = talks;
        workers.finish(&mut stop_results, &mut |left| {
            slow(EndProgress { left, begun: targets.len().saturating_sub(left), since: begun.elapsed() });
        });
        let unseen = || StopResult::Failed(std::io::Error::other("its end was not looked for"));
        let until = Instant::now() + REMOVAL_LIMIT;
        let settled = |(known, result): (&SandboxRef, Option<StopResult>)| {
            with_scope(known, result.unwrap_or_else(unseen), until)
        };
        targets.iter().zip(stop_results).map(settled).collect()
    })
}

/// Waits until the scope of an ended sandbox is removed, which its manager does after the exit of the supervisors.
fn with_scope(known: &SandboxRef, result: StopResult, until: Instant) -> StopResult {
    let recorded = known.intent.as_ref().and_then(|intent| intent.scope.as_deref());
    match (&result, recorded.and_then(|path| ScopeDir::of(path, &known.id))) {
        (StopResult::Gone, Some(scope)) => match scope.wait_gone(until) {
            Ok(()) => StopResult::Gone,
            Err(left) => {
                let survivor = Survivor::Resource { what: scope.describe(), reason: left.to_string() };
                StopResult::Left(vec![survivor])
            }
        },
        _ => result,
    }
}

fn request(how: EndMethod) -> Request {
    match how {
        EndMethod::Kill => Request::Kill,
        EndMethod::Stop { signal, grace } => Request::Stop {
            signal: signal.map_or(0, rustix::process::Signal::as_raw),
            spared_group: None,
            grace_ms: grace.map(whole_millis),
        },
    }
}

/// Returns the most connections, each with a pidfd of its listener: the records of all targets are open as well.
fn window(targets: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let records = u64::try_from(targets).unwrap_or(u64::MAX);
    let room = limit.unwrap_or(u64::MAX).saturating_sub(records).saturating_sub(SPARE) / 2;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

/// The conversation with one supervisor.
struct Conversation<'a> {
    index: usize,
    known: &'a SandboxRef,
    client: Option<SupervisorClient>,
    /// The pidfd of the process that listens, or exits, until it is known to be gone.
    listener: Option<OwnedFd>,
    stage: ConversationStage,
    /// The time of the next look, whatever happens.
    look: Instant,
    interval: Duration,
    /// Whether the connection is readable.
    ready: bool,
    /// The deadline for a supervisor that is not scheduled.
    patience: Instant,
    /// Whether the first refusal is an answer to the patience that this client requests.
    may_refuse: bool,
    /// How often a listener has hung up after it began the end.
    lost: u32,
    /// The survivors that the supervisor has reported.
    reported_survivors: Vec<Survivor>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConversationStage {
    /// No request was sent yet.
    Waiting,
    /// The supervisor must accept the connection, identify itself and answer, by this deadline.
    Asking(Instant),
    /// The supervisor is ending its sandbox, and must finish by this deadline.
    Ending(Instant),
    /// The supervisor has reported that nothing is left, and must exit by this deadline.
    Parting(Instant),
}

impl<'a> Conversation<'a> {
    fn new((index, known): (usize, &'a SandboxRef)) -> Conversation<'a> {
        let now = Instant::now();
        let (stage, interval) = (ConversationStage::Waiting, LOOK_FIRST);
        Conversation {
            index,
            known,
            client: None,
            listener: None,
            stage,
            look: now,
            interval,
            ready: false,
            patience: now,
            may_refuse: false,
            lost: 0,
            reported_survivors: Vec::new(),
        }
    }

    /// Tells whether the listener still exists. The kernel releases the locks of a process a moment before its end.
    fn is_heard_of(&mut self) -> bool {
        if let Some(listener) = &self.listener {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            let moment = Timespec::default();
            if rustix::event::poll(&mut fds, Some(&moment)) != Ok(0) {
                self.listener = None;
            }
        }
        self.listener.is_some()
    }

    fn part(&mut self, exit: Duration) -> ConversationStep {
        self.client = None;
        self.stage = ConversationStage::Parting(Instant::now() + exit);
        (self.interval, self.look) = (LOOK_FIRST, Instant::now());
        ConversationStep::Stay
    }
}

/// The next step of a conversation.
enum ConversationStep {
    /// The conversation goes on.
    Stay,
    /// The sandbox has ended: nothing is left.
    Gone,
    /// The supervisor is of no help: end the sandbox directly.
    Force(ForceReason),
}

struct Conversations<'s, 'e, 'a> {
    registry: Option<&'a Registry>,
    limits: EndLimits,
    request: Request,
    workers: WorkerPool<'s, 'e, 'a>,
    stop_results: Vec<Option<StopResult>>,
    /// Sandboxes that have ended by their records, but may have a leaf elsewhere, a member with a marker, or a survivor.
    suspects: Vec<usize>,
    /// The survivors that were known at the start.
    survivors: &'a Listing<Vec<LivingSurvivor>>,
    window: usize,
}

impl<'s, 'a: 's> Conversations<'s, '_, 'a> {
    /// Waits for an event and advances all conversations; false when none is left.
    fn turn(&mut self, all: &mut Vec<Conversation<'a>>) -> bool {
        self.begin_some(all);
        if all.is_empty() {
            return false;
        }
        listen(all);
        let mut kept = Vec::with_capacity(all.len());
        for mut talk in all.drain(..) {
            let step = if talk.ready { self.recv(&mut talk) } else { ConversationStep::Stay };
            let step = match step {
                ConversationStep::Stay
                    if talk.stage != ConversationStage::Waiting && talk.look <= Instant::now() =>
                {
                    self.look(&mut talk)
                }
                step => step,
            };
            match step {
                ConversationStep::Stay => kept.push(talk),
                ConversationStep::Force(reason) => {
                    if let Some(files) = talk.known.record.as_ref().filter(|_| talk.known.restarts) {
                        // A process that waits for the next start exits.
                        let _ = files.hold_launch();
                    }
                    self.workers.take_on(talk.index, reason, std::mem::take(&mut talk.reported_survivors));
                }
                ConversationStep::Gone
                    if talk.known.leaf.is_none() || !self.survivors.excludes(&talk.known.id) =>
                {
                    self.suspects.push(talk.index);
                }
                ConversationStep::Gone => self.note(talk.index, StopResult::Gone),
            }
        }
        *all = kept;
        !all.is_empty()
    }

    /// The number of sandboxes that have ended by themselves or by their supervisors.
    fn ended(&self) -> usize {
        self.suspects.len() + self.stop_results.iter().filter(|stop_result| stop_result.is_some()).count()
    }

    fn note(&mut self, index: usize, stop_result: StopResult) {
        if let Some(place) = self.stop_results.get_mut(index) {
            *place = Some(stop_result);
        }
    }

    fn begin_some(&mut self, all: &mut Vec<Conversation<'a>>) {
        let asked = all.iter().filter(|talk| matches!(talk.stage, ConversationStage::Asking(_))).count();
        let open = all.iter().filter(|talk| talk.client.is_some()).count();
        let room = ASKED.saturating_sub(asked).min(self.window.saturating_sub(open));
        let (mut begun, until) = (0, Instant::now() + self.limits.answer);
        let (workers, suspects) = (&mut self.workers, &mut self.suspects);
        all.retain_mut(|talk| {
            if talk.stage != ConversationStage::Waiting || begun >= room {
                return true;
            }
            match &talk.known.record {
                None => workers.take_on(talk.index, ForceReason::NoRecord, Vec::new()),
                Some(files) if files.lock().is_free() => {
                    let leaf = talk.known.leaf.as_deref();
                    let has_leaf = leaf.is_some_and(|leaf| leaf.try_exists().unwrap_or(true));
                    if files.has_ended() && !has_leaf {
                        talk.listener = holders::find_leaving(files);
                        if talk.listener.is_some() {
                            talk.stage = ConversationStage::Parting(Instant::now() + self.limits.exit);
                            return true;
                        }
                        suspects.push(talk.index);
                    } else {
                        workers.take_on(talk.index, ForceReason::Unattended, Vec::new());
                    }
                }
                Some(_) => {
                    begun += 1;
                    talk.stage = ConversationStage::Asking(until);
                    talk.patience = Instant::now() + ANSWER;
                    return true;
                }
            }
            false
        });
    }

    /// Receives a message of the supervisor.
    fn recv(&mut self, talk: &mut Conversation<'a>) -> ConversationStep {
        let Some(client) = &talk.client else { return ConversationStep::Stay };
        match client.take() {
            Ok(ReceiveResult::Message(Answer::Hello { id, by, .. })) => {
                if id != talk.known.id {
                    return ConversationStep::Force(ForceReason::Untrusted);
                }
                let patience = self.limits.patience.map(|time| Request::Patience(whole_millis(time)));
                let verb = self.limits.verb.filter(|_| by);
                let verb = verb.map(|verb| Request::By(Requester::of_verb(verb)));
                talk.may_refuse = patience.is_some();
                let mut words = patience.iter().chain(&verb).chain([&self.request]);
                let asked = words.try_for_each(|word| client.send(word, &[]));
                match asked {
                    Ok(()) => ConversationStep::Stay,
                    Err(_) => ConversationStep::Force(ForceReason::Unresponsive),
                }
            }
            Ok(ReceiveResult::Message(Answer::Ending(ending))) => self.begins_to_end(talk, ending),
            Ok(ReceiveResult::Message(Answer::Outcome(outcome))) if outcome.report.findings.verified => {
                talk.part(self.limits.exit)
            }
            Ok(ReceiveResult::Message(Answer::Outcome(outcome))) => {
                talk.reported_survivors = outcome.report.findings.survivors;
                ConversationStep::Force(ForceReason::Unverified)
            }
            // An older supervisor refuses a patience, and uses its own.
            Ok(ReceiveResult::Message(Answer::Refused(_))) if std::mem::take(&mut talk.may_refuse) => {
                ConversationStep::Stay
            }
            Ok(ReceiveResult::Message(Answer::Refused(_))) => {
                ConversationStep::Force(ForceReason::Unresponsive)
            }
            Ok(ReceiveResult::Message(Answer::Done)) => {
                talk.may_refuse = false;
                ConversationStep::Stay
            }
            Ok(ReceiveResult::Message(_) | ReceiveResult::Nothing) => ConversationStep::Stay,
            Ok(ReceiveResult::End) | Err(_) => {
                // The supervisor is gone, or another one takes over.
                talk.client = None;
                (talk.interval, talk.look) = (LOOK_FIRST, Instant::now());
                if matches!(talk.stage, ConversationStage::Ending(_)) {
                    talk.lost += 1;
                    if talk.lost > PLACES {
                        return ConversationStep::Force(ForceReason::Untrusted);
                    }
                    talk.stage = ConversationStage::Asking(Instant::now() + self.limits.answer);
                }
                ConversationStep::Stay
            }
        }
    }

    fn begins_to_end(&self, talk: &mut Conversation<'a>, ending: Ending) -> ConversationStep {
        let grace = match (ending, &self.request) {
            (Ending::Killing, _) => Duration::ZERO,
            (Ending::Stopping(_), Request::Stop { grace_ms: Some(ms), .. }) => Duration::from_millis(*ms),
            (Ending::Stopping(ms), _) => Duration::from_millis(ms),
        };
        if grace > BELIEVED && !is_supervisor(talk) {
            if talk.is_heard_of() || !matches!(talk.stage, ConversationStage::Asking(_)) {
                return ConversationStep::Force(ForceReason::Untrusted);
            }
            // Its standby was killed: the supervisor listens in its own name as soon as it notices that.
            talk.client = None;
            (talk.interval, talk.look) = (LOOK_FIRST, Instant::now() + LOOK_LAST);
            return ConversationStep::Stay;
        }
        let patience = self.limits.patience(talk.known.intent.as_ref());
        let most = grace.saturating_add(patience).saturating_add(self.limits.exit);
        let now = Instant::now();
        talk.stage = ConversationStage::Ending(now.checked_add(most).unwrap_or(now));
        (talk.interval, talk.look) = (LOOK_MEANWHILE, now + LOOK_MEANWHILE);
        ConversationStep::Stay
    }

    /// Checks whether the sandbox still has a supervisor, and which deadline has passed.
    fn look(&mut self, talk: &mut Conversation<'a>) -> ConversationStep {
        let Some(files) = &talk.known.record else { return ConversationStep::Force(ForceReason::NoRecord) };
        if files.lock().is_free() {
            return self.on_free_lock(talk);
        }
        if talk.known.restarts && !matches!(talk.stage, ConversationStage::Ending(_)) {
            self.hold_restart(talk);
        }
        let now = Instant::now();
        match talk.stage {
            ConversationStage::Asking(until) if until <= now => {
                if talk.patience <= now || !has_no_processor(talk) {
                    return ConversationStep::Force(ForceReason::Unresponsive);
                }
                talk.stage = ConversationStage::Asking(now + self.limits.answer);
            }
            ConversationStage::Ending(until) if until <= now => {
                return ConversationStep::Force(ForceReason::Overdue);
            }
            ConversationStage::Parting(until) if until <= now => {
                return ConversationStep::Force(ForceReason::Untrusted);
            }
            ConversationStage::Asking(_) if talk.client.is_none() => match SupervisorClient::dial(files) {
                Ok(client) => {
                    let listener = client.as_ref().and_then(SupervisorClient::peer);
                    talk.listener = listener.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                    talk.client = client;
                }
                // A new supervisor has its name and its lock before it listens.
                Err(SupervisorClientError::Waiting { .. }) => {}
                Err(
                    SupervisorClientError::Foreground { .. }
                    | SupervisorClientError::NoSocket { .. }
                    | SupervisorClientError::Deserted { .. },
                ) if talk.known.is_being_made() || files.next_life().is_some() => {}
                Err(
                    SupervisorClientError::Foreground { .. }
                    | SupervisorClientError::NoSocket { .. }
                    | SupervisorClientError::Deserted { .. },
                ) => {
                    return ConversationStep::Force(ForceReason::NoSocket);
                }
                Err(_) => return ConversationStep::Force(ForceReason::Untrusted),
            },
            _ => {}
        }
        let most = if talk.client.is_some() { LOOK_MEANWHILE } else { LOOK_LAST };
        talk.interval = (talk.interval * 2).min(most);
        talk.look = now + talk.interval;
        ConversationStep::Stay
    }

    /// Takes the next life from a sandbox whose command has failed. The process that waits for the next start then exits. If the
    /// next life has begun already, its supervisor is asked.
    fn hold_restart(&self, talk: &mut Conversation<'a>) {
        let Some(files) = &talk.known.record else { return };
        let now = Instant::now();
        match (files.has_ended(), talk.stage) {
            (true, ConversationStage::Asking(_)) if files.next_life().is_some() => {
                if matches!(files.hold_launch(), Ok(true)) {
                    // It may have been stopped.
                    let _ = ProcFs::open().and_then(|mut proc| {
                        Locks::of(&talk.known.id, Some(files), None).holders(&mut proc)?.wake(&mut proc)
                    });
                    talk.client = None;
                    talk.stage = ConversationStage::Parting(now + self.limits.exit);
                }
            }
            (true, ConversationStage::Parting(_)) => {
                let _ = files.hold_launch();
            }
            (false, ConversationStage::Parting(_)) => {
                talk.client = None;
                talk.stage = ConversationStage::Asking(now + self.limits.answer);
            }
            _ => {}
        }
    }

    /// Handles a free lock: the sandbox has ended, or has no supervisor.
    fn on_free_lock(&self, talk: &mut Conversation<'a>) -> ConversationStep {
        let known = talk.known;
        let held = self.registry.is_some_and(|registry| registry.holds(&known.id));
        let ended = known.record.as_ref().is_some_and(penfold_state::Files::has_ended);
        let empty = known.leaf.as_deref().is_none_or(evidence::is_leaf_empty);
        if held && !ended || !empty {
            return ConversationStep::Force(ForceReason::Unattended);
        }
        if matches!(talk.stage, ConversationStage::Asking(_)) && talk.listener.is_none() {
            talk.listener = known.record.as_ref().and_then(holders::find_leaving);
        }
        let now = Instant::now();
        // Even if the listener held no lock, it gets the time to exit.
        let until = match talk.stage {
            ConversationStage::Parting(until) => until,
            _ => now + self.limits.exit,
        };
        if until <= now || !talk.is_heard_of() {
            return ConversationStep::Gone;
        }
        talk.stage = ConversationStage::Parting(until);
        talk.look = now + LOOK_FIRST;
        ConversationStep::Stay
    }

    /// Looks for members by their marker, and for a leaf elsewhere, once for all suspects.
    ///
    /// If there are any, the report beside them was forged.
    fn look_for_members(&mut self, resolver: &Resolver, targets: &[SandboxRef]) {
        if self.suspects.is_empty() {
            return;
        }
        let fresh = resolver.again();
        for index in std::mem::take(&mut self.suspects) {
            let traces = fresh.fingerprints();
            let lives = |id: &String| {
                !(traces.marked().excludes(id)
                    && traces.leaves().excludes(id)
                    && traces.survivors().excludes(id))
            };
            if targets.get(index).is_some_and(|known| lives(&known.id)) {
                self.workers.take_on(index, ForceReason::Unattended, Vec::new());
            } else {
                self.note(index, StopResult::Gone);
            }
        }
    }
}

/// Waits until a supervisor sends a message or a deadline passes.
fn listen(all: &mut [Conversation<'_>]) {
    let now = Instant::now();
    let due = all.iter().filter(|talk| talk.stage != ConversationStage::Waiting).map(|talk| talk.look).min();
    let timeout = due.map_or(LOOK_LAST, |due| due.saturating_duration_since(now));
    let mut fds: Vec<PollFd<'_>> = all
        .iter()
        .filter_map(|talk| talk.client.as_ref())
        .map(|client| PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN))
        .collect();
    let happened = rustix::event::poll(&mut fds, poll_timeout(timeout).as_ref()).is_ok();
    let mut ready = fds.iter().map(|fd| happened && !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
    for talk in all {
        talk.ready = talk.client.is_some() && ready.next().unwrap_or(false);
    }
}

/// Tells whether the supervisor is runnable but not scheduled: beside a storm of processes that may take seconds.
///
/// The listener is the parent of the other process of the pair, so both are checked.
fn has_no_processor(talk: &Conversation<'_>) -> bool {
    let Some(listener) =
        talk.client.as_ref().and_then(SupervisorClient::peer).filter(|_| is_supervisor(talk))
    else {
        return false;
    };
    let Ok(mut proc) = ProcFs::open() else { return false };
    let mut both = vec![listener];
    let _ = proc.children(listener, &mut both);
    both.into_iter().any(|pid| {
        proc.stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.state == SchedulerState::Running))
    })
}

/// Tells whether the process that made the socket holds the lock of the record.
fn is_supervisor(talk: &Conversation<'_>) -> bool {
    let locks = Locks::of(&talk.known.id, talk.known.record.as_ref(), None);
    talk.client
        .as_ref()
        .and_then(SupervisorClient::peer)
        .is_some_and(|peer| matches!(locks.are_held_by(peer), Ok(true)))
}
