//! What no restore can replace.

use std::path::{Path, PathBuf};

use penfold_process::path_text::path_text;
use rustix::fs::{AtFlags, CWD, FileType, StatxAttributes, StatxFlags};

/// Looks for something in a directory that cannot be moved or removed, and says what it is: a mount point, or what `chattr(1)` has made
/// immutable or append-only. A file that vanishes is none.
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
            return Some(format!("{} is a mount point", path_text(&path)));
        }
        if has(StatxAttributes::IMMUTABLE) || has(StatxAttributes::APPEND) {
            return Some(format!("{} is immutable or append-only", path_text(&path)));
        }
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        }
    }
    None
}
