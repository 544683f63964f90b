//! A mount that is made for the command: bind, overlay or tmpfs.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use penfold_cgroup::mountinfo::MountEntry as Found;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use serde::{Deserialize, Serialize};

use crate::deadline::Pauses;
use crate::error::{ResourceError, failed_step};
use crate::inside::{own_namespace, path_of};
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;
use crate::{copies, holders, mount_table};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The mount point, without links.
    #[serde(with = "penfold_process::path_text")]
    pub target: PathBuf,
    /// Whether nothing may be written through the mount.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The inode of the planner's mount namespace.
    pub home: u64,
    /// The type and its details.
    #[serde(flatten)]
    pub file_system: FileSystem,
}

/// The type of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FileSystem {
    /// A file or directory that is seen at a second place.
    Bind {
        /// The file or directory, without links.
        #[serde(with = "penfold_process::path_text")]
        source: PathBuf,
        /// How the mount is recognised; `None` if the source is in a file system that is mounted later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<Origin>,
    },
    /// Directories on top of each other.
    Overlay {
        /// The directories that are only read, the topmost first.
        #[serde(with = "penfold_process::path_text")]
        lower: Vec<PathBuf>,
        /// The directory that takes the changes.
        #[serde(with = "penfold_process::path_text")]
        upper: PathBuf,
        /// An empty directory in the same file system as `upper`.
        #[serde(with = "penfold_process::path_text")]
        work: PathBuf,
    },
    /// Files in memory.
    Tmpfs {
        /// The limit in bytes; without it, half of the memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
}

/// The directory of a file system that a bind shows, as in `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The device number, as `major:minor`.
    pub device: String,
    /// The path in the file system.
    #[serde(with = "penfold_process::path_text")]
    pub root: PathBuf,
}

impl Origin {
    /// Finds the origin of a path, which need not exist.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Origin>> {
        let table = mount_table::read_mount_table()?;
        // Of two mounts on one point, the later covers the earlier.
        let within = table.iter().filter(|mount| path.starts_with(&mount.mount_point));
        let mount = within.max_by_key(|mount| mount.mount_point.components().count());
        Ok(mount.and_then(|mount| {
            let below = path.strip_prefix(&mount.mount_point).ok()?;
            let root = if below.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(below) };
            Some(Origin { device: mount.device.clone(), root })
        }))
    }

    fn is(&self, mount: &Found) -> bool {
        // The kernel appends this when the directory has been removed since.
        let root = mount.root.as_os_str().as_bytes();
        let root = root.strip_suffix(b"//deleted").unwrap_or(root);
        self.device == mount.device && self.root.as_os_str().as_bytes() == root
    }
}

impl Mount {
    /// Plans a mount in the mount namespace of this process.
    pub(crate) fn plan(
        target: PathBuf,
        read_only: bool,
        file_system: FileSystem,
    ) -> Result<Mount, ResourceError> {
        let home = own_namespace("mnt").map_err(failed_step(|| "read the own mount namespace".to_owned()))?;
        Ok(Mount { target, read_only, home, file_system })
    }

