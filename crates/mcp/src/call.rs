//! A call of a tool on a thread of its own, which may be cancelled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// What the thread of a call watches: a pipe whose other end closes when the call is cancelled.
#[derive(Debug)]
pub(crate) struct Cancel(OwnedFd);

/// The other end: dropping it cancels the call.
#[derive(Debug)]
pub(crate) struct Caller {
    _end: OwnedFd,
}

/// Makes both ends.
///
/// # Errors
/// Those of pipe2(2).
pub(crate) fn cancel_pair() -> std::io::Result<(Caller, Cancel)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Caller { _end: write }, Cancel(read)))
}

impl Cancel {
    /// Tells whether the call was cancelled.
    pub(crate) fn has_come(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // poll(2) reports a hang-up without being asked for it.
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_caller_cancels() {
        let (caller, cancel) = cancel_pair().unwrap();
        assert!(!cancel.has_come());
        drop(caller);
        assert!(cancel.has_come());
    }
}
