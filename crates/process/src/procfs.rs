//! The `/proc` reader: one file, one process or all of them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, PROC_SUPER_MAGIC, RawDir};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::numbers;
use crate::path::Path;
use crate::stat::Stat;
use crate::status::Status;

/// How much of what there is could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "an incomplete answer proves nothing about who is missing from it"]
pub enum Completeness {
    /// All of it.
    Complete,
    /// Something was there and could not be read, or is hidden by how `/proc` is mounted.
    Incomplete,
}

impl Completeness {
    /// Gives `Complete` only when both are.
    pub fn and(self, other: Self) -> Self {
        if self == Self::Complete { other } else { Self::Incomplete }
    }

    /// Tells whether nothing was left out.
    pub fn is_complete(self) -> bool {
        self == Self::Complete
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
    dir: OwnedFd,
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
    /// Also when something else is mounted there: an empty directory would look like a host without processes.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(rustix::fs::open(c"/proc", flags, Mode::empty())?)
    }

    /// Reads the `/proc` whose root directory is `dir`; `O_PATH` is enough.
    ///
    /// # Errors
    /// When `dir` is not on a proc file system.
    pub fn at(dir: OwnedFd) -> io::Result<Self> {
        if rustix::fs::fstatfs(&dir)?.f_type != PROC_SUPER_MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no proc file system is mounted on `/proc`",
            ));
        }
        Ok(Self {
            dir,
            file: Vec::new(),
            directory: Vec::new(),
            environ: Vec::new(),
            pids: Vec::new(),
            tids: Vec::new(),
        })
    }

    /// Reads `/proc/<pid>/stat`; none when there is no such process.
    pub fn stat(&mut self, pid: Pid) -> io::Result<Option<Stat>> {
        match self.read(Path::of(pid, "stat").as_c_str()) {
            Ok(text) => Ok(Some(Stat::parse(text)?)),
            Err(errno) => gone_is_none(errno),
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
    /// `Incomplete` when one could not be read, and when pid 1 is not among them: with `hidepid` the processes of
    /// others are not in `/proc` at all, and pid 1 is the one that always exists.
    pub fn scan(&mut self, mut each: impl FnMut(Stat)) -> io::Result<Completeness> {
        let mut pids = std::mem::take(&mut self.pids);
        let listed = self.processes(&mut pids);
        let mut completeness = if pids.iter().any(|pid| pid.is_init()) {
            Completeness::Complete
        } else {
            Completeness::Incomplete
        };
        if listed.is_ok() {
            for &pid in &pids {
                match self.stat(pid) {
                    Ok(Some(stat)) => each(stat),
                    Ok(None) => {}
                    Err(_) => completeness = Completeness::Incomplete,
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
        let text = self.read(Path::of(pid, "wchan").as_c_str()).ok()?;
        let name = text.trim_ascii();
        (!name.is_empty() && name != b"0").then(|| printable(&String::from_utf8_lossy(name)))
    }

    /// Gives the program that a process runs, as a file; nothing when it is gone, or when it is not ours to see.
    pub fn program(&mut self, pid: Pid) -> Option<FileId> {
        let stat = rustix::fs::statat(&self.dir, Path::of(pid, "exe").as_c_str(), AtFlags::empty()).ok()?;
        Some(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Gives the directory everything is read from.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Opens a file below `/proc` for reading.
    pub(crate) fn open_file(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
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
        let dir = rustix::fs::openat(&self.dir, path, flags, Mode::empty())?;
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

fn gone_is_none<T>(errno: Errno) -> io::Result<Option<T>> {
    if is_gone(errno) { Ok(None) } else { Err(errno.into()) }
}

/// Replaces what could steer the terminal of whoever reads it.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
