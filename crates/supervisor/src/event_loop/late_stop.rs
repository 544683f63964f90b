//! A stop that the leader sees before its supervisor does.
//!
//! A service manager stops a scope with SIGTERM to one process after another. A leader that comes first can end before this process
//! gets its own SIGTERM. The cause of the end is that signal all the same.

use std::time::{Duration, Instant};

use penfold_teardown::lifecycle::LifecycleEvent;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use super::EventLoop;
use crate::outcome::ExitStatus;
use crate::poll::poll_or_pause;

/// The time that a service manager may take from the first process of a scope to the last.
const LATE_STOP: Duration = Duration::from_millis(250);

impl EventLoop {
    /// Returns the event of a SIGTERM to this process that belongs to the end of a leader in a scope. Waits for it only if
    /// the leader has ended as SIGTERM ends a process, and penfold has not forwarded that signal.
    pub(super) fn take_late_stop(&mut self, status: Option<ExitStatus>) -> Option<LifecycleEvent> {
        if self.sandbox.parts.setup.scope.is_none() || self.sandbox.policy.is_ending() {
            return None;
        }
        let waits = is_of_term(status) && !self.sandbox.forwarded_term;
        let until = Instant::now() + if waits { LATE_STOP } else { Duration::ZERO };
        loop {
            let event = self.sandbox.take_signals();
            let left = until.saturating_duration_since(Instant::now());
            if event.is_some() || left.is_zero() || self.sandbox.policy.is_ending() {
                return event;
            }
            let signals = self.sandbox.signals.as_ref()?;
            let timeout = Timespec::try_from(left).ok();
            let _ = poll_or_pause(&mut [PollFd::new(signals, PollFlags::IN)], timeout.as_ref());
        }
    }
}

/// Tells whether SIGTERM ended the process, or a handler of SIGTERM that reports it as shells do.
pub(super) fn is_of_term(status: Option<ExitStatus>) -> bool {
    const TERM: i32 = Signal::TERM.as_raw();
    match status {
        Some(ExitStatus::Signal(signal)) => signal == TERM,
        Some(ExitStatus::Code(code)) => code == 128 + TERM,
        None => false,
    }
}
