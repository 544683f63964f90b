//! Waits until sandboxes have ended, and returns how their commands ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::Pid;
use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::client::SupervisorClient;
use crate::end::EndProgress;
use crate::resolve::{Resolver, SandboxRef};
use crate::timeout::poll_timeout;
use penfold_state::Files;
use penfold_state::clear::list_entries;
use penfold_state::evidence::Evidence;
use penfold_state::outcome::{ExitStatus, Report, StartFailure};
use penfold_state::state::Status;
use penfold_state::wire::{Answer, ReceiveResult};

/// The interval at which a lock is tried, without and with a connection that would report the end.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_CONNECTED: Duration = Duration::from_millis(500);
/// After a supervisor's exit, its lock is free within this time, or another process has taken over.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// The interval of looks for members without a supervisor, if none of them can be watched.
const LOOK_BLIND: Duration = Duration::from_millis(100);

/// How the command of an ended sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEnd {
    /// As the record says.
    Known {
        /// How the command ended; `None` if unknown.
        exit: Option<ExitStatus>,
        /// Why the sandbox ended.
        cause: Cause,
        /// Why the command was not run, if it was not.
        failure: Option<StartFailure>,
    },
    /// A member, perhaps the command itself, did not die in time.
    Unverified,
    /// Nothing of the sandbox was found, it has no supervisor, and the record does not say how its command ended.
    Unknown,
    /// The record was removed, by another command or with the sandbox, before it was read.
    Removed,
}

/// Waits until sandboxes have ended, or one of them if `any`, at most for `limit`.
///
/// Returns the ends in the order of `targets`, with `None` for sandboxes that have not ended. A restart by `--restart` is no end; a
/// restart on request is one. The answer comes from the
/// record, so that all clients get the same. The call also waits for a supervisor after a takeover, and for the last
/// member of a sandbox without a supervisor.
pub fn wait_for_sandboxes(
    resolver: &Resolver,
    targets: &[SandboxRef],
    any: bool,
    limit: Option<Duration>,
    slow: &mut dyn FnMut(EndProgress),
) -> Vec<Option<SandboxEnd>> {
    let begun = Instant::now();
    let until = limit.and_then(|limit| begun.checked_add(limit));
    let mut watches: Vec<WaitTarget<'_>> = targets.iter().map(WaitTarget::new).collect();
    loop {
        let looked = resolver.again();
        for watch in watches.iter_mut().filter(|watch| watch.end.is_none()) {
            watch.attend(&looked);
        }
        // Look at the host once for all of them, and after the lock became free.
        let fresh = resolver.again();
        for watch in watches.iter_mut().filter(|watch| watch.unattended) {
            watch.conclude(&fresh);
        }
        let left = watches.iter().filter(|watch| watch.end.is_none()).count();
        let over = left == 0 || (any && left < watches.len());
        let now = Instant::now();
        if over || until.is_some_and(|until| until <= now) {
            return watches.into_iter().map(|watch| watch.end).collect();
        }
        slow(EndProgress { left, begun: targets.len().saturating_sub(left), since: begun.elapsed() });
        listen(&mut watches, until, now);
    }
}

/// A sandbox that is waited for.
struct WaitTarget<'a> {
    known: &'a SandboxRef,
    /// The number of the life that is waited for.
    life: u32,
    client: Option<SupervisorClient>,
    /// The pidfd of a member, if the sandbox lives without a supervisor.
    member: Option<OwnedFd>,
    /// The supervisor's report of the end, which counts only if the record is removed with the sandbox.
    announced: Option<Box<Report>>,
    look: Instant,
    /// The earliest time for a new connection: a supervisor evicts idle clients when it has no room for all.
    dial: Instant,
    ready: bool,
    /// Whether a supervisor was seen.
    attended: bool,
    /// Whether the sandbox has no supervisor now.
    unattended: bool,
    end: Option<SandboxEnd>,
}

impl<'a> WaitTarget<'a> {
    fn new(known: &'a SandboxRef) -> WaitTarget<'a> {
        WaitTarget {
            known,
            life: known.record.as_ref().map_or(1, Files::life),
            client: None,
            member: None,
            announced: None,
            look: Instant::now(),
            dial: Instant::now(),
            ready: false,
            attended: false,
            unattended: false,
            end: None,
        }
    }

    /// Returns the descriptor that is readable after an event.
    fn source(&self) -> Option<BorrowedFd<'_>> {
        let client = self.client.as_ref().map(AsFd::as_fd);
        client.or_else(|| self.member.as_ref().map(AsFd::as_fd))
    }

    fn attend(&mut self, resolver: &Resolver) {
        let now = Instant::now();
        if self.ready && self.client.is_some() {
            self.recv();
        } else if self.ready {
            self.member = None;
            // Wait before the next look: members may come and go faster than the host can be searched.
            self.look = now + LOOK;
        }
        if self.look > now {
            return;
        }
        let Some(files) = self.known.record.as_ref().filter(|files| files.lock().may_be_held()) else {
            self.unattended = true;
            return;
        };
        self.attended = true;
        self.end = self.former_end();
        if self.end.is_some() {
            return;
        }
        // No file says so of a foreground sandbox.
        let is_unkillable = match files.state() {
            Ok(Some(state)) if !files.is_unkillable() => state.status == Status::Unkillable,
            Ok(_) | Err(_) => has_survivors(resolver, self.known),
        };
        if is_unkillable {
            self.end = Some(SandboxEnd::Unverified);
            return;
        }
        if self.client.is_none() && self.dial <= now {
            self.client = SupervisorClient::dial(files).ok().flatten();
        }
        let pause = if self.client.is_some() { LOOK_CONNECTED } else { LOOK };
        self.look = now + pause;
    }

