//! Timeouts of poll(2).

use std::time::Duration;

use rustix::event::Timespec;

/// Converts a duration for poll(2).
pub(crate) fn poll_timeout(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}

/// Sleeps, because the release of a lock causes no event.
pub(crate) fn pause_before_retry(duration: Duration) {
    let _ = rustix::event::poll(&mut [], poll_timeout(duration).as_ref());
}
