//! The `/proc` reader: one file, one process or all of them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::id::ProcessId;
use crate::numbers;
use crate::path::Path;
use crate::stat::{Stat, State};
use crate::status::Status;

/// How much of what there is could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "an incomplete answer proves nothing about who is missing from it"]
pub enum Completeness {
    /// All of it.
    Complete,
    /// All that this user may look at. Other processes are hidden by how `/proc` is mounted (`hidepid`, proc(5)): those of
    /// other users, and those that became another user by a set-user-id program.
    OwnOnly,
    /// Something was there and could not be read.
    Incomplete,
}

impl Completeness {
    /// Gives what holds for both together: the lesser of the two.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Incomplete, _) | (_, Self::Incomplete) => Self::Incomplete,
            (Self::OwnOnly, _) | (_, Self::OwnOnly) => Self::OwnOnly,
            (Self::Complete, Self::Complete) => Self::Complete,
        }
    }

    /// Tells whether nothing was left out that this user may look at.
    pub fn covers_own(self) -> bool {
        self != Self::Incomplete
    }

    /// What follows from this error of a look at one process.
    pub(crate) fn after(error: Errno) -> Self {
        if matches!(error, Errno::PERM | Errno::ACCESS) { Self::OwnOnly } else { Self::Incomplete }
    }

    /// Tells whether nothing was left out.
    pub fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

/// Whether one process is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Presence {
    /// It lives: a thread of it does.
    Alive(Stat),
    /// It has ended, whether it was reaped or not.
    Gone,
    /// That cannot be told: it counts as alive.
    Unknown,
}

impl Presence {
    /// Tells whether it is certain that the process has ended.
    pub fn is_gone(&self) -> bool {
        *self == Self::Gone
    }
}

/// A file, whatever its name: two that are equal are the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device that it is on, `st_dev`.
    pub device: u64,
    /// Its number there, `st_ino`.
    pub inode: u64,
}

/// Small files fit one read; the longest `stat` line is about 1 KiB, `cgroup` and `status` rarely more than two.
const FILE_BYTES: usize = 4096;
const DIRECTORY_BYTES: usize = 32 * 1024;
const COMMAND_LINE_BYTES: usize = 256;

