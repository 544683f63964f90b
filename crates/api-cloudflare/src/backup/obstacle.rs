//! What no restore can replace, or may not now.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use penfold_process::path_text::path_text;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

/// Looks for something in a directory that cannot be moved or removed, and says what it is: a mount point, or what `chattr(1)` has made
/// immutable or append-only; or at which another restore works. A file that vanishes is none.
pub(super) fn find_obstacle(dir: &Path) -> Option<String> {
    // The directory itself, if its path is a link.
    let top = dir.join(".");
    let mut left: Vec<PathBuf> = vec![top.clone()];
    while let Some(path) = left.pop() {
        let Ok(found) = rustix::fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) else {
            continue;
        };
        let has = |attribute| found.stx_attributes.contains(attribute);
        if has(StatxAttributes::MOUNT_ROOT) && path != top {
            return Some(format!("{} is a mount point: it cannot be replaced", path_text(&path)));
        }
        if has(StatxAttributes::IMMUTABLE) || has(StatxAttributes::APPEND) {
            return Some(format!("{} is immutable or append-only: it cannot be replaced", path_text(&path)));
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory {
            if path != top && is_working(&path) {
                let place = path.parent().unwrap_or(dir);
                return Some(format!("another restore works on {}", path_text(place)));
            }
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        }
    }
    None
}

/// Whether this is what a restore has made that still works: it has the lock.
fn is_working(path: &Path) -> bool {
    let is_named = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".penfold-restore-"));
    is_named
        && rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .is_ok_and(|dir| {
            rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        })
}
