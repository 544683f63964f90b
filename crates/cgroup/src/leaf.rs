//! A leaf: one cgroup for one generation of one sandbox.

use std::ffi::{CStr, OsStr};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, Process, Signal};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::membership::Membership;
use crate::place::{NoPlace, Place, cgroup_at};
use crate::walk::{Visit, walk};
use crate::{dir, members};

/// What could not be done with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory could not be made; `AlreadyExists` when there is one of that name.
    #[error("cannot create the cgroup `{path}`")]
    Create {
        /// Its directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file or directory could not be opened.
    #[error("cannot open `{path}`")]
    Open {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A control file could not be read.
    #[error("cannot read `{path}`")]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A control file could not be written.
    #[error("cannot write `{text}` to `{path}`")]
    Write {
        /// What was to be written.
        text: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A member could not be signalled.
    #[error("cannot kill process {pid} in the cgroup `{path}`")]
    Signal {
        /// The member.
        pid: Pid,
        /// Its cgroup's directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The name is empty, hidden or a path.
    #[error("`{name}` cannot name a cgroup")]
    Name {
        /// The name.
        name: String,
    },
    /// A directory that is no cgroup.
    #[error("cannot tell which cgroup `{path}` is")]
    NotCgroup2 {
        /// The directory.
        path: PathBuf,
        /// What was wrong with it, when that is more than its file system.
        source: Option<Box<NoPlace>>,
    },
}

/// A kill that could not be carried out. The leaf may be killed in part and must not be spawned into.
#[derive(Debug, thiserror::Error)]
#[error("cannot kill the members of the cgroup `{}`", leaf.path().display())]
pub struct KillFailed {
    /// The leaf, for another try.
    pub leaf: Leaf,
    /// What went wrong.
    pub source: Error,
}

/// A cgroup that could not be removed. `EBUSY` means that somebody is still in it: wait, and try again.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove the cgroup `{}`", path.display())]
pub struct RemoveFailed<L> {
    /// The leaf, for another try.
    pub leaf: L,
    /// The directory that is in the way: the leaf's or one below it.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// What the members of a leaf used, those that are gone included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, user and kernel: `usage_usec` of `cpu.stat`.
    pub cpu: Option<Duration>,
    /// The most memory used at once, in bytes: `memory.peak`, where the controller is enabled (Linux 5.19).
    pub memory_peak: Option<u64>,
}

/// For so long the kernel may hold back a notification after another: 10 ms and two ticks of its clock, of which there are
/// at least 100 a second. Kernel: `CGROUP_FILE_NOTIFY_MIN_INTV` in kernel/cgroup/cgroup.c.
const HELD_BACK: Duration = Duration::from_millis(30);

/// What a leaf can be asked, killed or not. Kernel: Documentation/admin-guide/cgroup-v2.rst.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    name: String,
    dir: OwnedFd,
    /// What its end needs, if it was opened before.
    events: Option<OwnedFd>,
    processes: Option<OwnedFd>,
    kill: Option<OwnedFd>,
    /// When `cgroup.events` was read first.
    read: Option<Instant>,
}

impl Cgroup {
    fn new(dir: OwnedFd, path: PathBuf, name: String) -> Self {
        Self { path, name, dir, events: None, processes: None, kill: None, read: None }
    }

    /// Gives its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the cgroup as `/proc/<pid>/cgroup` shows it.
    pub fn cgroup(&self) -> &str {
        &self.name
    }

    /// Gives the open directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Tells whether a process is in this cgroup or below, from the text of its `/proc/<pid>/cgroup`.
    pub fn holds(&self, proc_cgroup: &[u8]) -> bool {
        Membership::of(proc_cgroup).is_in(&self.name)
    }

    /// Tells whether anybody alive is in it or below, zombies that wait to be reaped not counted; a removed one is
    /// empty. The value is always current.
    pub fn populated(&self) -> Result<bool, Error> {
        let mut text = [0; 128];
        let read = match &self.events {
            Some(events) => rustix::io::retry_on_intr(|| rustix::io::pread(events, &mut text, 0)),
            None => dir::read_short(self.dir.as_fd(), c"cgroup.events", &mut text).map(<[u8]>::len),
        };
        match read {
            Ok(length) => Ok(!text[..length].split(|&byte| byte == b'\n').any(|line| line == b"populated 0")),
            Err(errno) if dir::is_gone(errno) => Ok(false),
            Err(errno) => Err(Error::Read { path: self.path.join("cgroup.events"), source: errno.into() }),
        }
    }

    /// Gives `cgroup.events`, which polls `POLLPRI` after a change of [`Cgroup::populated`].
    ///
    /// The kernel holds notifications back for about 10 ms after the last: a backstop, not a way to wait quickly. None
    /// before [`Leaf::make_ready`].
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Gives `cgroup.events` if it is a way to wait quickly: if so much time has passed since [`Leaf::make_ready`] that no
    /// earlier notification holds back that of the end of the last member. Still only a hint: members who freeze it bring
    /// notifications of their own, so look as well when it does not come.
    pub fn prompt_events(&self) -> Option<BorrowedFd<'_>> {
        self.read.filter(|read| read.elapsed() > HELD_BACK).and_then(|_| self.events())
    }

    /// Reads the pid of every process in it and below into `out`, which is emptied first: zombies whose threads live
    /// are among them, other zombies may be. Members of pid namespaces that are not visible here have no number and
    /// are left out.
    pub fn processes(&self, out: &mut Vec<Pid>) -> Result<(), Error> {
        out.clear();
        members::processes(self.dir.as_fd(), self.processes.as_ref().map(AsFd::as_fd), out)
            .map_err(|errno| self.unread("cgroup.procs", errno))
    }

    /// Begins to freeze all in it and below. Frozen members still take SIGKILL.
    pub fn freeze(&self) -> Result<(), Error> {
        self.write(c"cgroup.freeze", "1")
    }

    /// Thaws it. Those below that were frozen by themselves stay frozen.
    pub fn thaw(&self) -> Result<(), Error> {
        self.write(c"cgroup.freeze", "0")
    }

    /// Reads what its members used so far; what the kernel does not say is left out.
    pub fn usage(&self) -> Usage {
        let mut text = [0; 512];
        let cpu = dir::read_short(self.dir.as_fd(), c"cpu.stat", &mut text).ok().and_then(|text| {
            let line =
                text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"usage_usec "))?;
            Some(Duration::from_micros(number(line)?))
        });
        let memory_peak = dir::read_short(self.dir.as_fd(), c"memory.peak", &mut text).ok().and_then(number);
        Usage { cpu, memory_peak }
    }

    /// How many of its members the kernel has killed for want of memory: `oom_kill` of `memory.events`, where the
    /// controller is enabled.
    pub fn oom_kills(&self) -> u64 {
        let mut text = [0; 512];
        dir::read_short(self.dir.as_fd(), c"memory.events", &mut text).ok().and_then(oom_kills).unwrap_or(0)
    }

    /// Sends SIGKILL to every member that can be seen, each through its own verified pidfd; says to how many.
    ///
    /// This reaches what a write to `cgroup.kill` misses (Linux 6.18): a process whose main thread has exited while
    /// others live, since that write aims at the main thread only.
    ///
    /// # Errors
    /// After all were tried, the first failure.
    pub fn kill_each(&self, proc: &mut ProcFs) -> Result<usize, Error> {
        let mut pids = Vec::new();
        self.processes(&mut pids)?;
        let mut killed = 0;
        let mut failure = None;
        for pid in pids {
            match self.kill_one(proc, pid) {
                Ok(true) => killed += 1,
                Ok(false) => {}
                Err(source) => {
                    failure.get_or_insert(Error::Signal { pid, path: self.path.clone(), source });
                }
            }
        }
        failure.map_or(Ok(killed), Err)
    }

    fn kill_one(&self, proc: &mut ProcFs, pid: Pid) -> io::Result<bool> {
        let Some(process) = Process::open(proc, pid)? else {
            return Ok(false);
        };
        // The pid may have been handed out again since it was listed. While the pidfd has not exited, what `/proc`
        // says under this number is about the process behind it.
        let member = proc.cgroups(pid)?.is_some_and(|text| self.holds(&text));
        if !member || process.has_exited()? {
            return Ok(false);
        }
        process.signal(Signal::KILL).map(|_| true)
    }

    fn write(&self, file: &CStr, text: &'static str) -> Result<(), Error> {
        dir::write(self.dir.as_fd(), file, text.as_bytes()).map_err(|errno| Error::Write {
            text,
            path: self.path.join(file.to_string_lossy().as_ref()),
            source: errno.into(),
        })
    }

    fn unread(&self, file: &str, errno: Errno) -> Error {
        Error::Read { path: self.path.join(file), source: errno.into() }
    }

    /// Removes all below it, deepest first, and then itself.
    ///
    /// Its files are closed before: of one that is open while its directory is removed the kernel keeps some 2 KiB until
    /// it wants for memory.
    fn remove(&mut self) -> Result<(), (PathBuf, Errno)> {
        let ready = self.processes.is_some();
        (self.events, self.processes, self.kill, self.read) = (None, None, None, None);
        let removed = self.remove_closed();
        if ready && removed.is_err() {
            self.make_ready();
        }
        removed
    }

    fn make_ready(&mut self) {
        if self.processes.is_none() {
            self.events = dir::open_file(self.dir.as_fd(), c"cgroup.events").ok();
            self.processes = dir::open_file(self.dir.as_fd(), c"cgroup.procs").ok();
            self.kill = dir::open_for_writing(self.dir.as_fd(), c"cgroup.kill").ok();
            // Its events are told from the first read on.
            self.read = self.populated().ok().map(|_| Instant::now());
        }
    }

    fn remove_closed(&self) -> Result<(), (PathBuf, Errno)> {
        match rustix::fs::rmdir(&self.path) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) if self.is_removed() => return Ok(()),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err((self.path.clone(), errno)),
        }
        let mut removal = Removal { failure: None };
        walk(self.dir.as_fd(), &mut removal);
        match rustix::fs::rmdir(&self.path) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) if self.is_removed() => Ok(()),
            // What is in the way below says more than that something is.
            Err(errno) => Err(removal.failure.unwrap_or_else(|| (self.path.clone(), errno))),
        }
    }

    /// Whether it really is gone, not only out of sight below another mount.
    fn is_removed(&self) -> bool {
        dir::open_file(self.dir.as_fd(), c"cgroup.events").is_err_and(dir::is_gone)
    }

    /// Moves the calling process out of it, into the cgroup above.
    ///
    /// # Errors
    /// Those of a write to `cgroup.procs` there, cgroups(7).
    pub fn leave(&self) -> io::Result<()> {
        let above = rustix::fs::openat(
            &self.dir,
            c"../cgroup.procs",
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::io::write(&above, b"0")?;
        Ok(())
    }

    fn kill_all(&self) -> Result<(), Error> {
        let written = match &self.kill {
            Some(kill) => dir::write_to(kill, b"1"),
            None => dir::write(self.dir.as_fd(), c"cgroup.kill", b"1"),
        };
        match written {
            Ok(()) => Ok(()),
            Err(Errno::NOENT | Errno::NODEV) if !self.populated()? => Ok(()),
            Err(Errno::NOENT) => self.kill_frozen(),
            Err(errno) => {
                Err(Error::Write { text: "1", path: self.path.join("cgroup.kill"), source: errno.into() })
            }
        }
    }

    /// What `cgroup.kill` does, for kernels before 5.14: nobody forks while the members are signalled one by one.
    fn kill_frozen(&self) -> Result<(), Error> {
        let mut proc =
            ProcFs::open().map_err(|source| Error::Open { path: PathBuf::from("/proc"), source })?;
        // Kernels before 5.2 cannot freeze either; then the caller's repeated kills have to outrun the forks.
        let frozen = self.freeze();
        let killed = self.kill_each(&mut proc);
        let thawed = if frozen.is_ok() { self.thaw() } else { Ok(()) };
        killed?;
        thawed
    }
}

