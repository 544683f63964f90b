//! Ends everything that carries a cookie or descends from a process; only for cleanup after a verdict.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use crate::mounts;
use crate::proc::{self, Handle, Stat};

/// Returns the living processes below `root`, and those with `cookie` in their environment or arguments, without `root`
/// and the calling process.
pub fn living(root: i32, cookie: &str) -> Vec<Stat> {
    let own = proc::this().map_or(0, |stat| stat.id.pid);
    let list = proc::all();
    let below: BTreeSet<i32> = proc::descendants(&list, root);
    list.into_iter()
        .filter(|process| process.id.pid != root && process.id.pid != own && !process.is_dead())
        .filter(|process| {
            let carries = || !process.is_kernel_thread && proc::carries(process.id.pid, cookie.as_bytes());
            below.contains(&process.id.pid) || carries()
        })
        .collect()
}

/// Returns the cgroups with the cookie in their own name, and all cgroups below; parents first.
pub fn cgroups(cookie: &str) -> Vec<PathBuf> {
    mounts::cgroups().into_iter().filter(|path| path.to_string_lossy().contains(cookie)).collect()
}

/// Thaws the cgroups of [`cgroups`]: what is frozen does not die.
pub fn thaw(cookie: &str) {
    for cgroup in cgroups(cookie) {
        drop(fs::write(cgroup.join("freezer.state"), "THAWED"));
        if cgroup.join("cgroup.freeze").exists() {
            drop(fs::write(cgroup.join("cgroup.freeze"), "0"));
        }
    }
}

/// Ends all processes that [`living`] finds, and removes the cgroups and mounts of the cookie. Returns the leftovers
/// after at most `patience`.
///
/// `root` is the parent of these processes and calls `reap` in every round; `reap` tells whether no child is left. A
/// scan of /proc alone can miss a process that forks and exits faster than the scan.
pub fn sweep(root: i32, cookie: &str, patience: Duration, mut reap: impl FnMut() -> bool) -> Vec<String> {
    let deadline = Instant::now() + patience;
    loop {
        thaw(cookie);
        let left = living(root, cookie);
        for process in &left {
            if let Ok(Some(handle)) = Handle::open(process.id) {
                drop(handle.signal(Signal::KILL));
            }
        }
        let childless = reap();
        if (left.is_empty() && childless) || Instant::now() >= deadline {
            let mut names: Vec<String> =
                left.iter().map(|process| format!("process {} {}", process.id, process.name)).collect();
            if left.is_empty() && !childless {
                names.push("a process that moves faster than a look at /proc".to_owned());
            }
            names.extend(remove(cookie, deadline));
            return names;
        }
        sleep(Duration::from_millis(2));
    }
}

/// Removes cgroups, deepest first, and mounts.
fn remove(cookie: &str, deadline: Instant) -> Vec<String> {
    for mount in mounts::mounts().unwrap_or_default().iter().rev() {
        if mount.point.to_string_lossy().contains(cookie) {
            let _ = rustix::mount::unmount(&mount.point, UnmountFlags::DETACH);
        }
    }
    loop {
        let left = cgroups(cookie);
        for cgroup in left.iter().rev() {
            drop(fs::remove_dir(cgroup));
        }
        if left.is_empty() || Instant::now() >= deadline {
            return left.into_iter().map(|cgroup| format!("cgroup {}", cgroup.display())).collect();
        }
        sleep(Duration::from_millis(2));
    }
}

/// Removes the cgroups of sandboxes and containers of a test that ended before them, after all members were killed. The leaf's
/// attribute names a state root below `place`, or `place/root` has the record, or the cgroup bears the name of `place`.
pub fn remove_leaves(place: &Path, patience: Duration) {
    let deadline = Instant::now() + patience;
    let records = fs::read_dir(place.join("root/sandboxes")).into_iter().flatten().flatten();
    let recorded: Vec<String> =
        records.map(|record| format!("penfold-{}", record.file_name().to_string_lossy())).collect();
    let Some(named) = place.file_name().map(|name| name.to_string_lossy()) else { return };
    let place = place.to_string_lossy();
    let mut own: Vec<PathBuf> = mounts::cgroups();
    own.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.contains(&*named) || recorded.iter().any(|leaf| **leaf == *name) {
            return true;
        }
        let mut text = vec![0_u8; 16 * 1024];
        let length = rustix::fs::lgetxattr(path, c"user.penfold", &mut text).unwrap_or(0);
        String::from_utf8_lossy(text.get(..length).unwrap_or_default()).contains(place.as_ref())
    });
    for leaf in own.into_iter().rev() {
        while leaf.exists() && Instant::now() < deadline {
            for inner in fs::read_dir(&leaf).into_iter().flatten().flatten() {
                drop(fs::remove_dir(inner.path()));
            }
            if fs::remove_dir(&leaf).is_err() {
                drop(fs::write(leaf.join("cgroup.kill"), "1"));
                sleep(Duration::from_millis(2));
            }
        }
    }
}
