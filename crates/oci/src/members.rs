//! The processes in the cgroups of a container: looks, kills, and removes what is empty.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::v1freezer::V1Freezer;
use penfold_process::{Pid, ProcFs, Process, SchedulerState, Signal, pid_from_raw};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::mounts::MountNamespace;

/// The most processes for which descriptors are open at once.
const AT_ONCE: usize = 256;
/// The longest wait between two looks.
const LONGEST: Duration = Duration::from_millis(20);

/// A living process of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerMember {
    pid: Pid,
    command: String,
    state: SchedulerState,
    wait_channel: Option<String>,
    /// One of its cgroups; `None` if only its mount namespace is the container's.
    cgroup: Option<PathBuf>,
}

impl ContainerMember {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }
}

impl fmt::Display for ContainerMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({}) state {}", self.pid, self.command, self.state.letter())?;
        if let Some(channel) = &self.wait_channel {
            write!(f, " in {channel}")?;
        }
        match &self.cgroup {
            Some(cgroup) => write!(f, " in cgroup {}", cgroup.display()),
            None => f.write_str(" in the mount namespace of the container"),
        }
    }
}

/// The cgroups of one container.
pub(crate) struct ContainerMembers {
    proc: ProcFs,
    roots: BTreeSet<PathBuf>,
    mounts: Option<MountNamespace>,
}

impl ContainerMembers {
    pub(crate) fn of(roots: BTreeSet<PathBuf>) -> io::Result<ContainerMembers> {
        Ok(ContainerMembers { proc: ProcFs::open()?, roots, mounts: None })
    }

    /// Adds the processes in a mount namespace.
    pub(crate) fn with_mounts(self, mounts: Option<MountNamespace>) -> ContainerMembers {
        ContainerMembers { mounts, ..self }
    }

    pub(crate) fn roots(&self) -> &BTreeSet<PathBuf> {
        &self.roots
    }

    /// Returns living processes: those in the cgroups; if there is none, those in the mount namespace, for which all of /proc is read.
    ///
    /// # Errors
    /// When something could not be read: then nothing is known to be gone.
    fn living(&mut self) -> io::Result<HashMap<Pid, Option<PathBuf>>> {
        let found = self.in_cgroups()?;
        if found.is_empty() { self.in_mounts(found) } else { Ok(found) }
    }

    /// Adds the living processes in the mount namespace.
    fn in_mounts(
        &mut self,
        mut found: HashMap<Pid, Option<PathBuf>>,
    ) -> io::Result<HashMap<Pid, Option<PathBuf>>> {
        let Some(mounts) = self.mounts else { return Ok(found) };
        let inside = found.keys().copied().collect();
        for pid in mounts.processes(&mut self.proc, &inside)? {
            found.entry(pid).or_insert(None);
        }
        Ok(found)
    }

    /// Returns the living processes in the cgroups, each with one of them.
    fn in_cgroups(&mut self) -> io::Result<HashMap<Pid, Option<PathBuf>>> {
        let mut found = HashMap::new();
        let mut threads = HashSet::new();
        for dir in self.directories()? {
            // A process whose main thread has exited, or whose threads are in several cgroups, shows in the list of threads only.
            for pid in numbers(&dir.join("cgroup.procs"))? {
                found.entry(pid).or_insert_with(|| Some(dir.clone()));
            }
            for tid in numbers(&dir.join("tasks"))?.into_iter().chain(numbers(&dir.join("cgroup.threads"))?) {
                if found.contains_key(&tid) || !threads.insert(tid) {
                    continue;
                }
                if let Some(status) = self.proc.status(tid)? {
                    found.entry(status.process).or_insert_with(|| Some(dir.clone()));
                }
            }
        }
        let mut dead = Vec::new();
        for &pid in found.keys() {
            if self.proc.stat(pid)?.is_none_or(|stat| stat.is_dead()) {
                dead.push(pid);
            }
        }
        found.retain(|pid, _| !dead.contains(pid));
        Ok(found)
    }

    /// Returns the living processes with their details.
    ///
    /// # Errors
    /// When something could not be read.
    pub(crate) fn look(&mut self) -> io::Result<Vec<ContainerMember>> {
        let mut members = Vec::new();
        let inside = self.in_cgroups()?;
        for (pid, cgroup) in self.in_mounts(inside)? {
            let Some(stat) = self.proc.stat(pid)? else { continue };
            let (state, wait_channel) = self.proc.waits(&stat);
            let wait_channel = wait_channel.filter(|channel| channel != "0");
            let command = self.proc.command_line(pid).unwrap_or(stat.comm);
            members.push(ContainerMember { pid, command, state, wait_channel, cgroup });
        }
        members.sort_by_key(|member| member.pid.as_raw_pid());
        Ok(members)
    }

    /// Waits until no process lives, at most until the deadline; returns those that live then.
    ///
    /// # Errors
    /// When something could not be read.
    pub(crate) fn await_end(&mut self, deadline: Instant) -> io::Result<Vec<ContainerMember>> {
        let mut wait = Duration::from_millis(1);
        while !self.living()?.is_empty() && Instant::now() < deadline {
            wait_for_descriptors(&[], wait.min(deadline.saturating_duration_since(Instant::now())));
            wait = (wait * 2).min(LONGEST);
        }
        self.look()
    }

