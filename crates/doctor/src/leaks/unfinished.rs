//! What a penfold process that died has not finished in a record.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use penfold_state::Files;
use penfold_state::clear::list_entries;
use penfold_state::lock::open_directory;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

/// Tells whether a record is an empty directory without a lock: its maker died between its first two steps.
pub(super) fn is_unfinished_record(path: &Path) -> bool {
    let Ok(dir) = open_directory(path) else { return false };
    let intent = || rustix::fs::statat(dir.as_fd(), c"intent.json", AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        && matches!(intent(), Err(Errno::NOENT))
}

/// Returns the temporary files of a record whose writers died before the rename. The caller holds the lock of the
/// record.
pub(super) fn unfinished_files(files: &Files) -> io::Result<Vec<String>> {
    let all = list_entries(files.dir())?.into_iter().filter_map(|(name, _)| name.into_string().ok());
    Ok(all.filter(|name| Path::new(name).extension().is_some_and(|end| end == "new")).collect())
}
