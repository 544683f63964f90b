//! The processes in the mount namespace of a container. A container with the pids of the host may move a process out of all its cgroups: it stays in
//! the namespace.
//!
//! **Invariants.**
//! - The namespace of the host, or of this process, is never a container's.
//! - The kernel reuses the number of a namespace. So one process must show that it still is the container's: the first one, one in a cgroup of
//!   the container, or one whose root directory is on the mount that was the container's (Linux 6.8 has a number for that is never reused).
//! - What is older than the first process is another's.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, ProcessId, SchedulerState, StartTime, Stat};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::{Deserialize, Serialize};

/// `STATX_MNT_ID_UNIQUE`, of Linux 6.8.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The mount namespace of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountNamespace {
    /// Its number.
    number: u64,
    /// The number of the mount on which the root directory is; 0 if the kernel has no such numbers.
    root: u64,
    /// The first process of the container.
    pid: i32,
    /// Its start.
    start: u64,
}

impl MountNamespace {
    /// That of the first process of a container; `None` if that has ended, or is in the namespace of the host.
    pub(crate) fn of(proc: &mut ProcFs, init: ProcessId) -> Option<MountNamespace> {
        let dir = directory(init.pid);
        let number = number(&dir)?;
        let hosts = ["/proc/self", "/proc/1"].map(|dir| self::number(Path::new(dir)));
        let found =
            MountNamespace { number, root: root(&dir), pid: init.pid.as_raw_pid(), start: init.start.0 };
        let is_init = proc.stat(init.pid).ok()??.id() == init;
        (is_init && !hosts.contains(&Some(number))).then_some(found)
    }

    /// Returns the living processes in the namespace. `inside` are those in the cgroups of the container.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub(crate) fn processes(self, proc: &mut ProcFs, inside: &HashSet<Pid>) -> io::Result<Vec<Pid>> {
        let mut later = Vec::new();
        let _ = proc.scan(|stat| {
            if !stat.is_kernel_thread() && !stat.is_dead() && stat.start >= StartTime(self.start) {
                later.push(stat);
            }
        })?;
        later.retain(|stat| directories(stat).iter().any(|dir| number(dir) == Some(self.number)));
        let is_known = |stat: &Stat| {
            let is_first = stat.pid.as_raw_pid() == self.pid && stat.start == StartTime(self.start);
            let has_root = || self.root != 0 && directories(stat).iter().any(|dir| root(dir) == self.root);
            is_first || inside.contains(&stat.pid) || has_root()
        };
        if !later.iter().any(is_known) {
            return Ok(Vec::new());
        }
        Ok(later.into_iter().map(|stat| stat.pid).collect())
    }
}

fn directory(pid: Pid) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_pid().to_string())
}

/// Where the kernel tells of a process. A main thread that has exited has no namespace any more; the other threads have.
fn directories(stat: &Stat) -> Vec<PathBuf> {
    let dir = directory(stat.pid);
    if stat.state != SchedulerState::Zombie {
        return vec![dir];
    }
    let threads = std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path()).collect()
}

/// The number of the mount namespace of a process. Those that may not be looked at are none of the container's.
fn number(dir: &Path) -> Option<u64> {
    rustix::fs::stat(dir.join("ns/mnt")).ok().map(|stat| stat.st_ino)
}

/// The number of the mount of the root directory of a process; 0 if there is none.
fn root(dir: &Path) -> u64 {
    let stat = rustix::fs::statx(CWD, dir.join("root"), AtFlags::empty(), UNIQUE);
    stat.ok().filter(|stat| stat.stx_mask & UNIQUE.bits() != 0).map_or(0, |stat| stat.stx_mnt_id)
}
