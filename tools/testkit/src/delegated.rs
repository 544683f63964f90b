//! A part of the cgroup tree that an ordinary user may use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mounts;

/// The prefix of the directories.
const PREFIX: &str = "testkit-delegated-";

/// Removes a cgroup that a killed test has delegated, and all cgroups below; leaves any other cgroup alone.
pub fn remove_delegated(path: &Path) {
    if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) {
        drop(DelegatedCgroup { path: path.to_path_buf() });
    }
}

/// A cgroup2 directory below this process's own that belongs to another user, as a service manager delegates one. When
/// this value is dropped, the directory is removed with all cgroups below.
#[derive(Debug)]
pub struct DelegatedCgroup {
    path: PathBuf,
}

impl DelegatedCgroup {
    /// Creates a directory and gives it to this user and group ([cgroup v2, "Delegation"]); for root.
    ///
    /// # Errors
    /// `NotFound` when no cgroup2 mount shows the caller's own cgroup; otherwise the errors of mkdir(2) and chown(2).
    ///
    /// [cgroup v2, "Delegation"]: https://docs.kernel.org/admin-guide/cgroup-v2.html#delegation
    pub fn new(user: u32) -> io::Result<DelegatedCgroup> {
        let parent = mounts::own_cgroup().ok_or(io::ErrorKind::NotFound)?;
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let path = parent.join(format!("{PREFIX}{}", uuid.trim()));
        fs::create_dir(&path)?;
        let cgroup = DelegatedCgroup { path };
        std::os::unix::fs::chown(&cgroup.path, Some(user), Some(user))?;
        for file in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            std::os::unix::fs::chown(cgroup.path.join(file), Some(user), Some(user))?;
        }
        Ok(cgroup)
    }

    /// Returns the directory, for [`crate::Tool::cgroup`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cgroups below, which the tool should have removed.
    pub fn children(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        mounts::walk(&self.path, &mut found);
        found
    }
}

impl Drop for DelegatedCgroup {
    fn drop(&mut self) {
        // The kernel holds the cgroup of an ended process for a moment.
        let deadline = Instant::now() + Duration::from_secs(3);
        for child in self.children().iter().rev() {
            drop(fs::remove_dir(child));
        }
        while fs::remove_dir(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
            if Instant::now() >= deadline {
                break;
            }
            sleep(Duration::from_millis(5));
        }
    }
}
