//! Moves processes out of a cgroup v1 freezer.
//!
//! A process in a frozen v1 cgroup takes no signal, SIGKILL included, and outlives even its pid namespace. Thawing the
//! cgroup would also thaw other processes that somebody froze on purpose. Instead, one process is moved to the root of
//! the hierarchy, which is never frozen, and thaws alone. Kernel:
//! Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use penfold_process::{ProcFs, Process};

use crate::dir;
use crate::membership::Membership;
use crate::mountinfo::{self, MountEntry};

/// The result of [`V1Freezer::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezerRelease {
    /// The process was frozen and no longer is; pending signals reach it.
    Released,
    /// The process is not frozen by v1: it is in the root, in a cgroup that is not frozen, or gone.
    NotFrozen,
    /// The process's freezer cgroup is outside the hierarchy as mounted here.
    OutOfSight,
}

/// The v1 freezer hierarchy.
#[derive(Debug)]
pub struct V1Freezer {
    dir: OwnedFd,
    root: PathBuf,
}

impl V1Freezer {
    /// Finds the mount of the hierarchy in the text of `/proc/self/mountinfo`; `None` on hosts without the hierarchy.
    pub fn find(mountinfo: &[u8]) -> io::Result<Option<Self>> {
        let Some(MountEntry { mount_point, root, .. }) = locate(mountinfo) else {
            return Ok(None);
        };
        match dir::open_absolute(&mount_point) {
            Ok(dir) => Ok(Some(Self { dir, root })),
            Err(errno) if dir::is_gone(errno) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Finds the mount of the hierarchy for this process.
    pub fn find_here() -> io::Result<Option<Self>> {
        Self::find(&std::fs::read("/proc/self/mountinfo")?)
    }

    /// Moves `process` to the root of the hierarchy if a cgroup below freezes it. Needs root.
    ///
    /// The kernel takes a pid here, not a pidfd. A frozen process cannot exit, so its pid cannot be reused.
    ///
    /// # Errors
    /// When the kernel refused the move; a frozen process is still frozen then.
    pub fn release(&self, proc: &mut ProcFs, process: &Process) -> io::Result<FreezerRelease> {
        let pid = process.id().pid;
        let Some(text) = proc.cgroups(pid)? else {
            return Ok(FreezerRelease::NotFrozen);
        };
        let Some(path) = Membership::of(&text).v1(b"freezer").filter(|path| *path != b"/") else {
            return Ok(FreezerRelease::NotFrozen);
        };
        let Some(below) = self.below(path) else {
            return Ok(FreezerRelease::OutOfSight);
        };
        if !self.is_frozen(&below)? || process.has_exited()? {
            return Ok(FreezerRelease::NotFrozen);
        }
        dir::write_control_file(self.dir.as_fd(), c"cgroup.procs", pid.to_string().as_bytes())?;
        Ok(FreezerRelease::Released)
    }

    fn below(&self, path: &[u8]) -> Option<PathBuf> {
        let path = Path::new(std::str::from_utf8(path).ok()?);
        let rest = path.strip_prefix(&self.root).ok()?;
        // The root of the mount may itself be a frozen cgroup of the host: a move there would thaw nothing.
        let escapes = rest.components().any(|part| part == std::path::Component::ParentDir);
        (!rest.as_os_str().is_empty() && !escapes).then(|| rest.to_owned())
    }

    fn is_frozen(&self, below: &Path) -> io::Result<bool> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = match rustix::fs::openat(
            &self.dir,
            below.join("freezer.state"),
            flags,
            rustix::fs::Mode::empty(),
        ) {
            Ok(file) => file,
            Err(errno) if dir::is_gone(errno) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let mut text = [0; 32];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut text))?;
        // `FREEZING` already freezes some members.
        Ok(!text[..length].starts_with(b"THAWED"))
    }
}

fn locate(mountinfo: &[u8]) -> Option<MountEntry> {
    mountinfo::of_type(mountinfo, b"cgroup")
        .filter_map(Result::ok)
        .filter(|mount| mount.super_options.split(',').any(|option| option == "freezer"))
        .last()
}
