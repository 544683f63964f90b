//! Finds the processes that hold something, by their files under /proc.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::mount_table;

/// Enough to begin a search with; more would only fill the report.
const MOST: usize = 4;

/// Finds up to four processes with `holds`, which returns how a process does it. `holds` gets the directory in /proc. penfold's
/// own processes hold things to release them, and are left out.
fn find(holds: &mut dyn FnMut(&Path) -> Option<String>) -> Vec<String> {
    let program = |dir: &Path| rustix::fs::stat(dir.join("exe")).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let own = program(Path::new("/proc/self"));
    find_all(&mut |dir| holds(dir).filter(|_| own.is_none() || program(dir) != own))
}

/// As [`find`], with penfold's own processes.
fn find_all(holds: &mut dyn FnMut(&Path) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        let dir = entry.path();
        if let Some(how) = holds(&dir) {
            let comm = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(format!("`{}` (pid {pid}) {how}", comm.trim_end()));
            if found.len() == MOST {
                break;
            }
        }
    }
    found
}

/// Tests the files that a process has: its directories, its program and its descriptors.
fn by_files(dir: &Path, is: &mut dyn FnMut(&Path) -> bool) -> Option<String> {
    for (file, how) in
        [("cwd", "as its working directory"), ("root", "as its root"), ("exe", "as its program")]
    {
        if is(&dir.join(file)) {
            return Some(how.to_owned());
        }
    }
    if let Some(number) = descriptors(dir).find(|number| is(&dir.join("fd").join(number))) {
        return Some(format!("by descriptor {number}"));
    }
    let maps = std::fs::read_dir(dir.join("map_files")).into_iter().flatten().flatten();
    maps.map(|entry| entry.path()).any(|file| is(&file)).then(|| "by a mapped file".to_owned())
}

fn descriptors(dir: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Names the processes that hold a file in one of these mounts.
pub(crate) fn of_mounts(ids: &[u32]) -> Vec<String> {
    let mut is = |file: &Path| mount_table::id_of(file).is_ok_and(|id| ids.contains(&id));
    find(&mut |dir| by_files(dir, &mut is))
}

/// Names the processes whose mount namespace has a copy of the mount with this source and mount point. The other mounts of a
/// sandbox have the same source.
pub(crate) fn of_copies(source: &str, point: &Path) -> Vec<String> {
    let mut seen = HashMap::new();
    if let Ok(own) = crate::inside::own_namespace("mnt") {
        seen.insert(own, false);
    }
    find(&mut |dir| {
        let namespace = rustix::fs::stat(dir.join("ns/mnt")).ok()?.st_ino;
        let pid = dir.file_name()?.to_str()?;
        let has = || {
            mount_table::read_of(pid).is_ok_and(|table| {
                table.iter().any(|mount| mount.source == Path::new(source) && mount.mount_point == point)
            })
        };
        let found = *seen.entry(namespace).or_insert_with(has);
        found.then(|| "with a copy of the mount in its mount namespace".to_owned())
    })
}

/// Names the processes that hold a file below this directory.
pub(crate) fn of_directory(path: &Path) -> Vec<String> {
    let mut is = |file: &Path| std::fs::read_link(file).is_ok_and(|target| target.starts_with(path));
    find(&mut |dir| by_files(dir, &mut is))
}

/// Names the processes that hold a file below a directory that penfold did not make; those of penfold count, too. `spares` tells
/// which pids do not matter.
pub fn users_of_directory(path: &Path, spares: &dyn Fn(i32) -> bool) -> Vec<String> {
    let mut is = |file: &Path| std::fs::read_link(file).is_ok_and(|target| target.starts_with(path));
    find_all(&mut |dir| {
        let pid = dir.file_name()?.to_str()?.parse().ok()?;
        if spares(pid) { None } else { by_files(dir, &mut is) }
    })
}

/// Names the processes and mounts that hold a network namespace. `is` tells by a descriptor whether a namespace is it.
pub(crate) fn of_network(is: &mut dyn FnMut(&OwnedFd) -> bool) -> Vec<String> {
    let mut known: HashMap<u64, bool> = HashMap::new();
    let mut is = |namespace: io::Result<OwnedFd>| {
        let Ok(namespace) = namespace else { return false };
        let Ok(stat) = rustix::fs::fstat(&namespace) else { return false };
        *known.entry(stat.st_ino).or_insert_with(|| is(&namespace))
    };
    // The target of a link does not show a namespace whose name is gone: it is `/` then.
    let namespaces = device_of(Path::new("/proc/self/ns/net"));
    let mut tables = HashSet::new();
    find(&mut |dir| {
        if is(opened(&dir.join("ns/net"))) {
            return Some("in the namespace".to_owned());
        }
        for task in std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten() {
            if is(opened(&task.path().join("ns/net"))) {
                return Some("with a thread in the namespace".to_owned());
            }
        }
        let by_descriptor = descriptors(dir).find(|number| {
            let link = dir.join("fd").join(number);
            if namespaces.is_some() && device_of(&link) == namespaces {
                return is(opened(&link));
            }
            let target = std::fs::read_link(&link).unwrap_or_default();
            let has_network = target.as_os_str().as_bytes().starts_with(b"socket:[");
            (has_network || target == Path::new("/dev/net/tun")) && is(network_of(dir, number))
        });
        if let Some(number) = by_descriptor {
            return Some(format!("by descriptor {number}"));
        }
        let point = mounted_namespace(dir, &mut tables, &mut is)?;
        Some(format!("with the mount `{}`", point.display()))
    })
}

/// Returns the device of a file, without an answer from a server or a device.
fn device_of(path: &Path) -> Option<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

fn opened(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Opens the network namespace of another process's socket.
fn network_of(dir: &Path, number: &str) -> io::Result<OwnedFd> {
    let invalid = || io::Error::from(rustix::io::Errno::INVAL);
    let pid = dir.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let pid = pid.and_then(Pid::from_raw).ok_or_else(invalid)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let copy = pidfd_getfd(pidfd, number.parse().map_err(|_| invalid())?, PidfdGetfdFlags::empty())?;
    penfold_sys::namespace::network_of(copy.as_fd())
}

/// Finds a mount of the network namespace in the mount namespace of a process. Each namespace is read once.
fn mounted_namespace(
    dir: &Path,
    tables: &mut HashSet<u64>,
    is: &mut dyn FnMut(io::Result<OwnedFd>) -> bool,
) -> Option<PathBuf> {
    let namespace = rustix::fs::stat(dir.join("ns/mnt")).ok()?.st_ino;
    if !tables.insert(namespace) {
        return None;
    }
    let table = mount_table::read_of(dir.file_name()?.to_str()?).ok()?;
    let mut mounted = table.into_iter().filter(|mount| mount.fs_type == "nsfs");
    mounted
        .find(|mount| {
            let below = mount.mount_point.strip_prefix("/").unwrap_or(&mount.mount_point);
            mount.root.to_string_lossy().starts_with("net:[") && is(opened(&dir.join("root").join(below)))
        })
        .map(|mount| mount.mount_point)
}
