//! A leaf: the cgroup of one generation of one sandbox.

mod events;

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
use crate::oom::{self, Baseline, Shortages};
use crate::place::{LeafPlace, NoPlace, cgroup_at};
use crate::walk::{Visit, walk_cgroups};
use crate::{dir, members, readings};

/// An operation on a cgroup that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The directory could not be made; `AlreadyExists` if the name is taken.
    #[error("cannot create the cgroup `{path}`")]
    Create {
        /// The directory of the leaf.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A file or directory could not be opened.
    #[error("cannot open `{path}`")]
    Open {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A control file could not be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A control file could not be written.
    #[error("cannot write `{text}` to `{path}`")]
    Write {
        /// The text that was to be written.
        text: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A member could not be signalled.
    #[error("cannot kill process {pid} in the cgroup `{path}`")]
    Signal {
        /// The member.
        pid: Pid,
        /// The directory of the leaf.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The name is empty, hidden or a path.
    #[error("`{name}` cannot name a cgroup")]
    Name {
        /// The name.
        name: String,
    },
    /// The directory is no cgroup.
    #[error("cannot tell which cgroup `{path}` is")]
    NotCgroup2 {
        /// The directory.
        path: PathBuf,
        /// The reason, if the file system is a cgroup2.
        source: Option<Box<NoPlace>>,
    },
}

/// A failed kill. Part of the leaf may have been killed, so nothing may be spawned into it.
#[derive(Debug, thiserror::Error)]
#[error("cannot kill the members of the cgroup `{}`", leaf.path().display())]
pub struct KillFailed {
    /// The leaf, for another try.
    pub leaf: Leaf,
    /// The error.
    pub source: CgroupError,
}

/// A cgroup that could not be removed. `EBUSY` means that it still has members: wait, and try again.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove the cgroup `{}`", path.display())]
pub struct RemoveFailed<L> {
    /// The leaf, for another try.
    pub leaf: L,
    /// The directory that could not be removed: the leaf's or one below it.
    pub path: PathBuf,
    /// The error of the kernel.
    pub source: io::Error,
}

/// The resources that the members of a leaf have used, including members that are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeafUsage {
    /// CPU time, user and kernel: `usage_usec` of `cpu.stat`.
    pub cpu: Option<Duration>,
    /// The most memory used at once, in bytes: `memory.peak`, if the controller is enabled (Linux 5.19).
    pub memory_peak: Option<u64>,
}

/// The longest time for which the kernel may delay a notification after another one.
///
/// It is 10 ms and two ticks of the kernel's clock, which has at least 100 ticks a second. Kernel:
/// `CGROUP_FILE_NOTIFY_MIN_INTV` in kernel/cgroup/cgroup.c.
const HELD_BACK: Duration = Duration::from_millis(30);

/// The operations of a leaf that are valid before and after its kill. Kernel: Documentation/admin-guide/cgroup-v2.rst.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    name: String,
    dir: OwnedFd,
    /// Files for the end of the leaf, if [`Leaf::make_ready`] has opened them.
    events: Option<OwnedFd>,
    processes: Option<OwnedFd>,
    kill: Option<OwnedFd>,
    /// The time of the first read of `cgroup.events`.
    read: Option<Instant>,
    /// Kills for lack of memory above, if the leaf has no count of its own.
    oom_above: Option<Baseline>,
}

impl Cgroup {
    fn new(dir: OwnedFd, path: PathBuf, name: String) -> Self {
        Self { path, name, dir, events: None, processes: None, kill: None, read: None, oom_above: None }
    }

    /// Returns the directory of the leaf.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cgroup as `/proc/<pid>/cgroup` shows it.
    pub fn cgroup(&self) -> &str {
        &self.name
    }

    /// Returns the open directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Tells whether a process is in this cgroup or below, from the text of its `/proc/<pid>/cgroup`.
    pub fn holds(&self, proc_cgroup: &[u8]) -> bool {
        Membership::of(proc_cgroup).is_in(&self.name)
    }

    /// Returns `cgroup.events`, which polls `POLLPRI` after a change of [`Cgroup::populated`].
    ///
    /// The kernel delays a notification by about 10 ms after the previous one: a backstop, not a way to wait quickly.
    /// `None` before [`Leaf::make_ready`].
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    /// Returns `cgroup.events` if it notifies quickly.
    ///
    /// That is so long enough after [`Leaf::make_ready`]: no earlier notification delays the one for the last member's
    /// end. The notification is still only a hint. Members that freeze the leaf cause notifications too, so poll as
    /// well.
    pub fn prompt_events(&self) -> Option<BorrowedFd<'_>> {
        self.read.filter(|read| read.elapsed() > HELD_BACK).and_then(|_| self.events())
    }

    /// Clears `out` and reads the pid of every process in the cgroup and below into it.
    ///
    /// Zombies with live threads are listed, other zombies may be. Members of pid namespaces that are not visible here
    /// have no pid and are omitted.
    pub fn processes(&self, out: &mut Vec<Pid>) -> Result<(), CgroupError> {
        out.clear();
        members::collect_processes(self.dir.as_fd(), self.processes.as_ref().map(AsFd::as_fd), out)
            .map_err(|errno| self.unread("cgroup.procs", errno))
    }

    /// Begins to freeze the cgroup and all cgroups below. Frozen members still take SIGKILL.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        self.write(c"cgroup.freeze", "1")
    }

    /// Thaws the cgroup. Cgroups below that were frozen by themselves stay frozen.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.write(c"cgroup.freeze", "0")
    }

    /// Tells whether the cgroup itself was frozen, and not only one above.
    pub fn is_own_freeze(&self) -> bool {
        let mut text = [0; 8];
        let read = dir::read_short(self.dir.as_fd(), c"cgroup.freeze", &mut text);
        read.is_ok_and(|text| text.trim_ascii() == b"1")
    }

    /// Reads the resources that the members have used so far; values that the kernel does not report are `None`.
    pub fn usage(&self) -> LeafUsage {
        let mut text = [0; 512];
        let memory_peak = dir::read_short(self.dir.as_fd(), c"memory.peak", &mut text)
            .ok()
            .and_then(readings::parse_number);
        LeafUsage { cpu: readings::cpu_time(self.dir.as_fd()), memory_peak }
    }

    /// Returns how often the members were short of memory.
    ///
    /// The counts are those of the leaf, if the controller is enabled. Otherwise the limit is that of a cgroup above, such as
    /// a service: then they count since [`Leaf::make_ready`], and also processes outside of the leaf.
    pub fn shortages(&self) -> Shortages {
        let above = || self.oom_above.as_ref().map_or_else(Shortages::default, Baseline::since);
        self.own_shortages().unwrap_or_else(above)
    }

    fn own_shortages(&self) -> Option<Shortages> {
        let read = |name: &CStr| {
            let mut text = [0; 512];
            dir::read_short(self.dir.as_fd(), name, &mut text).ok().and_then(oom::parse_shortages)
        };
        let all = read(c"memory.events")?;
        // Limits of cgroups below do not count. Kernels before 5.2 do not tell them apart.
        let own = read(c"memory.events.local").unwrap_or(all);
        Some(Shortages { at_limit: own.at_limit, ..all })
    }

    /// Sends SIGKILL to every visible member through a verified pidfd, and returns the number of signals.
    ///
    /// This reaches processes that a write to `cgroup.kill` misses (Linux 6.18). That write signals only the main
    /// thread, and misses a process whose main thread has exited while others live.
    ///
    /// # Errors
    /// The first failure, after all members were tried.
    pub fn kill_each(&self, proc: &mut ProcFs) -> Result<usize, CgroupError> {
        let mut pids = Vec::new();
        self.processes(&mut pids)?;
        let mut killed = 0;
        let mut failure = None;
        for pid in pids {
            match self.kill_one(proc, pid) {
                Ok(true) => killed += 1,
                Ok(false) => {}
                Err(source) => {
                    failure.get_or_insert(CgroupError::Signal { pid, path: self.path.clone(), source });
                }
            }
        }
        failure.map_or(Ok(killed), Err)
    }

    fn kill_one(&self, proc: &mut ProcFs, pid: Pid) -> io::Result<bool> {
        let Some(process) = Process::open(proc, pid)? else {
            return Ok(false);
        };
        // The pid may have been reused since it was listed. While the pidfd's process has not exited, `/proc` under
        // this pid describes that process.
        let member = proc.cgroups(pid)?.is_some_and(|text| self.holds(&text));
        if !member || process.has_exited()? {
            return Ok(false);
        }
        process.signal(Signal::KILL).map(|_| true)
    }

    fn write(&self, file: &CStr, text: &'static str) -> Result<(), CgroupError> {
        dir::write_control_file(self.dir.as_fd(), file, text.as_bytes()).map_err(|errno| CgroupError::Write {
            text,
            path: self.path.join(file.to_string_lossy().as_ref()),
            source: errno.into(),
        })
    }

    fn unread(&self, file: &str, errno: Errno) -> CgroupError {
        CgroupError::Read { path: self.path.join(file), source: errno.into() }
    }

    /// Removes all cgroups below, deepest first, and then the cgroup itself.
    ///
    /// The files of the leaf are closed before. If a file is open when its directory is removed, the kernel keeps some
    /// 2 KiB until it runs short of memory.
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
            // The kernel notifies of changes only after the first read.
            self.read = self.populated().ok().map(|_| Instant::now());
            if self.oom_above.is_none() && self.own_shortages().is_none() {
                self.oom_above = Baseline::above(&self.path);
            }
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
        walk_cgroups(self.dir.as_fd(), &mut removal);
        match rustix::fs::rmdir(&self.path) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) if self.is_removed() => Ok(()),
            // The failure of a cgroup below is more specific than the leaf's own.
            Err(errno) => Err(removal.failure.unwrap_or_else(|| (self.path.clone(), errno))),
        }
    }

    /// Tells whether the cgroup is really gone, and not hidden by another mount.
    fn is_removed(&self) -> bool {
        dir::open_file(self.dir.as_fd(), c"cgroup.events").is_err_and(dir::is_gone)
    }

    /// Moves the calling process into the parent cgroup.
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

    /// Moves a process out of the leaf, into the cgroup `home` as `/proc/<pid>/cgroup` shows it, or else into the parent cgroup.
    /// Returns that cgroup.
    ///
    /// The process must be unreaped, or held by a pidfd that is checked afterwards: its pid names another process later.
    ///
    /// # Errors
    /// Those of a write to `cgroup.procs` there, cgroups(7); the process is then still in the leaf.
    pub fn move_out(&self, pid: Pid, home: Option<&str>) -> io::Result<String> {
        let above =
            self.name.rsplit_once('/').map_or("/", |(above, _)| if above.is_empty() { "/" } else { above });
        let is_outside = |home: &&str| home.starts_with('/') && !home.split('/').any(|part| part == "..");
        let mount = self.path.to_str().and_then(|path| path.strip_suffix(&self.name));
        let (target, cgroup) = match (mount, home.filter(is_outside)) {
            (Some(mount), Some(home)) => (PathBuf::from(format!("{mount}{home}")), home),
            _ => (self.path.parent().unwrap_or(&self.path).to_owned(), above),
        };
        if target.starts_with(&self.path) {
            return Err(io::Error::other("its cgroup is not outside of the leaf"));
        }
        let dir = dir::open_absolute(&target)?;
        let processes = dir::open_for_writing(dir.as_fd(), c"cgroup.procs")?;
        dir::write_to(processes, pid.as_raw_pid().to_string().as_bytes())?;
        Ok(cgroup.to_owned())
    }

    fn kill_all(&self) -> Result<(), CgroupError> {
        let written = match &self.kill {
            Some(kill) => dir::write_to(kill, b"1"),
            None => dir::write_control_file(self.dir.as_fd(), c"cgroup.kill", b"1"),
        };
        match written {
            Ok(()) => Ok(()),
            Err(Errno::NOENT | Errno::NODEV) if !self.populated()? => Ok(()),
            Err(Errno::NOENT) => self.kill_frozen(),
            Err(errno) => Err(CgroupError::Write {
                text: "1",
                path: self.path.join("cgroup.kill"),
                source: errno.into(),
            }),
        }
    }

    /// Does the work of `cgroup.kill` on kernels before 5.14: frozen members cannot fork while they are signalled one
    /// by one.
    fn kill_frozen(&self) -> Result<(), CgroupError> {
        let mut proc =
            ProcFs::open().map_err(|source| CgroupError::Open { path: PathBuf::from("/proc"), source })?;
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

/// Returns the path of an open directory, for messages.
fn path_of(dir: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).unwrap_or_default()
}

