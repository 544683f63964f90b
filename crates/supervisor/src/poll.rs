//! Waiting, by processes that stay for as long as their sandbox.

use rustix::event::{PollFd, Timespec};
use rustix::io::{Errno, Result};

/// How long it takes to see that nothing can be seen.
const BLIND: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// poll(2), and a nap where it fails: a member may have set our limit of descriptors below those that there are, and who
/// comes back in a loop must not take the processor from those that it waits for.
///
/// Inlined: who waits after it has forgotten its code brings back every stretch of it that it touches.
///
/// # Errors
/// Those of poll(2).
#[inline]
pub(crate) fn poll(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize> {
    let happened = rustix::event::poll(fds, timeout);
    if happened.is_err_and(|error| error != Errno::INTR) {
        nap(timeout);
    }
    happened
}

#[cold]
fn nap(timeout: Option<&Timespec>) {
    let _ = rustix::thread::nanosleep(&timeout.map_or(BLIND, |timeout| BLIND.min(*timeout)));
}
