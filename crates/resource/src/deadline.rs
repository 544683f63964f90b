//! Pauses between looks, up to a deadline.

use std::time::{Duration, Instant};

use rustix::event::Timespec;

/// Pauses that grow from 1 ms to 50 ms, for what the kernel announces by no event.
#[derive(Debug)]
pub(crate) struct Pauses {
    until: Instant,
    next: Duration,
}

const LONGEST: Duration = Duration::from_millis(50);

impl Pauses {
    pub(crate) fn until(until: Instant) -> Pauses {
        Pauses { until, next: Duration::from_millis(1) }
    }

    /// Returns the length of the next pause; `None` at the deadline.
    pub(crate) fn next(&mut self) -> Option<Timespec> {
        let left = self.until.saturating_duration_since(Instant::now());
        let pause = self.next.min(left);
        self.next = (self.next * 2).min(LONGEST);
        if left.is_zero() { None } else { Timespec::try_from(pause).ok() }
    }

    /// Pauses; returns false at once if the deadline has passed.
    pub(crate) fn pause(&mut self) -> bool {
        let Some(time) = self.next() else { return false };
        let _ = rustix::event::poll(&mut [], Some(&time));
        true
    }
}
