//! Waits for the leader before its release. A child that is stopped or frozen never becomes ready, so deadlines,
//! signals and requests are polled too.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use penfold_state::OwnerExit;
use penfold_sys::signal::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::exec_request::{EXEC_REQUEST, ExecRequest};
use crate::outcome::StartFailure;
use crate::poll::poll_or_pause;
use crate::sandbox_parts::SandboxParts;
use crate::setup::Setup;
use crate::wire::{self, ReceiveResult, Request};

/// Why a leader was not released.
#[derive(Debug)]
pub(crate) enum ReleaseError {
    /// The leader could not be created.
    Failed(StartFailure),
    /// The sandbox is to be ended.
    Interrupted(Interruption),
}

impl From<StartFailure> for ReleaseError {
    fn from(failure: StartFailure) -> ReleaseError {
        ReleaseError::Failed(failure)
    }
}

/// An event that ends a sandbox before its leader was released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The time limit.
    Limit,
    /// A SIGTERM, and the polite signal that it carried.
    Terminated(Option<Signal>),
    /// The death of the launcher.
    Launcher,
    /// The death of the standby.
    Standby,
    /// A request of the launcher.
    Requested(Request),
}

/// Waits for the leader, and for events that end the sandbox meanwhile.
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub(crate) struct LaunchWatch<'a> {
    standby: Option<BorrowedFd<'a>>,
    signals: &'a SignalFd,
    limit: Option<Instant>,
    /// The sandbox ends with its launcher.
    ends_with_launcher: bool,
    /// The sandbox continues without its standby.
    keep: bool,
    /// The current wait is for the standby, not for the leader.
    awaits_standby: bool,
    channel_open: bool,
}

impl<'a> LaunchWatch<'a> {
    pub(crate) fn new(
        parts: &SandboxParts,
        standby: Option<BorrowedFd<'a>>,
        signals: &'a SignalFd,
    ) -> LaunchWatch<'a> {
        let spec = &parts.setup.spec;
        let limit = spec.timeout.and_then(|limit| parts.setup.began.checked_add(limit));
        // No client knows the id of a detached sandbox until its launcher has printed it.
        let ends_with_launcher = spec.detach.is_some() || spec.on_owner_exit != OwnerExit::Keep;
        let keep = spec.detach.as_ref().is_some_and(|detach| detach.keep);
        LaunchWatch {
            standby,
            signals,
            limit,
            ends_with_launcher,
            keep,
            awaits_standby: false,
            channel_open: true,
        }
    }

    /// Waits until the standby, if there is one, has a session of its own.
    ///
    /// # Errors
    /// When an event ends the sandbox before.
    pub(crate) fn until_standby_session(
        &mut self,
        setup: &Setup,
        session_ready: BorrowedFd<'_>,
    ) -> Result<(), ReleaseError> {
        self.awaits_standby = true;
        if self.standby.is_some() { self.until_readable(setup, session_ready) } else { Ok(()) }
    }

    /// Waits until `fd` is readable or at EOF.
    ///
    /// # Errors
    /// When an event ends the sandbox before.
    pub(crate) fn until_readable(&mut self, setup: &Setup, fd: BorrowedFd<'_>) -> Result<(), ReleaseError> {
        loop {
            let timeout = self.limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let sources = [
                Some(fd),
                Some(self.signals.as_fd()),
                self.channel_open.then_some(setup.channel.as_fd()),
                setup.launcher.as_ref().filter(|_| self.ends_with_launcher).map(AsFd::as_fd),
                self.standby,
            ];
            let mut fds: Vec<PollFd<'_>> =
                sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            if poll_or_pause(&mut fds, timeout.as_ref()).is_err() {
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
                self.take_request(setup)
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
                return Err(ReleaseError::Interrupted(interruption));
            }
        }
    }

    /// Reads queued signals up to the first SIGTERM.
    fn terminated(&self) -> Option<Interruption> {
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == Signal::TERM.as_raw() {
                return Some(Interruption::Terminated(signalled.carried));
            }
            // A command that does not run needs no polite signal.
            if signalled.signal == EXEC_REQUEST
                && let Some(ExecRequest::Kill | ExecRequest::Stop { .. }) =
                    ExecRequest::decode(signalled.value)
            {
                return Some(Interruption::Requested(Request::Kill));
            }
        }
        None
    }

    /// Receives a request of the launcher that ends the sandbox. Signals are not forwarded: there is no leader yet.
    fn take_request(&mut self, setup: &Setup) -> Option<Interruption> {
        match wire::receive_message(&setup.channel) {
            Ok(ReceiveResult::Message(
                request @ (Request::Stop { .. } | Request::Kill | Request::StdinClosed { .. }),
            )) => Some(Interruption::Requested(request)),
            Ok(ReceiveResult::Message(Request::OwnerGone)) => {
                self.ends_with_launcher.then_some(Interruption::Requested(Request::OwnerGone))
            }
            Ok(ReceiveResult::Message(_) | ReceiveResult::Nothing) => None,
            // If the launcher has a pidfd, the pidfd shows its death.
            Ok(ReceiveResult::End) | Err(_) => {
                self.channel_open = false;
                (self.ends_with_launcher && setup.launcher.is_none()).then_some(Interruption::Launcher)
            }
        }
    }
}
