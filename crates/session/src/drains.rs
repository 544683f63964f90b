//! The pipes of ended commands that background jobs still write to. Nobody reads what they write.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// The most pipes. Beyond it the oldest is closed: its writers get SIGPIPE.
const MOST: usize = 64;
/// The most bytes taken from one pipe in a turn, so that no job delays the current command.
const AT_ONCE: usize = 256 << 10;

/// The pipes, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Drains(VecDeque<OwnedFd>);

impl Drains {
    pub(crate) fn add(&mut self, pipe: OwnedFd) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(pipe);
    }

    /// Returns the descriptors to poll; [`Drains::drain`] takes the answers in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    /// Empties the pipes that are ready, and forgets those without a writer.
    pub(crate) fn drain(&mut self, mut ready: impl Iterator<Item = bool>) {
        let mut buffer = [0_u8; 16 << 10];
        self.0.retain(|pipe| !ready.next().unwrap_or(false) || has_writer(pipe, &mut buffer));
    }
}

fn has_writer(pipe: &OwnedFd, buffer: &mut [u8]) -> bool {
    let mut taken = 0;
    while taken < AT_ONCE {
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => return false,
            Ok(bytes) => taken += bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return errno == Errno::AGAIN,
        }
    }
    true
}
