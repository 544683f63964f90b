//! Notifies of changes below a path: inotify(7).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// A watch on one file or directory. Its descriptor is readable after a change.
#[derive(Debug)]
pub(crate) struct ChangeWatch(OwnedFd);

impl ChangeWatch {
    /// Watches `path`; `None` if there is no such path, or the user has too many watches.
    pub(crate) fn on(path: &Path, flags: WatchFlags) -> Option<ChangeWatch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        inotify::add_watch(&inotify, path, flags).ok()?;
        Some(ChangeWatch(inotify))
    }

    /// Discards the changes so far.
    pub(crate) fn clear(&self) {
        let mut events = [0_u8; 1024];
        while matches!(rustix::io::read(&self.0, &mut events), Ok(1..) | Err(Errno::INTR)) {}
    }
}

impl AsFd for ChangeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The reason why a wait for a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// The watch reports a change.
    Changed,
    /// The other descriptor is ready.
    Other,
    /// The time is over.
    Late,
}

/// Waits for a change, until one of `events` comes from `other`, and no longer than `pause`. poll(2) reports an error and a hangup
/// of `other` even without requested events.
///
/// # Errors
/// Those of poll(2).
pub(crate) fn await_change(
    watch: Option<&ChangeWatch>,
    other: Option<(BorrowedFd<'_>, PollFlags)>,
    pause: Duration,
) -> Result<WakeReason, Errno> {
    let mut fds = Vec::with_capacity(2);
    fds.extend(other.iter().map(|(other, events)| PollFd::new(other, *events)));
    fds.extend(watch.iter().map(|watch| PollFd::new(*watch, PollFlags::IN)));
    let timeout = Timespec::try_from(pause).map_err(|_| Errno::INVAL)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let woke = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
    Ok(match other {
        Some(_) if woke(fds.first()) => WakeReason::Other,
        _ if watch.is_some() && woke(fds.last()) => WakeReason::Changed,
        _ => WakeReason::Late,
    })
}