/// A reader of one mounted `/proc`, with buffers it uses again and again.
///
/// Every path is opened relative to the directory kept open here, so that a later change of root or mounts does not
/// change whose processes are seen.
#[derive(Debug)]
pub struct ProcFs {
    /// None where there is no `/proc` that could be believed: every look fails then.
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
    /// Also when something else is mounted there: an empty directory would look like a host without processes. And when it
    /// is the `/proc` of another pid namespace: its numbers are those of other processes.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(rustix::fs::open(c"/proc", flags, Mode::empty())?)
    }

    /// Stands for a `/proc` that is not to be believed, or is not there: every look fails, none finds nothing.
    pub fn blind() -> Self {
        Self::of(None)
    }

    /// Tells whether there is no `/proc` behind this.
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
        // ENOENT where this process has no number in that namespace.
        let named = match rustix::fs::readlinkat_raw(&dir, c"self", &mut name[..]) {
            Ok(length) => name.get(..length).and_then(numbers::pid),
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

    /// Reads `/proc/<pid>/stat`; none when there is no such process.
    pub fn stat(&mut self, pid: Pid) -> io::Result<Option<Stat>> {
        match self.read(Path::of(pid, "stat").as_c_str()) {
            Ok(text) => Ok(Some(Stat::parse(text)?)),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Tells whether this very process lives. One that this `/proc` hides is not gone.
    pub fn presence(&mut self, id: ProcessId) -> Presence {
        match self.stat(id.pid) {
            Ok(Some(stat)) if stat.id() == id && !stat.is_dead() => Presence::Alive(stat),
            Ok(Some(_)) => Presence::Gone,
            Ok(None) if is_free(id.pid) || !self.hides_processes() => Presence::Gone,
            Ok(None) | Err(_) => Presence::Unknown,
        }
    }

    /// Reads `/proc/<pid>/status`; none when there is no such process.
    pub fn status(&mut self, pid: Pid) -> io::Result<Option<Status>> {
        match self.read(Path::of(pid, "status").as_c_str()) {
            Ok(text) => Ok(Some(Status::parse(text)?)),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Reads `/proc/<pid>/cgroup` as it is, cgroups(7); none when there is no such process.
    pub fn cgroups(&mut self, pid: Pid) -> io::Result<Option<Vec<u8>>> {
        match self.read(Path::of(pid, "cgroup").as_c_str()) {
            Ok(text) => Ok(Some(text.to_vec())),
            Err(errno) => gone_is_none(errno),
        }
    }

    /// Reads the pid of every process into `out`, which is emptied first.
    pub fn processes(&mut self, out: &mut Vec<Pid>) -> io::Result<()> {
        out.clear();
        Ok(self.numbers_in(c".", out)?)
    }

    /// Calls `each` with every process there is.
    ///
    /// `OwnOnly` when one may not be read, and when pid 1 is not among them: with `hidepid` the processes of
    /// others are not in `/proc` at all, and pid 1 is the one that always exists.
    pub fn scan(&mut self, mut each: impl FnMut(Stat)) -> io::Result<Completeness> {
        let mut pids = std::mem::take(&mut self.pids);
        let listed = self.processes(&mut pids);
        let mut completeness =
            if pids.iter().any(|pid| pid.is_init()) { Completeness::Complete } else { Completeness::OwnOnly };
        if listed.is_ok() {
            for &pid in &pids {
                match self.stat(pid) {
                    Ok(Some(stat)) => each(stat),
                    Ok(None) => {}
                    Err(error) => {
                        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                        completeness = completeness.and(Completeness::after(errno));
                    }
                }
            }
        }
        self.pids = pids;
        listed.map(|()| completeness)
    }

    /// Tells whether this `/proc` hides the processes of others (`hidepid`, proc(5)), so that "not there" may mean
    /// "not shown".
    pub fn hides_processes(&mut self) -> bool {
        !matches!(self.stat(Pid::INIT), Ok(Some(_)))
    }

    /// Gives the command line for people: arguments joined by spaces, at most 256 bytes of it, control characters and
    /// what is not UTF-8 replaced; `[comm]` when there is none; nothing when the process is gone or unreadable.
    pub fn command_line(&mut self, pid: Pid) -> Option<String> {
        let text = self.read_some(Path::of(pid, "cmdline").as_c_str(), COMMAND_LINE_BYTES).ok()?;
        let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        if end == 0 {
            let comm = self.stat(pid).ok()??.comm;
            return Some(format!("[{}]", printable(&comm)));
        }
        let joined: Vec<u8> = text[..end].iter().map(|&byte| if byte == 0 { b' ' } else { byte }).collect();
        Some(printable(&String::from_utf8_lossy(&joined)))
    }

    /// Gives the kernel function in which the main thread waits; nothing when it runs, or when it is not ours to see.
    pub fn wait_channel(&mut self, pid: Pid) -> Option<String> {
        self.channel_in(&Path::of(pid, "wchan"))
    }

    /// Gives the state of a process, and the kernel function in which it waits: those of its main thread, or, where that has
    /// exited, of a thread that lives, one that is stuck in the kernel before all others.
    pub fn waits(&mut self, stat: &Stat) -> (State, Option<String>) {
        let mut found = (stat.state, None);
        if stat.state != State::Zombie {
            return (stat.state, self.wait_channel(stat.pid));
        }
        let mut tids = Vec::new();
        let _ = self.numbers_in(Path::of(stat.pid, "task").as_c_str(), &mut tids);
        for tid in tids {
            let text = self.read(Path::of_task(stat.pid, tid, "stat").as_c_str());
            let Some(thread) = text.ok().and_then(|text| Stat::parse(text).ok()) else { continue };
            let stuck = thread.state == State::DiskSleep;
            if !matches!(thread.state, State::Zombie | State::Dead) && (stuck || found.0 == State::Zombie) {
                found = (thread.state, self.channel_in(&Path::of_task(stat.pid, tid, "wchan")));
            }
            if stuck {
                break;
            }
        }
        found
    }

    fn channel_in(&mut self, path: &Path) -> Option<String> {
        let text = self.read(path.as_c_str()).ok()?;
        let name = text.trim_ascii();
        (!name.is_empty() && name != b"0").then(|| printable(&String::from_utf8_lossy(name)))
    }

    /// Gives the program that a process runs, as a file; nothing when it is gone, or when it is not ours to see.
    pub fn program(&mut self, pid: Pid) -> Option<FileId> {
        let dir = self.dir().ok()?;
        let stat = rustix::fs::statat(dir, Path::of(pid, "exe").as_c_str(), AtFlags::empty()).ok()?;
        Some(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Gives the number that the process behind a pidfd has in this `/proc`, by the pidfd itself; none once it was reaped.
    pub(crate) fn pid_of(&mut self, pidfd: BorrowedFd<'_>) -> Result<Option<Pid>, Errno> {
        let path = Path::of_descriptor(pidfd);
        let text = self.read(path.as_c_str())?;
        // `-1` once it was reaped, `0` where it has no number in the namespace of this `/proc`.
        let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Pid:"));
        match line.map(<[u8]>::trim_ascii) {
            Some(b"-1") => Ok(None),
            Some(number) => numbers::pid(number).map(Some).ok_or(Errno::XDEV),
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// Gives the directory everything is read from.
    fn dir(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.dir.as_ref().map(AsFd::as_fd).ok_or(Errno::OPNOTSUPP)
    }

    /// Opens a file below `/proc` for reading.
    pub(crate) fn open_file(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(self.dir()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Reads a whole file that the kernel writes in one piece: a read that leaves room has seen all of it.
    pub(crate) fn read(&mut self, path: &CStr) -> Result<&[u8], Errno> {
        let fd = self.open_file(path)?;
        if self.file.len() < FILE_BYTES {
            self.file.resize(FILE_BYTES, 0);
        }
        let mut length = 0;
        loop {
            length += read(&fd, &mut self.file[length..])?;
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
        let length = read(&fd, &mut self.file[..limit])?;
        Ok(&self.file[..length])
    }

    /// Reads a list of pids of any length; adds to `out`. The kernel hands it out in several pieces.
    pub(crate) fn read_pids(&mut self, path: &CStr, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let fd = self.open_file(path)?;
        if self.file.len() < FILE_BYTES {
            self.file.resize(FILE_BYTES, 0);
        }
        let mut number = 0_i32;
        loop {
            let length = read(&fd, &mut self.file)?;
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

    /// Lists the entries of a directory that are numbers; adds to `out`.
    pub(crate) fn numbers_in(&mut self, path: &CStr, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.dir()?, path, flags, Mode::empty())?;
        self.directory.clear();
        self.directory.reserve_exact(DIRECTORY_BYTES);
        let mut entries = RawDir::new(&dir, self.directory.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            out.extend(numbers::pid(entry?.file_name().to_bytes()));
        }
        Ok(())
    }
}

/// read(2), again when a signal handler interrupted it.
pub(crate) fn read(fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buffer))
}

/// Tells whether an error of `/proc` means that the process does not exist any more.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::SRCH)
}

/// Tells whether nobody has this pid. The kernel opens a pidfd of a process that `/proc` hides.
pub(crate) fn is_free(pid: Pid) -> bool {
    matches!(rustix::process::pidfd_open(pid, PidfdFlags::empty()), Err(Errno::SRCH))
}

fn gone_is_none<T>(errno: Errno) -> io::Result<Option<T>> {
    if is_gone(errno) { Ok(None) } else { Err(errno.into()) }
}

/// Replaces what could steer the terminal of whoever reads it.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