    fn kind(&self) -> &'static str {
        match self.file_system {
            FileSystem::Bind { .. } => "bind",
            FileSystem::Overlay { .. } => "overlay",
            FileSystem::Tmpfs { .. } => "tmpfs",
        }
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} mount `{}`", self.kind(), self.target.display())
    }

    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        let table = mount_table::read_mount_table().map_err(failed_step(|| "read the mounts".to_owned()))?;
        if table.iter().any(|mount| mount.mount_point == self.target) {
            return Err(ResourceError::Taken { resource: format!("a mount on `{}`", self.target.display()) });
        }
        Ok(())
    }

    pub(crate) fn create(&self, owner: &ResourceOwner) -> Result<(), ResourceError> {
        self.make(owner).map_err(failed_step(|| format!("make {}", self.describe())))
    }

    fn make(&self, owner: &ResourceOwner) -> io::Result<()> {
        let target = open_without_links(&self.target)?;
        let point = path_of(target.as_fd());
        let source = owner.name();
        let flags = if self.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        match &self.file_system {
            FileSystem::Bind { source, .. } => {
                let from = open_without_links(source)?;
                rustix::mount::mount_bind(path_of(from.as_fd()).as_str(), point.as_str())?;
                penfold_sys::crash_point!("mount-bound");
                let finished = self.finish_bind();
                if finished.is_err() {
                    let _ = mount_table::unmount_point(&self.target, true);
                }
                return finished;
            }
            FileSystem::Overlay { lower, upper, work } => {
                let options = overlay_options(lower, upper, work)?;
                rustix::mount::mount(source.as_str(), point.as_str(), "overlay", flags, options.as_c_str())?;
            }
            FileSystem::Tmpfs { size } => {
                let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
                let options = CString::new(format!("mode=0700{size}"))?;
                let flags = flags | MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount(source.as_str(), point.as_str(), "tmpfs", flags, options.as_c_str())?;
            }
        }
        penfold_sys::crash_point!("mount-made");
        Ok(())
    }

    /// A bind of a shared mount is in its peer group: a mount of the command in it would appear at the source, too.
    fn finish_bind(&self) -> io::Result<()> {
        rustix::mount::mount_change(&self.target, MountPropagationFlags::PRIVATE)?;
        if self.read_only {
            rustix::mount::mount_remount(&self.target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
        }
        Ok(())
    }

    pub(crate) fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        if self.is_elsewhere()? {
            return Err(self.elsewhere());
        }
        let table = self.table()?;
        Ok(match self.find(&table, owner) {
            Some(id) => ResourcePresence::Ours { held_by: holders::of_mounts(&ids(&table, id)) },
            None => match (self.stranger(&table), self.copies(owner)) {
                (Some(why), _) => ResourcePresence::Foreign { why },
                (None, held_by) if held_by.is_empty() => ResourcePresence::Absent,
                (None, held_by) => ResourcePresence::Ours { held_by },
            },
        })
    }

    /// Unmounts what the command has mounted on top, then the mount.
    ///
    /// A mount that a process holds stays where it is. Detached, it would have no name by which a later look could tell
    /// whether it is gone.
    pub(crate) fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        if self.is_elsewhere()? {
            return Err(self.elsewhere());
        }
        let mut pauses = Pauses::until(until);
        let mut detached = false;
        loop {
            let table = self.table()?;
            let Some(id) = self.find(&table, owner) else { break };
            let unmounted = unmount_all(&table, id, false);
            penfold_sys::crash_point!("mount-unmounted");
            if (unmounted.is_ok() && self.find(&self.table()?, owner).is_none()) || pauses.pause() {
                continue;
            }
            let held_by = holders::of_mounts(&ids(&table, id));
            if !held_by.is_empty() {
                return Err(ResourceError::Held { resource: self.describe(), held_by });
            }
            detached = true;
            unmount_all(&table, id, true).map_err(failed_step(|| format!("unmount {}", self.describe())))?;
        }
        let table = self.table()?;
        if let Some(why) = self.stranger(&table) {
            return Err(ResourceError::Foreign { resource: self.describe(), why });
        }
        self.await_copies(owner, pauses)?;
        if detached { Err(ResourceError::Detached { resource: self.describe() }) } else { Ok(()) }
    }

    /// Another process may have copied its mount namespace, and with it the mount. A bind keeps no file system alive.
    fn copies(&self, owner: &ResourceOwner) -> Vec<String> {
        match self.file_system {
            FileSystem::Bind { .. } => Vec::new(),
            _ => holders::of_copies(&owner.name(), &self.target),
        }
    }

    fn await_copies(&self, owner: &ResourceOwner, mut pauses: Pauses) -> Result<(), ResourceError> {
        loop {
            let mut held_by = self.copies(owner);
            if !held_by.is_empty() {
                let ours = |mount: &Found| mount.mount_point == self.target && self.is(mount, owner);
                // Without the privilege for it, they are named.
                let _ = copies::unmount_copies(&ours);
                held_by = self.copies(owner);
            }
            if held_by.is_empty() {
                return Ok(());
            }
            if !pauses.pause() {
                return Err(ResourceError::Held { resource: self.describe(), held_by });
            }
        }
    }

    fn table(&self) -> Result<Vec<Found>, ResourceError> {
        mount_table::read_mount_table().map_err(failed_step(|| format!("look for {}", self.describe())))
    }

    /// Finds our mount: the lowest on this mount point that is ours.
    fn find(&self, table: &[Found], owner: &ResourceOwner) -> Option<u32> {
        table
            .iter()
            .find(|mount| mount.mount_point == self.target && self.is(mount, owner))
            .map(|mount| mount.id)
    }

    fn is(&self, mount: &Found, owner: &ResourceOwner) -> bool {
        match &self.file_system {
            FileSystem::Bind { source, origin } => {
                let origin = origin.clone().or_else(|| Origin::of(source).ok().flatten());
                origin.is_some_and(|origin| origin.is(mount))
            }
            _ => mount.fs_type == self.kind() && mount.source.as_os_str() == owner.name().as_str(),
        }
    }

    fn stranger(&self, table: &[Found]) -> Option<String> {
        let mount = table.iter().find(|mount| mount.mount_point == self.target)?;
        Some(format!("`{}` of type {} is mounted there", mount.source.display(), mount.fs_type))
    }

    /// Tells whether the mount may be in another mount namespace that a process is in.
    fn is_elsewhere(&self) -> Result<bool, ResourceError> {
        let look = || format!("look for {}", self.describe());
        if own_namespace("mnt").map_err(failed_step(look))? == self.home {
            return Ok(false);
        }
        let mut processes = std::fs::read_dir("/proc").map_err(failed_step(look))?.flatten();
        Ok(processes.any(|process| {
            rustix::fs::stat(process.path().join("ns/mnt")).is_ok_and(|stat| stat.st_ino == self.home)
        }))
    }

    fn elsewhere(&self) -> ResourceError {
        ResourceError::Elsewhere { resource: self.describe(), namespace: "mount" }
    }
}

