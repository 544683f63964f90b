//! Waits until sandboxes are over, and tells how their commands ended.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penfold_teardown::Cause;
use rustix::event::{PollFd, PollFlags};

use super::client::Client;
use super::{Progress, timespec};
use crate::Files;
use crate::outcome::{Report, StartFailure, Status};
use crate::resolve::{Finder, Known};
use crate::state::Word;
use crate::wire::{Answer, Received};

/// How often it is looked whether a lock is free, where nobody tells and where somebody would.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_CONNECTED: Duration = Duration::from_millis(500);
/// After a supervisor has gone the lock is free within this, or another has taken its place.
const LOOK_SOON: Duration = Duration::from_millis(1);

/// How the command of a sandbox ended that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// As it was written down.
    Known {
        /// How the command ended; nothing when nobody saw it.
        exit: Option<Status>,
        /// Why.
        cause: Cause,
        /// Why the command was not run, if it was not.
        failure: Option<StartFailure>,
    },
    /// The command is over, and something in the sandbox would not die in the time given.
    Unverified,
    /// Nobody looks after it, and it is not written down how its command ended.
    Unknown,
}

/// Waits until sandboxes are over, or one of them if `any`, at most for `limit`; tells how, in the order of `targets`,
/// with nothing for those that are not over.
///
/// The answer is what is written in the record, so that all who wait get the same one. A supervisor that takes the place
/// of another is waited for as well.
pub fn wait(
    finder: &Finder,
    targets: &[Known],
    any: bool,
    limit: Option<Duration>,
    slow: &mut dyn FnMut(Progress),
) -> Vec<Option<End>> {
    let begun = Instant::now();
    let until = limit.and_then(|limit| begun.checked_add(limit));
    let mut watches: Vec<Watch<'_>> = targets.iter().map(Watch::new).collect();
    loop {
        for watch in watches.iter_mut().filter(|watch| watch.end.is_none()) {
            watch.attend(finder);
        }
        let left = watches.iter().filter(|watch| watch.end.is_none()).count();
        let over = left == 0 || (any && left < watches.len());
        let now = Instant::now();
        if over || until.is_some_and(|until| until <= now) {
            return watches.into_iter().map(|watch| watch.end).collect();
        }
        slow(Progress { left, since: begun.elapsed() });
        listen(&mut watches, until, now);
    }
}

/// One sandbox that is waited for.
struct Watch<'a> {
    known: &'a Known,
    client: Option<Client>,
    /// What its supervisor has told of the end, which counts only where the record goes with the sandbox.
    told: Option<Box<Report>>,
    look: Instant,
    ready: bool,
    end: Option<End>,
}

impl<'a> Watch<'a> {
    fn new(known: &'a Known) -> Watch<'a> {
        Watch { known, client: None, told: None, look: Instant::now(), ready: false, end: None }
    }

    fn attend(&mut self, finder: &Finder) {
        let now = Instant::now();
        if self.ready {
            self.hear();
        }
        if self.look > now {
            return;
        }
        let Some(files) = &self.known.record else {
            self.end = Some(End::Unknown);
            return;
        };
        if !files.is_looked_after().unwrap_or(true) {
            self.end = Some(self.read(finder, files));
        } else if files.state().is_ok_and(|state| state.is_some_and(|state| state.word == Word::Unkillable)) {
            self.end = Some(End::Unverified);
        } else {
            if self.client.is_none() {
                self.client = Client::dial(files).ok().flatten();
            }
            let pause = if self.client.is_some() { LOOK_CONNECTED } else { LOOK };
            self.look = now + pause;
        }
    }

    fn hear(&mut self) {
        match self.client.as_ref().map(Client::take) {
            Some(Ok(Received::Message(Answer::Outcome(outcome)))) => {
                self.told = Some(Box::new(outcome.report));
                self.look = Instant::now();
            }
            Some(Ok(Received::Message(_) | Received::Nothing)) | None => {}
            Some(Ok(Received::End) | Err(_)) => {
                self.client = None;
                self.look = Instant::now() + LOOK_SOON;
            }
        }
    }

    /// What is known of the end of a sandbox that nobody looks after.
    fn read(&self, finder: &Finder, files: &Files) -> End {
        let report = files.report().ok().flatten();
        let failure = report.as_ref().and_then(|report| report.failure.clone());
        if let Ok(Some(exited)) = files.exited() {
            return End::Known { exit: exited.exit, cause: exited.cause, failure };
        }
        let removed = !finder.registry().is_some_and(|registry| registry.holds(files.name()));
        let told = self.told.as_deref().filter(|_| removed);
        match report.as_ref().or(told) {
            Some(report) => {
                End::Known { exit: report.exit, cause: report.cause, failure: report.failure.clone() }
            }
            None => End::Unknown,
        }
    }
}

/// Waits until a supervisor says something or something is due.
fn listen(watches: &mut [Watch<'_>], until: Option<Instant>, now: Instant) {
    let running = || watches.iter().filter(|watch| watch.end.is_none());
    let due = running().map(|watch| watch.look).chain(until).min();
    let timeout = due.map_or(LOOK, |due| due.saturating_duration_since(now));
    let clients = running().filter_map(|watch| watch.client.as_ref());
    let mut fds: Vec<PollFd<'_>> =
        clients.map(|client| PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)).collect();
    let happened = rustix::event::poll(&mut fds, timespec(timeout).as_ref()).is_ok();
    let mut ready = fds.iter().map(|fd| happened && !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
    for watch in watches.iter_mut().filter(|watch| watch.end.is_none()) {
        watch.ready = watch.client.is_some() && ready.next().unwrap_or(false);
    }
}
