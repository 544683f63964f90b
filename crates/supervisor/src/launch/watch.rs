//! What ends a launch before the leader stands: a child that is stopped or frozen never says that it does.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use penfold_state::OwnerExit;
use penfold_sys::signal::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::outcome::StartFailure;
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::setup::Setup;
use crate::wire::{self, Received, Request};

/// Why a leader was not let go.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It could not be made.
    Failed(StartFailure),
    /// Something ends the sandbox.
    Interrupted(Interruption),
}

impl From<StartFailure> for NotStarted {
    fn from(failure: StartFailure) -> NotStarted {
        NotStarted::Failed(failure)
    }
}

/// What ends a sandbox whose leader has not been let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// Its time limit.
    Limit,
    /// A SIGTERM, and the polite signal that came with it.
    Terminated(Option<Signal>),
    /// The death of the launcher.
    Launcher,
    /// The death of the standby.
    Standby,
    /// A request of the launcher.
    Asked(Request),
}

/// Waits for the leader, and for what ends the sandbox meanwhile.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct Watch<'a> {
    standby: Option<BorrowedFd<'a>>,
    signals: &'a SignalFd,
    limit: Option<Instant>,
    /// The sandbox ends with its launcher.
    bound: bool,
    /// The sandbox goes on without its standby.
    keep: bool,
    /// It is the standby that is waited for.
    awaits_standby: bool,
    channel_open: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        prepared: &Prepared,
        standby: Option<BorrowedFd<'a>>,
        signals: &'a SignalFd,
    ) -> Watch<'a> {
        let spec = &prepared.setup.spec;
        let limit = spec.timeout.and_then(|limit| prepared.setup.began.checked_add(limit));
        // Nobody knows the id of a detached one before its launcher does.
        let bound = spec.detach.is_some() || spec.on_owner_exit != OwnerExit::Keep;
        let keep = spec.detach.as_ref().is_some_and(|detach| detach.keep);
        Watch { standby, signals, limit, bound, keep, awaits_standby: false, channel_open: true }
    }

    /// Waits until the standby has a session of its own, if there is one.
    ///
    /// # Errors
    /// What ends the sandbox before that.
    pub(crate) fn until_apart(&mut self, setup: &Setup, apart: BorrowedFd<'_>) -> Result<(), NotStarted> {
        self.awaits_standby = true;
        if self.standby.is_some() { self.until_readable(setup, apart) } else { Ok(()) }
    }

    /// Waits until `fd` is readable, or at its end.
    ///
    /// # Errors
    /// What ends the sandbox before that.
    pub(crate) fn until_readable(&mut self, setup: &Setup, fd: BorrowedFd<'_>) -> Result<(), NotStarted> {
        loop {
            let timeout = self.limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let sources = [
                Some(fd),
                Some(self.signals.as_fd()),
                self.channel_open.then_some(setup.channel.as_fd()),
                setup.launcher.as_ref().filter(|_| self.bound).map(AsFd::as_fd),
                self.standby,
            ];
            let mut fds: Vec<PollFd<'_>> =
                sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            if poll(&mut fds, timeout.as_ref()).is_err() {
                fds.clear();
            }
            let mut fds = fds.iter().map(|fd| !fd.revents().is_empty());
            let [readable, signals, channel, launcher, standby] =
                sources.map(|source| source.is_some() && fds.next().unwrap_or(false));
            if readable {
                return Ok(());
            }
            let interruption = if signals && let Some(terminated) = self.terminated() {
                Some(terminated)
            } else if channel {
                self.asked(setup)
            } else if launcher {
                Some(Interruption::Launcher)
            } else if standby && self.keep {
                self.standby = None;
                if self.awaits_standby {
                    return Ok(());
                }
                None
            } else if standby {
                Some(Interruption::Standby)
            } else {
                self.limit.filter(|limit| *limit <= Instant::now()).map(|_| Interruption::Limit)
            };
            if let Some(interruption) = interruption {
                return Err(NotStarted::Interrupted(interruption));
            }
        }
    }

    /// Takes what was signalled up to the first TERM.
    fn terminated(&self) -> Option<Interruption> {
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == Signal::TERM.as_raw() {
                return Some(Interruption::Terminated(signalled.carried));
            }
        }
        None
    }

    /// What the launcher asks for that ends the sandbox. There is no leader yet that a signal could be passed on to.
    fn asked(&mut self, setup: &Setup) -> Option<Interruption> {
        match wire::receive(&setup.channel) {
            Ok(Received::Message(request @ (Request::Stop { .. } | Request::Kill))) => {
                Some(Interruption::Asked(request))
            }
            Ok(Received::Message(Request::OwnerGone)) => {
                self.bound.then_some(Interruption::Asked(Request::OwnerGone))
            }
            Ok(Received::Message(_) | Received::Nothing) => None,
            // The death of a launcher with a pidfd is told by that.
            Ok(Received::End) | Err(_) => {
                self.channel_open = false;
                (self.bound && setup.launcher.is_none()).then_some(Interruption::Launcher)
            }
        }
    }
}