fn ids(table: &[Found], id: u32) -> Vec<u32> {
    mount_table::with_children(table, id).iter().map(|mount| mount.id).collect()
}

/// Unmounts a mount and what is on top of it. A mount that is covered by another of a parent directory is busy.
fn unmount_all(table: &[Found], id: u32, lazily: bool) -> Result<(), Errno> {
    for mount in mount_table::with_children(table, id) {
        match mount_table::id_of(&mount.mount_point) {
            Ok(id) if id == mount.id => mount_table::unmount_point(&mount.mount_point, lazily)?,
            Ok(_) => return Err(Errno::BUSY),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn open_without_links(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// Overlay separates its options by commas, and the lower directories by colons.
fn overlay_options(lower: &[PathBuf], upper: &Path, work: &Path) -> io::Result<CString> {
    let escaped = |path: &Path| {
        let mut bytes = Vec::new();
        for &byte in path.as_os_str().as_bytes() {
            if matches!(byte, b':' | b',' | b'\\') {
                bytes.push(b'\\');
            }
            bytes.push(byte);
        }
        bytes
    };
    let lower = lower.iter().map(|path| escaped(path)).collect::<Vec<_>>().join(&b':');
    let all =
        [&b"lowerdir="[..], &lower, b",upperdir=", &escaped(upper), b",workdir=", &escaped(work)].concat();
    Ok(CString::new(OsString::from_vec(all).into_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_paths_of_an_overlay_are_escaped() {
        let lower = [PathBuf::from("/a:b"), PathBuf::from("/c,d")];
        let options = overlay_options(&lower, Path::new("/u"), Path::new("/w\\x")).unwrap();
        assert_eq!(options.to_str().unwrap(), "lowerdir=/a\\:b:/c\\,d,upperdir=/u,workdir=/w\\\\x");
    }

    #[test]
    fn a_mount_reads_back_as_it_was_written() {
        let file_system = FileSystem::Bind { source: "/s".into(), origin: None };
        let mount = Mount { target: "/t".into(), read_only: true, home: 1, file_system };
        let text = serde_json::to_string(&mount).unwrap();
        assert_eq!(serde_json::from_str::<Mount>(&text).unwrap(), mount);
    }
}
