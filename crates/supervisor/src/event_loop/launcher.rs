//! Handles the messages of the launcher and its death.

use std::time::{Duration, Instant};

use penfold_teardown::lifecycle::LifecycleEvent;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::EventLoop;
use super::late_stop::is_of_term;
use crate::outcome::ExitStatus;
use crate::policy::{Policy, stronger_event};
use crate::poll::poll_or_pause;
use crate::supervision::has_ended;
use crate::wire::{self, Answer, ReceiveResult, Request};

/// The time that a launcher may take to send its requests, if it is not scheduled or stopped by its terminal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

impl EventLoop {
    /// Handles the launcher's death. Queued messages come first: the launcher may have detached the sandbox.
    pub(super) fn launcher_died(&mut self) -> Option<LifecycleEvent> {
        while self.launcher.is_some() {
            match wire::receive_message(&self.sandbox.parts.setup.channel) {
                Ok(ReceiveResult::Message(Request::LetGo)) => self.launcher = None,
                Ok(ReceiveResult::Message(request)) => {
                    if let Some(event) = self.sandbox.handle_launcher(request) {
                        return Some(event);
                    }
                }
                Ok(ReceiveResult::Nothing | ReceiveResult::End) | Err(_) => {
                    self.launcher = None;
                    return self.sandbox.decide(Policy::launcher_gone);
                }
            }
        }
        None
    }

    pub(super) fn take_request(&mut self) -> Option<LifecycleEvent> {
        match wire::receive_message(&self.sandbox.parts.setup.channel) {
            // Detaching is final: the launcher may exit from now on.
            Ok(ReceiveResult::Message(Request::LetGo)) => {
                self.launcher = None;
                None
            }
            Ok(ReceiveResult::Message(request)) => self.sandbox.handle_launcher(request),
            Ok(ReceiveResult::Nothing) => None,
            // A launcher with a pidfd closes its end only by dying, and the pidfd shows that.
            Ok(ReceiveResult::End) | Err(_) => {
                self.channel_open = false;
                if self.launcher_has_pidfd { None } else { self.sandbox.decide(Policy::owner_gone) }
            }
        }
    }

    /// Receives all requests for signals that a terminal sent until the leader ended, and returns the resulting event. The same
    /// for a SIGTERM to the process group of launcher and leader.
    ///
    /// The kernel signals a whole process group before any member is seen as ended: `kill_pgrp()` holds the lock that
    /// an exit takes. The launcher therefore has the leader's signal pending, but may not have sent its request yet.
    pub(super) fn drain_launcher(&mut self, status: Option<ExitStatus>) -> Option<LifecycleEvent> {
        let shares_signals = self.sandbox.parts.setup.keys || is_of_term(status);
        if !shares_signals || self.launcher.is_none() || !self.channel_open {
            return None;
        }
        wire::offer_message(&self.sandbox.parts.setup.channel, &Answer::LeaderEnded).ok()?;
        let until = Instant::now() + DRAIN_TIMEOUT;
        let mut event = None;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            let channel = &self.sandbox.parts.setup.channel;
            let sources = [Some(channel), self.launcher.as_ref()];
            let mut fds: Vec<PollFd<'_>> =
                sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if matches!(poll_or_pause(&mut fds, left.as_ref()), Ok(0)) {
                return event;
            }
            match wire::receive_message(channel) {
                Ok(ReceiveResult::Message(Request::Heard)) => return event,
                Ok(ReceiveResult::Message(request)) => {
                    event = stronger_event(event, self.sandbox.handle_launcher(request));
                }
                Ok(ReceiveResult::Nothing)
                    if self.launcher.as_ref().is_some_and(|launcher| !has_ended(launcher)) => {}
                // The pidfd reports the death of the launcher.
                Ok(ReceiveResult::Nothing | ReceiveResult::End) | Err(_) => return event,
            }
        }
    }
}
