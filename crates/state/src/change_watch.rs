//! Notifies of changes below a path: inotify(7).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

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
