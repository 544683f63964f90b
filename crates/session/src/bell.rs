//! The FIFOs by which the shell wakes the host.
//!
//! inotify(7) would do, but a user may have only 128 instances of it by default.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::dir::{SessionDir, open_fifo};

/// Rings when the shell has come back from a command, when it has written its whole state, and when it is ready.
pub(crate) const BELLS: [&str; 3] = ["bell", "whole", "ready"];

/// The host's end of a bell. It polls `POLLHUP` once a writer has opened and closed the FIFO.
#[derive(Debug)]
pub(crate) struct Bell {
    name: &'static str,
    fd: OwnedFd,
}

impl Bell {
    pub(crate) fn create(dir: &SessionDir, name: &'static str) -> io::Result<Bell> {
        dir.make_fifo(name)?;
        Ok(Bell { name, fd: open_fifo(dir.fd(), name)? })
    }

    /// Makes the bell silent until it rings again. There is always a reader, so that no writer waits.
    pub(crate) fn reset(&mut self, dir: &SessionDir) {
        if let Ok(fresh) = open_fifo(dir.fd(), self.name) {
            self.fd = fresh;
        }
    }

    /// Tells whether the bell has rung since it was reset.
    pub(crate) fn has_rung(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now))
            .is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
