//! Copies of our mounts in other mount namespaces. A process that makes a mount namespace of its own (`unshare -m`) copies all
//! mounts that it sees, also those of other sandboxes, and so keeps their file systems and network namespaces alive.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use penfold_cgroup::mountinfo::MountEntry;
use penfold_sys::fork::exit_now;
use penfold_sys::{ForkSide, fork};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::inside::{own_namespace, reap_child};
use crate::mount_table;

/// Unmounts the mounts that are `ours` in each mount namespace but the own one, as far as the kernel permits it.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn unmount_copies(ours: &dyn Fn(&MountEntry) -> bool) -> io::Result<()> {
    let mut seen = HashSet::from([own_namespace("mnt")?]);
    for process in std::fs::read_dir("/proc")?.flatten() {
        let dir = process.path();
        let Some(pid) = dir.file_name().and_then(OsStr::to_str).filter(|name| name.parse::<u32>().is_ok())
        else {
            continue;
        };
        // A process that ends meanwhile is no holder.
        let Ok(namespace) = rustix::fs::stat(dir.join("ns/mnt")) else { continue };
        if !seen.insert(namespace.st_ino) {
            continue;
        }
        let Ok(table) = mount_table::read_of(pid) else { continue };
        let points: Vec<PathBuf> =
            table.into_iter().rev().filter(ours).map(|mount| mount.mount_point).collect();
        if !points.is_empty() {
            unmount_in(&dir.join("ns/mnt"), &points)?;
        }
    }
    Ok(())
}

/// Unmounts these in another mount namespace, in a short-lived child: the caller never leaves its own.
fn unmount_in(namespace: &Path, points: &[PathBuf]) -> io::Result<()> {
    let Ok(namespace) = open(namespace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(());
    };
    match fork()? {
        ForkSide::Child => {
            let entered = move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Mount),
            );
            if entered.is_ok() {
                for point in points {
                    // One that is in use stays, and its holder is named.
                    let _ = mount_table::unmount_point(point, false);
                }
            }
            exit_now(0)
        }
        ForkSide::Parent(pid) => reap_child(pid).map(drop),
    }
}
