//! Lists the processes of a cgroup v1 directory.

use std::os::fd::AsFd as _;
use std::path::Path;

use penfold_process::Pid;
use rustix::fs::FsWord;
use rustix::io::Errno;

use crate::{dir, members};

/// `CGROUP_SUPER_MAGIC`, `include/uapi/linux/magic.h`.
const CGROUP_SUPER_MAGIC: FsWord = 0x0027_e0eb;

/// Adds to `out` the processes that have a thread in this cgroup v1 directory or below it; false if it is gone.
///
/// In v1 a process may have its threads in several cgroups. `cgroup.procs` lists the process of each thread.
///
/// # Errors
/// `ENOTSUP` if the directory is not of cgroup v1; those of openat(2) and read(2).
pub fn v1_processes(path: &Path, out: &mut Vec<Pid>) -> Result<bool, Errno> {
    let top = match dir::open_absolute(path) {
        Ok(top) => top,
        Err(errno) if dir::is_gone(errno) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    if rustix::fs::fstatfs(&top)?.f_type != CGROUP_SUPER_MAGIC {
        return Err(Errno::NOTSUP);
    }
    members::collect_processes(top.as_fd(), None, out)?;
    Ok(true)
}
