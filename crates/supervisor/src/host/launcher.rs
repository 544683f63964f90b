//! What the launcher says to the supervisor, and its death.

use std::time::{Duration, Instant};

use penfold_teardown::lifecycle::Event;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Host;
use crate::policy::{Policy, outdo};
use crate::poll::poll;
use crate::supervised::has_ended;
use crate::wire::{self, Answer, Received, Request};

/// How long a launcher that is not scheduled, or is stopped by its terminal, may take to say what it was sent.
const HEARD: Duration = Duration::from_secs(2);

impl Host {
    /// The launcher is dead: what it has said before counts first, for it may have let the sandbox go.
    pub(super) fn launcher_died(&mut self) -> Option<Event> {
        while self.launcher.is_some() {
            match wire::receive(&self.sandbox.prepared.setup.channel) {
                Ok(Received::Message(Request::LetGo)) => self.launcher = None,
                Ok(Received::Message(request)) => {
                    if let Some(event) = self.sandbox.act(&request).0 {
                        return Some(event);
                    }
                }
                Ok(Received::Nothing | Received::End) | Err(_) => {
                    self.launcher = None;
                    return self.sandbox.decide(Policy::launcher_gone);
                }
            }
        }
        None
    }

    pub(super) fn take_request(&mut self) -> Option<Event> {
        match wire::receive(&self.sandbox.prepared.setup.channel) {
            // Who started it may go now.
            Ok(Received::Message(Request::LetGo)) => {
                self.launcher = None;
                None
            }
            Ok(Received::Message(request)) => self.sandbox.act(&request).0,
            Ok(Received::Nothing) => None,
            // Who started a sandbox closes its end only by dying, and its pidfd says so.
            Ok(Received::End) | Err(_) => {
                self.channel_open = false;
                if self.by_pidfd { None } else { self.sandbox.decide(Policy::owner_gone) }
            }
        }
    }

    /// Hears all that a terminal has sent to the launcher until the leader ended, and what follows.
    ///
    /// The kernel sends to a whole group before one of it is seen to have ended: `kill_pgrp()` holds the lock that an exit
    /// takes. So the launcher has what the leader had, but may not have come to say so.
    pub(super) fn hear_launcher(&mut self) -> Option<Event> {
        if !self.sandbox.prepared.setup.keys || self.launcher.is_none() || !self.channel_open {
            return None;
        }
        wire::offer(&self.sandbox.prepared.setup.channel, &Answer::LeaderEnded).ok()?;
        let until = Instant::now() + HEARD;
        let mut event = None;
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            let channel = &self.sandbox.prepared.setup.channel;
            let sources = [Some(channel), self.launcher.as_ref()];
            let mut fds: Vec<PollFd<'_>> =
                sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if matches!(poll(&mut fds, left.as_ref()), Ok(0)) {
                return event;
            }
            match wire::receive(channel) {
                Ok(Received::Message(Request::Heard)) => return event,
                Ok(Received::Message(request)) => event = outdo(event, self.sandbox.act(&request).0),
                Ok(Received::Nothing)
                    if self.launcher.as_ref().is_some_and(|launcher| !has_ended(launcher)) => {}
                // A launcher that has died is told by its pidfd.
                Ok(Received::Nothing | Received::End) | Err(_) => return event,
            }
        }
    }
}
