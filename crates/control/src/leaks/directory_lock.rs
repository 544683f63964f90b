//! Whether a directory of a sandbox is held by one of its processes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Opens a directory, following no link.
pub(super) fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Whether nobody holds the lock of a directory. One that cannot be opened counts as held.
pub(super) fn is_free(path: &Path) -> bool {
    directory(path).is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Whether a record is an empty directory that nobody holds: its maker died between the first two steps.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let Ok(dir) = directory(path) else { return false };
    let intent = || rustix::fs::statat(dir.as_fd(), c"intent.json", AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        && matches!(intent(), Err(Errno::NOENT))
}
