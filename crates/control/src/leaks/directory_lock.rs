//! Tells whether a process of a sandbox holds the lock of one of its directories.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Opens a directory without following links.
pub(super) fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Tells whether no process holds the lock of a directory. A directory that cannot be opened counts as locked.
pub(super) fn is_free(path: &Path) -> bool {
    directory(path).is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Tells whether a record is an empty directory without a lock: its maker died between its first two steps.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let Ok(dir) = directory(path) else { return false };
    let intent = || rustix::fs::statat(dir.as_fd(), c"intent.json", AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        && matches!(intent(), Err(Errno::NOENT))
}