    /// Determines the end of a sandbox without a supervisor, unless a member lives.
    fn conclude(&mut self, fresh: &Resolver) {
        self.unattended = false;
        self.end = self.former_end();
        if self.end.is_some() {
            return;
        }
        // If its supervisor was alive a moment ago, the report is enough, and saves the search.
        let is_reported = self.attended && self.known.record.as_ref().is_some_and(has_ended);
        let Some(members) = (if is_reported { None } else { living(fresh, self.known) }) else {
            let end = self.read(fresh);
            // A restart on request may have taken these files aside meanwhile.
            self.end = self.former_end().or(Some(end));
            return;
        };
        if has_survivors(fresh, self.known) {
            self.end = Some(SandboxEnd::Unverified);
            return;
        }
        self.client = None;
        self.member = members.iter().find_map(|&pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let pause = if self.member.is_some() { LOOK_CONNECTED } else { LOOK_BLIND };
        self.look = Instant::now() + pause;
    }

    /// Goes on to the newest life as long as a restart by policy began each; returns the end before a restart on request.
    fn former_end(&mut self) -> Option<SandboxEnd> {
        let files = self.known.record.as_ref()?;
        let newest = files.life();
        while self.life < newest {
            if files.is_requested(self.life + 1) == Some(true) {
                let report = files.report_of(self.life).ok().flatten()?;
                return Some(SandboxEnd::Known {
                    exit: report.exit,
                    cause: report.cause,
                    failure: report.failure,
                });
            }
            self.life += 1;
            self.announced = None;
        }
        None
    }

    fn recv(&mut self) {
        match self.client.as_ref().map(SupervisorClient::take) {
            Some(Ok(ReceiveResult::Message(Answer::Outcome(outcome)))) => {
                self.announced = Some(Box::new(outcome.report));
                self.look = Instant::now();
            }
            Some(Ok(ReceiveResult::Message(_) | ReceiveResult::Nothing)) | None => {}
            Some(Ok(ReceiveResult::End) | Err(_)) => {
                self.client = None;
                let now = Instant::now();
                (self.look, self.dial) = (now + LOOK_SOON, now + LOOK_CONNECTED);
            }
        }
    }

    /// Reads how a sandbox without a supervisor ended.
    fn read(&self, resolver: &Resolver) -> SandboxEnd {
        let Some(files) = &self.known.record else { return SandboxEnd::Unknown };
        let report = files.report().ok().flatten();
        let failure = report.as_ref().and_then(|report| report.failure.clone());
        if let Ok(Some(exited)) = files.exited() {
            return SandboxEnd::Known { exit: exited.exit, cause: exited.cause, failure };
        }
        let removed = !resolver.registry().is_some_and(|registry| registry.holds(files.name()));
        let announced = self.announced.as_deref().filter(|_| removed);
        match report.as_ref().or(announced) {
            Some(report) => {
                SandboxEnd::Known { exit: report.exit, cause: report.cause, failure: report.failure.clone() }
            }
            None if removed || is_being_removed(files) => SandboxEnd::Removed,
            None => SandboxEnd::Unknown,
        }
    }
}

/// Tells whether all files of a record are gone, shortly before the record itself is.
fn is_being_removed(files: &Files) -> bool {
    list_entries(files.dir()).is_ok_and(|entries| entries.is_empty())
}

/// Tells whether there is a report, and the leaf that would contradict it is gone.
fn has_ended(files: &Files) -> bool {
    files.intent().is_ok_and(|intent| intent.leaf.is_some()) && files.has_ended()
}

/// Tells whether a member of a sandbox could not be ended before, and lives.
fn has_survivors(resolver: &Resolver, known: &SandboxRef) -> bool {
    !resolver.survivors(&known.id).is_empty()
        || known.record.as_ref().is_some_and(Files::has_unwritten_survivors)
}

/// Returns the living members of a sandbox without a supervisor, as far as they have pids here.
///
/// `None` means that certainly no member lives.
fn living(fresh: &Resolver, known: &SandboxRef) -> Option<Vec<Pid>> {
    let evidence = Evidence::of(fresh.fingerprints(), &known.subject());
    (!evidence.is_nothing()).then(|| evidence.pids().to_vec())
}

/// Waits until a supervisor sends a message, a member ends or a deadline passes.
fn listen(watches: &mut [WaitTarget<'_>], until: Option<Instant>, now: Instant) {
    let running = || watches.iter().filter(|watch| watch.end.is_none());
    let due = running().map(|watch| watch.look).chain(until).min();
    let timeout = due.map_or(LOOK, |due| due.saturating_duration_since(now));
    let sources = running().filter_map(WaitTarget::source);
    let mut fds: Vec<PollFd<'_>> =
        sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
    let happened = rustix::event::poll(&mut fds, poll_timeout(timeout).as_ref()).is_ok();
    let mut ready = fds.iter().map(|fd| happened && !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
    for watch in watches.iter_mut().filter(|watch| watch.end.is_none()) {
        watch.ready = watch.source().is_some() && ready.next().unwrap_or(false);
    }
}
