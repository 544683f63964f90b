//! The deadlines of the loop, and the delays between its looks.

use std::time::{Duration, Instant};

use crate::lifecycle::LifecycleEvent;

/// The delay of the first look after a kill without progress; doubled up to [`LOOK_LAST`].
const LOOK_FIRST: Duration = Duration::from_millis(1);
pub(super) const LOOK_LAST: Duration = Duration::from_millis(50);

/// The deadlines of the loop.
#[derive(Debug, Default)]
pub(super) struct DriveDeadlines {
    pub(super) grace: Option<Instant>,
    pub(super) patience: Option<Instant>,
    pub(super) look: Option<Instant>,
    interval: Duration,
}

impl DriveDeadlines {
    /// Schedules the next look soon, because something has just changed.
    pub(super) fn look_soon(&mut self) {
        self.interval = LOOK_FIRST;
        self.look = Instant::now().checked_add(self.interval);
    }

    /// Schedules the next look at once, because more may be found.
    pub(super) fn look_now(&mut self) {
        self.interval = Duration::ZERO;
        self.look = Some(Instant::now());
    }

    /// Schedules the next look with twice the delay, at most `most`.
    pub(super) fn look_later(&mut self, most: Duration) {
        self.interval = (self.interval * 2).clamp(LOOK_FIRST, most);
        self.look = Instant::now().checked_add(self.interval);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        [self.grace, self.patience, self.look].into_iter().flatten().min()
    }

    /// Returns the event that is due now. The clock is monotonic.
    pub(super) fn event(&mut self) -> Option<LifecycleEvent> {
        let now = Instant::now();
        let over = |due: &mut Option<Instant>| due.take_if(|at| *at <= now).is_some();
        if over(&mut self.patience) {
            Some(LifecycleEvent::PatienceOver)
        } else if over(&mut self.grace) {
            Some(LifecycleEvent::GraceOver)
        } else if over(&mut self.look) {
            Some(LifecycleEvent::Look)
        } else {
            None
        }
    }
}
