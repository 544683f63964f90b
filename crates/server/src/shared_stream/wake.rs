//! Wakes the thread of a stream: eventfd(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

#[cfg(test)]
use super::schedule;

/// A descriptor that is readable from [`Wake::ring`] until [`Wake::clear`].
#[derive(Debug)]
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub(super) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn ring(&self) {
        #[cfg(test)]
        schedule::step();
        // The write fails only if the counter is full: then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        #[cfg(test)]
        schedule::step();
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Waits for a ring since the last [`Wake::clear`].
    ///
    /// # Errors
    /// Those of poll(2).
    pub(super) fn wait(&self) -> io::Result<()> {
        #[cfg(test)]
        schedule::await_readable(self.0.as_fd());
        loop {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                waited => return Ok(waited.map(drop)?),
            }
        }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
