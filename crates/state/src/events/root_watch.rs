//! Notifies of writes in the state root.

use std::path::Path;

use rustix::fs::inotify::WatchFlags;

use crate::change_watch::ChangeWatch;

/// Watches the state root.
#[derive(Debug)]
pub(super) struct RootWatch {
    pub(super) watch: ChangeWatch,
    /// The identity of the watched directory.
    place: (u64, u64),
}

impl RootWatch {
    /// Watches the root; `None` if the root does not exist yet, or the user has too many watches.
    pub(super) fn on(root: &Path) -> Option<RootWatch> {
        let place = place(root)?;
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        Some(RootWatch { watch: ChangeWatch::on(root, flags)?, place })
    }

    /// Tells whether the root is still the same directory.
    pub(super) fn is_on(&self, root: &Path) -> bool {
        place(root) == Some(self.place)
    }
}

fn place(root: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(root).ok().map(|stat| (stat.st_dev, stat.st_ino))
}