    /// Kills every process until two looks find none, at most until the deadline; returns those that live then.
    ///
    /// # Errors
    /// When something could not be read.
    pub(crate) fn end(&mut self, deadline: Instant) -> io::Result<Vec<ContainerMember>> {
        for root in &self.roots {
            // Only cgroup v2 has this file; the looks below are the proof.
            let _ = std::fs::OpenOptions::new()
                .write(true)
                .open(root.join("cgroup.kill"))
                .and_then(|mut file| io::Write::write_all(&mut file, b"1"));
        }
        let freezer = V1Freezer::find_here()?;
        let mut empty_looks = 0;
        while empty_looks < 2 {
            let listed: Vec<Pid> = self.living()?.into_keys().collect();
            if listed.is_empty() {
                empty_looks += 1;
                continue;
            }
            empty_looks = 0;
            if Instant::now() >= deadline {
                return self.look();
            }
            for some in listed.chunks(AT_ONCE) {
                self.kill(some, freezer.as_ref(), deadline)?;
            }
        }
        Ok(Vec::new())
    }

    /// Kills these processes as far as they still are in the container's cgroups, and gives them time to die.
    fn kill(&mut self, pids: &[Pid], freezer: Option<&V1Freezer>, deadline: Instant) -> io::Result<()> {
        let mut opened = Vec::new();
        for &pid in pids {
            opened.extend(Process::open(&mut self.proc, pid)?);
        }
        // A pid that is listed again belongs to the process that was opened: that one has not ended.
        let listed = self.living()?;
        opened.retain(|process| listed.contains_key(&process.id().pid));
        for process in &opened {
            process.signal(Signal::KILL)?;
        }
        if let Some(freezer) = freezer {
            for process in &opened {
                // An ordinary user may not thaw: the process is named as a survivor.
                let _ = freezer.release(&mut self.proc, process);
            }
        }
        for process in &opened {
            let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST);
            if left.is_zero() || !wait_for_descriptors(&[PollFd::new(&process.pidfd(), PollFlags::IN)], left)
            {
                break;
            }
        }
        Ok(())
    }

    /// Removes the empty cgroups below the container's. runc waits for seconds where it finds any.
    pub(crate) fn remove_below(&self) -> io::Result<()> {
        let mut below = self.directories()?;
        below.retain(|dir| !self.roots.contains(dir));
        remove(below);
        Ok(())
    }

    /// Removes the empty cgroups; returns those that the kernel does not let go.
    pub(crate) fn remove(&self, deadline: Instant) -> io::Result<Vec<PathBuf>> {
        loop {
            let left = remove(self.directories()?);
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            wait_for_descriptors(&[], Duration::from_millis(2));
        }
    }

    /// The directories of the cgroups, parents first.
    fn directories(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut waiting: Vec<PathBuf> = self.roots.iter().rev().cloned().collect();
        while let Some(dir) = waiting.pop() {
            let entries = match std::fs::read_dir(&dir) {
                Err(error) if is_gone(&error) => continue,
                entries => entries.map_err(|error| naming(&dir, &error))?,
            };
            for entry in entries {
                match entry {
                    Ok(entry) if entry.file_type()?.is_dir() => waiting.push(entry.path()),
                    Ok(_) => (),
                    Err(error) if is_gone(&error) => break,
                    Err(error) => return Err(naming(&dir, &error)),
                }
            }
            found.push(dir);
        }
        Ok(found)
    }
}

/// Removes directories, which are listed with parents first; returns those that the kernel does not let go.
fn remove(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_left = |dir: &PathBuf| {
        let removed = rustix::fs::unlinkat(rustix::fs::CWD, dir, rustix::fs::AtFlags::REMOVEDIR);
        !matches!(removed, Ok(()) | Err(Errno::NOENT))
    };
    dirs.into_iter().rev().filter(is_left).collect()
}

/// Reads a list of pids. A file that does not exist is empty: the cgroup is gone, or the hierarchy has no such file.
fn numbers(file: &Path) -> io::Result<Vec<Pid>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        // EOPNOTSUPP: a threaded cgroup lists threads only.
        Err(error) if is_gone(&error) || error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(naming(file, &error)),
    };
    // 0 is a process of another pid namespace, which has no pid here.
    let pid = |line: &str| line.parse().ok().and_then(pid_from_raw);
    let pids: Option<Vec<Pid>> = text.lines().map(pid).collect();
    pids.ok_or_else(|| naming(file, &io::Error::other("a process there has no pid in this pid namespace")))
}

fn is_gone(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NODEV].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read `{}`: {error}", path.display()))
}

/// Waits for one of these descriptors; false if the time is over first.
pub(crate) fn wait_for_descriptors(fds: &[PollFd<'_>], time: Duration) -> bool {
    let mut fds = fds.to_vec();
    let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    matches!(rustix::event::poll(&mut fds, Some(&time)), Ok(ready) if ready > 0)
}
