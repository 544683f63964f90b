//! Waits with poll(2), in processes that live as long as their sandbox.

use rustix::event::{PollFd, Timespec};
use rustix::io::{Errno, Result};

/// The pause after a failed poll(2).
const FAILURE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Calls poll(2), and pauses if it fails. A member may have lowered our descriptor limit below the number of open
/// descriptors. A loop must then not take the CPU from the processes that it waits for.
///
/// Inlined: after `drop_unneeded_pages` each page of code that runs is faulted in again.
///
/// # Errors
/// Those of poll(2).
#[inline]
pub(crate) fn poll_or_pause(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize> {
    let polled = rustix::event::poll(fds, timeout);
    if polled.is_err_and(|error| error != Errno::INTR) {
        pause(timeout);
    }
    polled
}

#[cold]
fn pause(timeout: Option<&Timespec>) {
    let _ = rustix::thread::nanosleep(&timeout.map_or(FAILURE_PAUSE, |timeout| FAILURE_PAUSE.min(*timeout)));
}
