//! The `/proc` reader: one file, one process or all of them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use crate::id::ProcessId;
use crate::numbers;
use crate::path::ProcPath;
use crate::quote::quoted_cmdline;
use crate::stat::{SchedulerState, Stat};
use crate::status::ProcessStatus;

/// How complete a reading of `/proc` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "an incomplete answer proves nothing about who is missing from it"]
pub enum Completeness {
    /// Everything was read.
    Complete,
    /// Everything that this user may read was read. The mount options of `/proc` (`hidepid`, proc(5)) hide other
    /// processes: those of other users, and those that changed their user by a set-user-id program.
    OwnOnly,
    /// Something exists and could not be read.
    Incomplete,
}

impl Completeness {
    /// Combines two readings: returns the less complete value.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Incomplete, _) | (_, Self::Incomplete) => Self::Incomplete,
            (Self::OwnOnly, _) | (_, Self::OwnOnly) => Self::OwnOnly,
            (Self::Complete, Self::Complete) => Self::Complete,
        }
    }

    /// Tells whether everything that this user may read was read.
    pub fn covers_own(self) -> bool {
        self != Self::Incomplete
    }

    /// Returns the completeness of a list of all processes.
    ///
    /// With `hidepid` the processes of other users are not in `/proc` at all, and pid 1 always exists.
    pub fn of_list(pids: &[Pid]) -> Self {
        if pids.iter().any(|pid| pid.is_init()) { Self::Complete } else { Self::OwnOnly }
    }

    /// Returns the completeness after this error from one process.
    pub(crate) fn after(error: Errno) -> Self {
        if matches!(error, Errno::PERM | Errno::ACCESS) { Self::OwnOnly } else { Self::Incomplete }
    }

    /// Tells whether everything was read.
    pub fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

/// Whether a process exists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ProcessPresence {
    /// The process lives: at least one of its threads does.
    Alive(Stat),
    /// The process has ended, whether it was reaped or not.
    Gone,
    /// The state is unknown: the process counts as alive.
    Unknown,
}

impl ProcessPresence {
    /// Tells whether it is certain that the process has ended.
    pub fn is_gone(&self) -> bool {
        *self == Self::Gone
    }
}

/// The identity of a file, whatever its name: two equal values mean the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// The device of the file, `st_dev`.
    pub device: u64,
    /// The inode number of the file, `st_ino`.
    pub inode: u64,
}

/// Small files fit one read; the longest `stat` line is about 1 KiB, `cgroup` and `status` rarely more than two.
const FILE_BYTES: usize = 4096;
const DIRECTORY_BYTES: usize = 32 * 1024;
const COMMAND_LINE_BYTES: usize = 256;

/// A reader of one mounted `/proc`, which reuses its buffers.
///
/// Every path is opened relative to the directory that this value keeps open. A later change of root or mounts
/// therefore does not change whose processes are read.
#[derive(Debug)]
pub struct ProcFs {
    /// `None` without a trustworthy `/proc`: every read fails then.
    dir: Option<OwnedFd>,
    file: Vec<u8>,
    directory: Vec<u8>,
    pub(crate) environ: Vec<u8>,
    pids: Vec<Pid>,
    pub(crate) tids: Vec<Pid>,
}

