//! Where the paths of a watched tree are: on the host, or in a jail.

use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use penfold_state::clear::list_entries;
use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::files::Root;

/// Where the paths of a watched tree are.
#[derive(Debug, Clone)]
pub enum Place {
    /// They are paths of the host.
    Host,
    /// They are paths below this directory. Only a thread with the rights of the jail may look at the tree.
    Below(Root),
}

/// Two places are the same if their directories are; a directory is the same as its clones.
impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Host, Place::Host) => true,
            (Place::Below(one), Place::Below(two)) => one.is_same(two),
            _ => false,
        }
    }
}

impl Eq for Place {}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        matches!(self, Place::Host).hash(state);
    }
}

/// What is at a path.
pub(super) struct Found {
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) is_directory: bool,
}

impl Place {
    /// Looks at a path. A link is followed.
    pub(super) fn look(&self, path: &Path) -> io::Result<Found> {
        let stat = match self {
            Place::Host => rustix::fs::stat(path)?,
            Place::Below(root) => {
                rustix::fs::fstat(root.open(path.as_os_str(), OFlags::PATH, Mode::empty())?)?
            }
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Ok(Found { identity: (stat.st_dev, stat.st_ino), is_directory })
    }

    /// Watches a path.
    pub(super) fn watch(&self, inotify: &OwnedFd, path: &Path, flags: WatchFlags) -> Result<i32, Errno> {
        let Place::Below(root) = self else { return inotify::add_watch(inotify, path, flags) };
        let follow = if flags.contains(WatchFlags::DONT_FOLLOW) { OFlags::NOFOLLOW } else { OFlags::empty() };
        let found = root.open(path.as_os_str(), OFlags::PATH | follow, Mode::empty())?;
        // The path of the descriptor is a link to what it is open for.
        inotify::add_watch(
            inotify,
            format!("/proc/self/fd/{}", found.as_raw_fd()),
            flags.difference(WatchFlags::DONT_FOLLOW),
        )
    }

    /// Lists a directory: the names, and whether an entry is a directory itself. What cannot be read is left out.
    pub(super) fn list(&self, path: &Path) -> Vec<(OsString, bool)> {
        let Place::Below(root) = self else {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            // The type of the entry itself, and not of what a link leads to.
            return entries
                .map(|entry| (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_dir())))
                .collect();
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = root.open(path.as_os_str(), flags, Mode::empty()).ok();
        let listed = opened.and_then(|dir| list_entries(dir.as_fd()).ok()).unwrap_or_default();
        let named = |name: std::ffi::CString| OsStr::from_bytes(name.as_bytes()).to_owned();
        listed.into_iter().map(|(name, kind)| (named(name), kind == FileType::Directory)).collect()
    }
}
