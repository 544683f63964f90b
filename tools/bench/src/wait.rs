//! Waits, each with a deadline.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Error;

/// Longer than any operation here takes on a working machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// Waits for a child to exit, and reaps the child. Kills the child at the deadline.
pub(crate) fn exit(child: &mut Child, what: &str) -> Result<ExitStatus, Error> {
    let cannot = |source| Error::io(format!("cannot wait for {what}"), source);
    let pidfd =
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).map_err(|errno| cannot(errno.into()))?;
    if readable(pidfd, LIMIT) {
        return child.wait().map_err(cannot);
    }
    child.kill().and_then(|()| child.wait()).map_err(cannot)?;
    Err(late(what))
}

pub(crate) fn late(what: &str) -> Error {
    Error::Late { what: what.to_owned(), seconds: LIMIT.as_secs() }
}

/// Waits until a descriptor is readable; returns false at the deadline.
pub(crate) fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(_) => {}
            Ok(_) => return true,
        }
    }
}

/// Sleeps: for measurements over time, and for conditions without an event.
pub(crate) fn pass(time: Duration) {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let _ = poll(&mut [], Timespec::try_from(left).ok().as_ref());
    }
}
