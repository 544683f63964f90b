//! The standard input of the launcher, if its end ends the sandbox. Nothing is read from it: the data is the command's.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use penfold_state::StdinClose;
use rustix::event::{PollFd, PollFlags};

use super::Launcher;
use crate::wire::Request;

/// The watch over a standard input.
#[derive(Debug)]
pub(crate) struct StdinWatch {
    action: StdinClose,
    /// The time that the command has to end by itself after the hang-up.
    wait: Duration,
    state: StdinState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StdinState {
    /// It has not hung up.
    Open,
    /// It has hung up. The request is due at this time; `None` means never, because the grace is too long.
    HungUp(Option<Instant>),
    /// The request was made.
    Done,
}

impl StdinWatch {
    pub(crate) fn new(action: StdinClose, grace: Duration) -> StdinWatch {
        let wait = match action {
            StdinClose::Stop => grace / 2,
            StdinClose::Kill => Duration::ZERO,
        };
        StdinWatch { action, wait, state: StdinState::Open }
    }

    /// Returns the standard input until it has hung up. A descriptor that has hung up stays ready, and polling it again
    /// would be a busy loop.
    pub(super) fn open(&self) -> Option<BorrowedFd<'static>> {
        (self.state == StdinState::Open).then(rustix::stdio::stdin)
    }

    /// Makes the entry for poll(2). Without `POLLIN`, data wakes nobody; `POLLHUP` and `POLLERR` are always reported.
    pub(super) fn poll_fd(stdin: BorrowedFd<'_>) -> PollFd<'_> {
        PollFd::from_borrowed_fd(stdin, PollFlags::RDHUP)
    }

    /// Returns the time until the request is due, if the standard input has hung up.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.state {
            StdinState::HungUp(Some(due)) => Some(due.saturating_duration_since(Instant::now())),
            StdinState::Open | StdinState::HungUp(None) | StdinState::Done => None,
        }
    }

    /// Notes a hang-up, and returns the request once it is due.
    fn follow(&mut self, hung_up: bool, now: Instant) -> Option<Request> {
        if hung_up && self.state == StdinState::Open {
            self.state = StdinState::HungUp(now.checked_add(self.wait));
        }
        let StdinState::HungUp(Some(due)) = self.state else { return None };
        if due > now {
            return None;
        }
        self.state = StdinState::Done;
        Some(Request::StdinClosed { kill: self.action == StdinClose::Kill })
    }
}

impl Launcher {
    /// Notes a hang-up of the standard input, and makes the request to end the sandbox once it is due. Tells whether
    /// there is a request now.
    pub(super) fn follow_stdin(&mut self, hung_up: bool) -> bool {
        let Some(watch) = &mut self.settings.stdin else { return false };
        let request = watch.follow(hung_up, Instant::now());
        let due = request.is_some();
        self.pending.extend(request);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_made_once_and_after_half_of_the_grace() {
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let mut watch = StdinWatch::new(StdinClose::Stop, Duration::from_secs(10));
        assert_eq!((watch.follow(false, begun), watch.timeout(), watch.open().is_some()), (None, None, true));
        assert_eq!((watch.follow(true, begun), watch.open().is_some()), (None, false));
        assert!(watch.timeout().is_some_and(|left| left <= Duration::from_secs(5)));
        // Neither time nor another hang-up moves the time at which the request is due.
        assert_eq!(watch.follow(true, later(4)), None);
        assert_eq!(watch.follow(false, later(5)), Some(Request::StdinClosed { kill: false }));
        assert_eq!(
            (watch.follow(true, later(9)), watch.timeout(), watch.open().is_some()),
            (None, None, false)
        );
    }

    #[test]
    fn kill_is_requested_at_once_and_an_endless_grace_never_ends() {
        let now = Instant::now();
        let mut watch = StdinWatch::new(StdinClose::Kill, Duration::from_secs(10));
        assert_eq!(watch.follow(true, now), Some(Request::StdinClosed { kill: true }));
        let mut watch = StdinWatch::new(StdinClose::Stop, Duration::MAX);
        assert_eq!((watch.follow(true, now), watch.timeout(), watch.open().is_some()), (None, None, false));
    }
}