impl ProcFs {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// Also in two cases:
    /// - Another file system is mounted there: an empty directory would look like a host without processes.
    /// - The mount is the `/proc` of another pid namespace: its pids are those of other processes.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(rustix::fs::open(c"/proc", flags, Mode::empty())?)
    }

    /// Stands for a `/proc` that is missing or not trustworthy: every read fails, none returns an empty result.
    pub fn blind() -> Self {
        Self::of(None)
    }

    /// Tells whether this reader has no `/proc`.
    pub fn is_blind(&self) -> bool {
        self.dir.is_none()
    }

    /// Reads the `/proc` whose root directory is `dir`; `O_PATH` is enough.
    ///
    /// # Errors
    /// When `dir` is not on a proc file system, or on that of another pid namespace.
    pub fn at(dir: OwnedFd) -> io::Result<Self> {
        if rustix::fs::fstatfs(&dir)?.f_type != PROC_SUPER_MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no proc file system is mounted on `/proc`",
            ));
        }
        let own = rustix::process::getpid();
        let mut name = [0_u8; 16];
        // The result is ENOENT if this process has no pid in that namespace.
        let named = match rustix::fs::readlinkat_raw(&dir, c"self", &mut name[..]) {
            Ok(length) => name.get(..length).and_then(numbers::parse_pid),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        if named != Some(own) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "`/proc` is that of another pid namespace: its numbers mean other processes",
            ));
        }
        Ok(Self::of(Some(dir)))
    }

    fn of(dir: Option<OwnedFd>) -> Self {
        Self {
            dir,
            file: Vec::new(),
            directory: Vec::new(),
            environ: Vec::new(),
            pids: Vec::new(),
            tids: Vec::new(),
        }
    }

    /// Reads `/proc/<pid>/stat`; `None` when there is no such process.
    pub fn stat(&mut self, pid: Pid) -> io::Result<Option<Stat>> {
        match self.read(ProcPath::of(pid, "stat").as_c_str()) {
            Ok(text) => Ok(Some(Stat::parse(text)?)),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Tells whether exactly this process lives. A process that this `/proc` hides is not gone.
    pub fn presence(&mut self, id: ProcessId) -> ProcessPresence {
        match self.stat(id.pid) {
            Ok(Some(stat)) if stat.id() == id && !stat.is_dead() => ProcessPresence::Alive(stat),
            Ok(Some(_)) => ProcessPresence::Gone,
            Ok(None) if is_free(id.pid) || !self.hides_processes() => ProcessPresence::Gone,
            Ok(None) | Err(_) => ProcessPresence::Unknown,
        }
    }

    /// Reads `/proc/<pid>/status`; `None` when there is no such process.
    pub fn status(&mut self, pid: Pid) -> io::Result<Option<ProcessStatus>> {
        match self.read(ProcPath::of(pid, "status").as_c_str()) {
            Ok(text) => Ok(Some(ProcessStatus::parse(text)?)),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Returns the only child with this number in its innermost pid namespace, which is the parent's; for the number 1, one that is
    /// a level below that. `None` if there is no such child, or several.
    ///
    /// # Errors
    /// When the children cannot be read.
    pub fn child_with_number(&mut self, parent: Pid, number: i32) -> io::Result<Option<Pid>> {
        let mut children = Vec::new();
        self.children(parent, &mut children)?;
        let above = self.status(parent)?.map_or(0, |status| status.namespace_pids.len());
        let depth = if number == 1 { above + 1 } else { above };
        let mut found = children.into_iter().filter(|&pid| {
            self.status(pid).ok().flatten().is_some_and(|status| {
                let last = status.namespace_pids.last().map(|pid| pid.as_raw_pid());
                status.namespace_pids.len() == depth && last == Some(number)
            })
        });
        let first = found.next();
        Ok(first.filter(|_| found.next().is_none()))
    }

    /// Reads the text of `/proc/<pid>/cgroup`, cgroups(7); `None` when there is no such process.
    pub fn cgroups(&mut self, pid: Pid) -> io::Result<Option<Vec<u8>>> {
        match self.read(ProcPath::of(pid, "cgroup").as_c_str()) {
            Ok(text) => Ok(Some(text.to_vec())),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Clears `out` and reads the pid of every process into it.
    pub fn processes(&mut self, out: &mut Vec<Pid>) -> io::Result<()> {
        out.clear();
        Ok(self.numbers_in(c".", out)?)
    }

    /// Calls `each` with every process.
    ///
    /// The result is `OwnOnly` when a process may not be read, and when pid 1 is missing from `/proc`.
    pub fn scan(&mut self, each: impl FnMut(Stat)) -> io::Result<Completeness> {
        let mut pids = std::mem::take(&mut self.pids);
        let listed = self.processes(&mut pids);
        let scanned = listed.map(|()| Completeness::of_list(&pids).and(self.scan_listed(&pids, each)));
        self.pids = pids;
        scanned
    }

    /// Calls `each` with every one of these processes that exists. The result is `OwnOnly` when one of them may not be read.
    pub fn scan_listed(&mut self, pids: &[Pid], mut each: impl FnMut(Stat)) -> Completeness {
        let mut completeness = Completeness::Complete;
        for &pid in pids {
            match self.stat(pid) {
                Ok(Some(stat)) => each(stat),
                Ok(None) => {}
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    completeness = completeness.and(Completeness::after(errno));
                }
            }
        }
        completeness
    }

    /// Tells whether this `/proc` hides the processes of other users (`hidepid`, proc(5)). Then "not there" may mean
    /// "not shown".
    pub fn hides_processes(&mut self) -> bool {
        !matches!(self.stat(Pid::INIT), Ok(Some(_)))
    }

    /// Returns the command line for people, as a shell would read it, of at most 256 bytes.
    ///
    /// Control characters and bytes that are not UTF-8 are replaced. The result is `[comm]` for a process without a
    /// command line, and `None` when the process is gone or unreadable.
    pub fn command_line(&mut self, pid: Pid) -> Option<String> {
        let text = self.read_some(ProcPath::of(pid, "cmdline").as_c_str(), COMMAND_LINE_BYTES).ok()?;
        let Some(command) = quoted_cmdline(text) else {
            let comm = self.stat(pid).ok()??.comm;
            return Some(format!("[{}]", printable(&comm)));
        };
        Some(printable(&command))
    }

    /// Returns the kernel function in which the main thread waits; `None` when the thread runs or this user may not see
    /// it.
    pub fn wait_channel(&mut self, pid: Pid) -> Option<String> {
        self.channel_in(&ProcPath::of(pid, "wchan"))
    }

    /// Returns the state of a process, and the kernel function in which it waits.
    ///
    /// Both are those of the main thread. If the main thread has exited, they are those of a living thread, preferably
    /// a thread in state D.
    pub fn waits(&mut self, stat: &Stat) -> (SchedulerState, Option<String>) {
        let mut found = (stat.state, None);
        if stat.state != SchedulerState::Zombie {
            return (stat.state, self.wait_channel(stat.pid));
        }
        let mut tids = Vec::new();
        let _ = self.numbers_in(ProcPath::of(stat.pid, "task").as_c_str(), &mut tids);
        for tid in tids {
            let text = self.read(ProcPath::of_task(stat.pid, tid, "stat").as_c_str());
            let Some(thread) = text.ok().and_then(|text| Stat::parse(text).ok()) else { continue };
            let stuck = thread.state == SchedulerState::DiskSleep;
            if !matches!(thread.state, SchedulerState::Zombie | SchedulerState::Dead)
                && (stuck || found.0 == SchedulerState::Zombie)
            {
                found = (thread.state, self.channel_in(&ProcPath::of_task(stat.pid, tid, "wchan")));
            }
            if stuck {
                break;
            }
        }
        found
    }

    fn channel_in(&mut self, path: &ProcPath) -> Option<String> {
        let text = self.read(path.as_c_str()).ok()?;
        let name = text.trim_ascii();
        (!name.is_empty() && name != b"0").then(|| printable(&String::from_utf8_lossy(name)))
    }

    /// Returns the executable file of a process; `None` when the process is gone or this user may not see it.
    pub fn program(&mut self, pid: Pid) -> Option<FileId> {
        let dir = self.dir().ok()?;
        // Does not contact a file server that may not answer.
        let flags = AtFlags::STATX_DONT_SYNC;
        let found =
            rustix::fs::statx(dir, ProcPath::of(pid, "exe").as_c_str(), flags, StatxFlags::INO).ok()?;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Some(FileId { device, inode: found.stx_ino })
    }

    /// Returns the pid in this `/proc` of the process behind a pidfd, as the pidfd reports; `None` once the process was
    /// reaped.
    pub(crate) fn pid_of(&mut self, pidfd: BorrowedFd<'_>) -> Result<Option<Pid>, Errno> {
        let path = ProcPath::of_descriptor(pidfd);
        let text = self.read(path.as_c_str())?;
        // `-1` once the process was reaped, `0` if it has no pid in the namespace of this `/proc`.
        let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Pid:"));
        match line.map(<[u8]>::trim_ascii) {
            Some(b"-1") => Ok(None),
            Some(number) => numbers::parse_pid(number).map(Some).ok_or(Errno::XDEV),
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// Returns the directory to which all paths are relative.
    pub(crate) fn dir(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.dir.as_ref().map(AsFd::as_fd).ok_or(Errno::OPNOTSUPP)
    }

    /// Opens a file below `/proc` for reading.
    pub(crate) fn open_file(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(self.dir()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Reads a whole file that the kernel writes in one piece: a read that leaves room has reached the end.
    pub(crate) fn read(&mut self, path: &CStr) -> Result<&[u8], Errno> {
        let fd = self.open_file(path)?;
        if self.file.len() < FILE_BYTES {
            self.file.resize(FILE_BYTES, 0);
        }
        let mut length = 0;
        loop {
            length += read_retrying(&fd, &mut self.file[length..])?;
            if length < self.file.len() {
                return Ok(&self.file[..length]);
            }
            self.file.resize(length * 2, 0);
        }
    }

    /// Reads at most `limit` bytes from the start of a file.
    fn read_some(&mut self, path: &CStr, limit: usize) -> Result<&[u8], Errno> {
        let fd = self.open_file(path)?;
        if self.file.len() < limit {
            self.file.resize(limit, 0);
        }
        let length = read_retrying(&fd, &mut self.file[..limit])?;
        Ok(&self.file[..length])
    }

    /// Reads a list of pids of any length, and adds them to `out`. The kernel returns the list in several pieces.
    pub(crate) fn read_pids(&mut self, path: &CStr, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let fd = self.open_file(path)?;
        if self.file.len() < FILE_BYTES {
            self.file.resize(FILE_BYTES, 0);
        }
        let mut number = 0_i32;
        loop {
            let length = read_retrying(&fd, &mut self.file)?;
            if length == 0 {
                out.extend(crate::pid_from_raw(number));
                return Ok(());
            }
            for &byte in &self.file[..length] {
                if byte.is_ascii_digit() {
                    number = number.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
                } else {
                    out.extend(crate::pid_from_raw(number));
                    number = 0;
                }
            }
        }
    }

    /// Lists the entries of a directory that are numbers, and adds them to `out`.
    pub(crate) fn numbers_in(&mut self, path: &CStr, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.dir()?, path, flags, Mode::empty())?;
        self.directory.clear();
        self.directory.reserve_exact(DIRECTORY_BYTES);
        let mut entries = RawDir::new(&dir, self.directory.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            out.extend(numbers::parse_pid(entry?.file_name().to_bytes()));
        }
        Ok(())
    }
}

/// read(2), repeated when a signal handler interrupted the call.
pub(crate) fn read_retrying(fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buffer))
}

/// Tells whether an error of `/proc` means that the process no longer exists.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::SRCH)
}

/// Tells whether no process has this pid. The kernel opens a pidfd even for a process that `/proc` hides.
pub(crate) fn is_free(pid: Pid) -> bool {
    matches!(rustix::process::pidfd_open(pid, PidfdFlags::empty()), Err(Errno::SRCH))
}

fn gone_is_none<T>(errno: Errno) -> io::Result<Option<T>> {
    if is_gone(errno) { Ok(None) } else { Err(errno.into()) }
}

/// Replaces characters that could control the reader's terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