struct Removal {
    failure: Option<(PathBuf, Errno)>,
}

impl Visit for Removal {
    fn enter(&mut self, _dir: BorrowedFd<'_>) {}

    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                self.failure
                    .get_or_insert_with(|| (path_of(parent).join(OsStr::from_bytes(name.to_bytes())), errno));
            }
        }
    }

    fn fail(&mut self, dir: BorrowedFd<'_>, errno: Errno) {
        self.failure.get_or_insert_with(|| (path_of(dir), errno));
    }
}

fn is_removed(path: &Path) -> bool {
    matches!(rustix::fs::lstat(path), Err(errno) if dir::is_gone(errno))
}

/// The count in the text of `memory.events`.
fn oom_kills(text: &[u8]) -> Option<u64> {
    text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"oom_kill ")).and_then(number)
}

/// Names an open directory, for messages.
fn path_of(dir: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).unwrap_or_default()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// A cgroup that processes can be put into.
#[derive(Debug)]
pub struct Leaf(Cgroup);

impl Leaf {
    /// Creates the leaf `name` in `place`.
    ///
    /// # Errors
    /// `AlreadyExists` inside [`Error::Create`] when there is one. Whatever fails, no new cgroup is left.
    pub fn create(place: &Place, name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\n', '\0']) {
            return Err(Error::Name { name: name.to_owned() });
        }
        let path = place.path().join(name);
        if let Err(errno) = rustix::fs::mkdirat(place.dir(), name, Mode::from_raw_mode(0o755)) {
            return Err(Error::Create { path, source: errno.into() });
        }
        let cgroup = format!("{}/{name}", place.cgroup().trim_end_matches('/'));
        let opened = rustix::fs::openat(
            place.dir(),
            name,
            rustix::fs::OFlags::RDONLY
                | rustix::fs::OFlags::DIRECTORY
                | rustix::fs::OFlags::NOFOLLOW
                | rustix::fs::OFlags::CLOEXEC,
            Mode::empty(),
        );
        match opened {
            Ok(dir) => Ok(Self(Cgroup::new(dir, path, cgroup))),
            Err(errno) => {
                let _ = rustix::fs::unlinkat(place.dir(), name, AtFlags::REMOVEDIR);
                Err(Error::Open { path, source: errno.into() })
            }
        }
    }

    /// Opens a leaf that exists, by its absolute path, to recover it; none when it is gone.
    ///
    /// Nobody knows whether it was killed before: end and remove it, put nothing into it.
    ///
    /// # Errors
    /// Also when a symbolic link is on the way or the directory is no cgroup.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        let dir = match dir::open_absolute(path) {
            Ok(dir) => dir,
            Err(errno) if dir::is_gone(errno) => return Ok(None),
            Err(errno) => return Err(Error::Open { path: path.to_owned(), source: errno.into() }),
        };
        match dir::is_cgroup2(dir.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(Error::NotCgroup2 { path: path.to_owned(), source: None }),
            Err(errno) => return Err(Error::Open { path: path.to_owned(), source: errno.into() }),
        }
        let mountinfo = dir::read_proc(c"/proc/self/mountinfo").map_err(|errno| Error::Open {
            path: PathBuf::from("/proc/self/mountinfo"),
            source: errno.into(),
        })?;
        let cgroup = cgroup_at(&mountinfo, path)
            .map_err(|why| Error::NotCgroup2 { path: path.to_owned(), source: Some(Box::new(why)) })?;
        match dir::open_file(dir.as_fd(), c"cgroup.events") {
            Ok(_) => Ok(Some(Self(Cgroup::new(dir, path.to_owned(), cgroup)))),
            // Removed since the first look; the root, which has no events, is no leaf.
            Err(Errno::NOENT) if is_removed(path) => Ok(None),
            Err(errno) => Err(Error::Open { path: path.join("cgroup.events"), source: errno.into() }),
        }
    }

    /// Opens what the end of the leaf needs, once it has members and while there is time: the first look at a file of a
    /// new directory costs the kernel more than to list or to kill who is in it. Once is enough; what cannot be opened now
    /// is opened then.
    pub fn make_ready(&mut self) {
        self.0.make_ready();
    }

    /// Opens `cgroup.procs` for writing: a child that writes `0` to it is a member from then on.
    pub fn processes_file(&self) -> io::Result<OwnedFd> {
        Ok(dir::open_for_writing(self.dir(), c"cgroup.procs")?)
    }

    /// Kills all members at once, and those that are being forked.
    ///
    /// No proof that anybody is gone: wait until not [`Cgroup::populated`], and [`KilledLeaf::kill_again`] at a
    /// deadline.
    ///
    /// # Errors
    /// The leaf comes back and is not frozen by this; some members may have been killed.
    pub fn kill(self) -> Result<KilledLeaf, Box<KillFailed>> {
        match self.0.kill_all() {
            Ok(()) => Ok(KilledLeaf(self.0)),
            Err(source) => Err(Box::new(KillFailed { leaf: self, source })),
        }
    }

    /// Kills as [`Leaf::kill`] does where `cgroup.kill` is missing (before Linux 5.14) or refused: freezes, signals each
    /// member through its verified pidfd, thaws in any case.
    ///
    /// Freezing takes effect a little later, so that a member may still fork: repeat until not populated.
    pub fn kill_frozen(self) -> Result<KilledLeaf, Box<KillFailed>> {
        match self.0.kill_frozen() {
            Ok(()) => Ok(KilledLeaf(self.0)),
            Err(source) => Err(Box::new(KillFailed { leaf: self, source })),
        }
    }

    /// Removes the leaf and all cgroups below it; one that is gone already counts as removed.
    pub fn remove(mut self) -> Result<(), Box<RemoveFailed<Self>>> {
        match self.0.remove() {
            Ok(()) => Ok(()),
            Err((path, errno)) => Err(Box::new(RemoveFailed { leaf: self, path, source: errno.into() })),
        }
    }
}

