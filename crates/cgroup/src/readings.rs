//! What the members of a leaf use, read without opening the leaf for its end: for lists of many sandboxes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use penfold_process::Pid;
use rustix::io::Errno;

use crate::{dir, members};

/// A leaf whose numbers are read.
#[derive(Debug)]
pub struct Readings {
    dir: OwnedFd,
}

impl Readings {
    /// Opens the leaf at this absolute path; `None` if there is no cgroup that can be read.
    pub fn open(path: &Path) -> Option<Readings> {
        let dir = dir::open_absolute(path).ok()?;
        dir::is_cgroup2(dir.as_fd()).ok()?.then_some(Readings { dir })
    }

    /// Reads the CPU time that the members have used so far, members that are gone included.
    pub fn cpu_time(&self) -> Option<Duration> {
        cpu_time(self.dir.as_fd())
    }

    /// Reads the memory that the members use now, in bytes: `memory.current`, if the controller is enabled.
    pub fn memory(&self) -> Option<u64> {
        let mut text = [0; 64];
        dir::read_short(self.dir.as_fd(), c"memory.current", &mut text).ok().and_then(parse_number)
    }

    /// Clears `out` and reads the pid of every visible process in the leaf and below into it.
    ///
    /// # Errors
    /// When a list of processes cannot be read.
    pub fn processes(&self, out: &mut Vec<Pid>) -> Result<(), Errno> {
        out.clear();
        members::collect_processes(self.dir.as_fd(), None, out)
    }
}

/// Reads `usage_usec` of `cpu.stat`, which needs no controller.
pub(crate) fn cpu_time(dir: BorrowedFd<'_>) -> Option<Duration> {
    let mut text = [0; 512];
    let text = dir::read_short(dir, c"cpu.stat", &mut text).ok()?;
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"usage_usec "))?;
    Some(Duration::from_micros(parse_number(line)?))
}

/// Parses a decimal number with a line feed after it.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}