/// A cgroup into which processes can be spawned.
#[derive(Debug)]
pub struct Leaf(Cgroup);

impl Leaf {
    /// Creates the leaf `name` in `place`.
    ///
    /// # Errors
    /// `AlreadyExists` inside [`CgroupError::Create`] if the name is taken. After any failure, no new cgroup is left.
    pub fn create(place: &LeafPlace, name: &str) -> Result<Self, CgroupError> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\n', '\0']) {
            return Err(CgroupError::Name { name: name.to_owned() });
        }
        let path = place.path().join(name);
        if let Err(errno) = rustix::fs::mkdirat(place.dir(), name, Mode::from_raw_mode(0o755)) {
            return Err(CgroupError::Create { path, source: errno.into() });
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
                Err(CgroupError::Open { path, source: errno.into() })
            }
        }
    }

    /// Opens an existing leaf by its absolute path, to recover it; `None` when the leaf is gone.
    ///
    /// The leaf may have been killed before: kill and remove it, and spawn nothing into it.
    ///
    /// # Errors
    /// Also when the path has a symbolic link or the directory is no cgroup.
    pub fn open(path: &Path) -> Result<Option<Self>, CgroupError> {
        let dir = match dir::open_absolute(path) {
            Ok(dir) => dir,
            Err(errno) if dir::is_gone(errno) => return Ok(None),
            Err(errno) => return Err(CgroupError::Open { path: path.to_owned(), source: errno.into() }),
        };
        match dir::is_cgroup2(dir.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(CgroupError::NotCgroup2 { path: path.to_owned(), source: None }),
            Err(errno) => return Err(CgroupError::Open { path: path.to_owned(), source: errno.into() }),
        }
        let mountinfo = dir::read_proc(c"/proc/self/mountinfo").map_err(|errno| CgroupError::Open {
            path: PathBuf::from("/proc/self/mountinfo"),
            source: errno.into(),
        })?;
        let cgroup = cgroup_at(&mountinfo, path)
            .map_err(|why| CgroupError::NotCgroup2 { path: path.to_owned(), source: Some(Box::new(why)) })?;
        match dir::open_file(dir.as_fd(), c"cgroup.events") {
            Ok(_) => Ok(Some(Self(Cgroup::new(dir, path.to_owned(), cgroup)))),
            // The cgroup was removed meanwhile. The root of the hierarchy has no events and is no leaf.
            Err(Errno::NOENT) if is_removed(path) => Ok(None),
            Err(errno) => Err(CgroupError::Open { path: path.join("cgroup.events"), source: errno.into() }),
        }
    }

    /// Opens the files for the end of the leaf early, once the leaf has members.
    ///
    /// The first access to a file of a new directory costs the kernel more than listing or killing the members. One
    /// call is enough; files that cannot be opened now are opened at the end.
    pub fn make_ready(&mut self) {
        self.0.make_ready();
    }

    /// Opens `cgroup.procs` for writing: a child that writes `0` to the file becomes a member.
    pub fn processes_file(&self) -> io::Result<OwnedFd> {
        Ok(dir::open_for_writing(self.dir(), c"cgroup.procs")?)
    }

    /// Kills all members at once, including those that are being forked.
    ///
    /// A kill is no proof that a member is gone: wait until [`Cgroup::populated`] is false, and call
    /// [`KilledLeaf::kill_again`] at a deadline.
    ///
    /// # Errors
    /// The error returns the leaf, which this call does not freeze; some members may have been killed.
    pub fn kill(self) -> Result<KilledLeaf, Box<KillFailed>> {
        match self.0.kill_all() {
            Ok(()) => Ok(KilledLeaf(self.0)),
            Err(source) => Err(Box::new(KillFailed { leaf: self, source })),
        }
    }

    /// Kills like [`Leaf::kill`] where `cgroup.kill` is missing (before Linux 5.14) or refused.
    ///
    /// The method freezes the leaf, signals each member through its verified pidfd, and thaws in any case. Freezing
    /// takes effect a little later, so a member may still fork: repeat until not populated.
    pub fn kill_frozen(self) -> Result<KilledLeaf, Box<KillFailed>> {
        match self.0.kill_frozen() {
            Ok(()) => Ok(KilledLeaf(self.0)),
            Err(source) => Err(Box::new(KillFailed { leaf: self, source })),
        }
    }

    /// Removes the leaf and all cgroups below it. A leaf that is already gone counts as removed.
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
    /// Kills the remaining members: first all at once, then each listed member by itself.
    ///
    /// The second step reaches processes whose main thread has exited. Returns how many members were signalled by
    /// themselves.
    pub fn kill_again(&self, proc: &mut ProcFs) -> Result<usize, CgroupError> {
        self.0.kill_all()?;
        self.0.kill_each(proc)
    }

    /// Removes the leaf and all cgroups below it. A leaf that is already gone counts as removed.
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