impl Deref for Leaf {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

/// A leaf that was killed, into which nothing can be spawned any more.
#[derive(Debug)]
pub struct KilledLeaf(Cgroup);

impl KilledLeaf {
    /// Kills what is left: everything at once, and then each member that is still listed by itself, which reaches the
    /// processes whose main thread has exited. Says how many were signalled by themselves.
    pub fn kill_again(&self, proc: &mut ProcFs) -> Result<usize, Error> {
        self.0.kill_all()?;
        self.0.kill_each(proc)
    }

    /// Removes the leaf and all cgroups below it; one that is gone already counts as removed.
    pub fn remove(mut self) -> Result<(), Box<RemoveFailed<Self>>> {
        match self.0.remove() {
            Ok(()) => Ok(()),
            Err((path, errno)) => Err(Box::new(RemoveFailed { leaf: self, path, source: errno.into() })),
        }
    }
}

impl Deref for KilledLeaf {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_want_of_memory_are_counted_apart_from_those_of_groups() {
        // Of a host with cgroup v2 alone, Linux 6.12.
        let text = b"low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(oom_kills(text), Some(1));
        assert_eq!(oom_kills(b"low 0\nhigh 0\nmax 0\noom 0\n"), None);
        assert_eq!(oom_kills(b""), None);
    }
}
