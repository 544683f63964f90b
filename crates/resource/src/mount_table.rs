//! The mounts of this process's mount namespace.

use std::io;
use std::path::Path;

use penfold_cgroup::mountinfo::{self, MountEntry};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Reads the table of this process, in the order of the kernel.
pub(crate) fn read_mount_table() -> io::Result<Vec<MountEntry>> {
    read_of("self")
}

/// Reads the table of another process.
pub(crate) fn read_of(process: &str) -> io::Result<Vec<MountEntry>> {
    mountinfo::parse_mountinfo(&std::fs::read(format!("/proc/{process}/mountinfo"))?)
        .map_err(io::Error::other)
}

/// Returns the id of the mount that a path is in; a last link is followed.
pub(crate) fn id_of(path: &Path) -> Result<u32, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID)?;
    u32::try_from(stat.stx_mnt_id).map_err(|_| Errno::OVERFLOW)
}

/// Returns the mounts on top of a mount, deepest first, and then the mount itself.
pub(crate) fn with_children(table: &[MountEntry], id: u32) -> Vec<&MountEntry> {
    let mut found: Vec<&MountEntry> = table.iter().filter(|mount| mount.id == id).collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|mount| mount.id) {
        // The root of a namespace may be its own parent.
        found.extend(table.iter().filter(|mount| mount.parent == parent && mount.id != parent));
        next += 1;
        if next > table.len() {
            break;
        }
    }
    found.reverse();
    found
}

/// Unmounts a mount point; links are not followed. An absent mount is fine.
pub(crate) fn unmount_point(point: &Path, lazily: bool) -> Result<(), Errno> {
    let how = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(point, how | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Detaches everything that is mounted on a directory or below, the last mount first: mounted files belong to somebody else.
pub(crate) fn detach_in(path: &Path) -> io::Result<()> {
    for mount in read_mount_table()?.iter().rev() {
        if mount.mount_point.starts_with(path) {
            unmount_point(&mount.mount_point, true)?;
        }
    }
    Ok(())
}

/// Detaches everything that is mounted on a path.
pub(crate) fn detach_at(path: &Path) -> io::Result<()> {
    for mount in read_mount_table()?.iter().rev().filter(|mount| mount.mount_point == path) {
        unmount_point(&mount.mount_point, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_come_before_their_parents() {
        let text = b"1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /m rw - tmpfs penfold-x rw\n\
            3 2 0:3 / /m/a rw - tmpfs t rw\n4 3 0:4 / /m/a/b rw - tmpfs t rw\n5 1 0:5 / /mm rw - tmpfs t rw\n";
        let table = mountinfo::parse_mountinfo(text).unwrap();
        let ids: Vec<u32> = with_children(&table, 2).iter().map(|mount| mount.id).collect();
        assert_eq!(ids, [4, 3, 2]);
        assert_eq!(with_children(&table, 1).len(), 5);
    }
}
