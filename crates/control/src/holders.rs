//! Finds the supervisors of a sandbox: the processes that hold its lock.
//!
//! The pids in a record are never trusted. For each descriptor, the kernel shows the file and whether a lock was taken
//! through it (`/proc/<pid>/fdinfo`, proc(5)); that cannot be forged.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use penfold_process::{Pid, ProcFs, Process, SchedulerState, Signal};
use rustix::event::{PollFd, PollFlags};

use crate::timeout::poll_timeout;

use penfold_state::lock::is_held_through;
use penfold_state::{Files, lacks_descriptors};

/// The device and inode of a file.
type Inode = (u64, u64);

/// The directories that the supervisors of a sandbox have locked.
#[derive(Debug)]
pub(crate) struct Locks {
    /// The directories that exist: the record, the leaf.
    inodes: Vec<Inode>,
    /// The end of the link to a record that was deleted.
    deleted: String,
}

impl Locks {
    /// Returns the locks of a sandbox with this record, if it has one, and this leaf.
    pub(crate) fn of(id: &str, record: Option<&Files>, leaf: Option<&Path>) -> Locks {
        let record = record.and_then(|files| rustix::fs::fstat(files.dir()).ok());
        let record = record.map(|stat| (stat.st_dev, stat.st_ino));
        let leaf = leaf.and_then(|leaf| std::fs::symlink_metadata(leaf).ok());
        let leaf = leaf.map(|meta| (meta.dev(), meta.ino()));
        Locks {
            inodes: record.into_iter().chain(leaf).collect(),
            deleted: format!("/sandboxes/{id} (deleted)"),
        }
    }

    /// Returns the processes that hold one of the locks, the oldest first, without this process.
    ///
    /// # Errors
    /// When /proc cannot be read at all. Processes of other users, whose descriptors are not readable, are no
    /// supervisors.
    pub(crate) fn holders(&self, proc: &mut ProcFs) -> io::Result<Holders<'_>> {
        let own = rustix::process::getpid();
        let mut pids = Vec::new();
        proc.processes(&mut pids)?;
        let mut found = Vec::new();
        for pid in pids.into_iter().filter(|&pid| pid != own) {
            if !self.are_held_by(pid)? {
                continue;
            }
            // Check again with the pidfd open: until that process has exited, its pid cannot be reused.
            if let Some(process) = Process::open(proc, pid)?
                && self.are_held_by(pid)?
                && !process.has_exited()?
            {
                found.push(process);
            }
        }
        found.sort_unstable_by_key(Process::id);
        let mut passing = true;
        let _ = proc.scan(|stat| {
            passing &= !found.iter().any(|holder| Some(holder.id().pid) == stat.parent);
        })?;
        Ok(Holders { locks: self, processes: found, passing })
    }

    /// Tells whether the process with this pid holds one of the locks now.
    ///
    /// # Errors
    /// When there is no descriptor to look.
    pub(crate) fn are_held_by(&self, pid: Pid) -> io::Result<bool> {
        let pid = pid.as_raw_pid();
        let entries = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => entries,
            Err(error) if lacks_descriptors(&error) => return Err(error),
            Err(_) => return Ok(false),
        };
        for entry in entries.filter_map(Result::ok) {
            if self.is_one(&entry.path()) && is_held_through(pid, &entry.file_name())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_one(&self, link: &Path) -> bool {
        let Ok(meta) = std::fs::metadata(link) else { return false };
        if !meta.is_dir() {
            return false;
        }
        self.inodes.contains(&(meta.dev(), meta.ino()))
            || (meta.nlink() == 0
                && std::fs::read_link(link)
                    .is_ok_and(|target| target.as_os_str().as_bytes().ends_with(self.deleted.as_bytes())))
    }
}

/// Returns the holders of a record's lock if all of them are without children: they only clean up.
///
/// The list is empty if one of the holders has a child.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn list_passing(record: &Files) -> io::Result<Vec<Pid>> {
    let locks = Locks::of(record.name(), Some(record), None);
    let holders = locks.holders(&mut ProcFs::open()?)?;
    Ok(holders.processes.iter().filter(|_| holders.passing).map(|holder| holder.id().pid).collect())
}

/// Tells whether a process may hold the lock of a sandbox's record, or of the one that was removed.
pub fn is_supervised(id: &str, record: Option<&Files>) -> bool {
    if let Some(files) = record {
        return files.lock().may_be_held();
    }
    let Ok(mut proc) = ProcFs::open() else { return true };
    let locks = Locks::of(id, None, None);
    locks.holders(&mut proc).map_or(true, |holders| !holders.processes.is_empty())
}

/// Returns the processes below the holders of a record's lock.
///
/// # Errors
/// When /proc cannot be read.
pub fn supervised_processes(record: &Files) -> io::Result<Vec<Pid>> {
    let locks = Locks::of(record.name(), Some(record), None);
    let mut proc = ProcFs::open()?;
    let holders = locks.holders(&mut proc)?;
    let (mut all, mut some) = (Vec::new(), Vec::new());
    for holder in &holders.processes {
        let _ = proc.descendants(holder.id().pid, &mut some)?;
        all.extend(some.drain(..).map(|stat| stat.pid));
    }
    all.retain(|pid| !holders.processes.iter().any(|holder| holder.id().pid == *pid));
    all.sort_unstable_by_key(|pid| pid.as_raw_pid());
    all.dedup();
    Ok(all)
}

/// Returns the supervisors that the record names: good enough to wait for their exit.
pub(crate) fn supervisors_in_record(record: &Files) -> Vec<Process> {
    let (Ok(Some(state)), Ok(mut proc)) = (record.state(), ProcFs::open()) else { return Vec::new() };
    let open = |id| Process::open_exact(&mut proc, id).ok().flatten();
    state.supervisors.into_iter().filter_map(open).collect()
}

/// Returns the supervisor of an ended sandbox that has released the lock by exiting and has not exited yet.
pub(crate) fn find_leaving(record: &Files) -> Option<OwnedFd> {
    let mut proc = ProcFs::open().ok()?;
    supervisors_in_record(record)
        .into_iter()
        .find(|it| is_exiting(&mut proc, it).unwrap_or(false))
        .map(Process::into_pidfd)
}

/// Waits until exiting processes have exited, and returns the pids of those that have not.
///
/// # Errors
/// Those of a look at a pidfd, and when /proc cannot be read.
pub(crate) fn wait_exit(processes: &[Process], until: Instant) -> io::Result<Vec<Pid>> {
    let mut proc = ProcFs::open()?;
    let mut late = Vec::new();
    for process in processes {
        let exiting = is_exiting(&mut proc, process)?;
        let limit = poll_timeout(until.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN)];
        if exiting && rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, limit.as_ref()))? == 0 {
            late.push(process.id().pid);
        }
    }
    Ok(late)
}

/// The processes that hold the locks of a sandbox.
#[derive(Debug)]
pub(crate) struct Holders<'a> {
    locks: &'a Locks,
    processes: Vec<Process>,
    /// Whether no holder has a child. Such holders are commands that clean up and live on after releasing the lock, or
    /// supervisors that exit.
    passing: bool,
}

impl Holders<'_> {
    pub(crate) fn are_passing(&self) -> bool {
        self.passing
    }

    /// Returns the holders that still hold a lock or have not exited.
    ///
    /// Supervisors hold their locks for life, and exist a moment longer: the kernel releases the locks of a process
    /// before its end is visible.
    ///
    /// # Errors
    /// Those of a look at a pidfd, and when /proc cannot be read.
    pub(crate) fn left(&self, proc: &mut ProcFs) -> io::Result<Vec<&Process>> {
        let mut left = Vec::new();
        for holder in &self.processes {
            let stays =
                !self.passing || self.locks.are_held_by(holder.id().pid)? || is_exiting(proc, holder)?;
            if stays && !holder.has_exited()? {
                left.push(holder);
            }
        }
        Ok(left)
    }

    /// Returns the oldest holder.
    pub(crate) fn into_first(self) -> Option<Process> {
        self.processes.into_iter().next()
    }

    /// Returns all holders, including those that have exited.
    pub(crate) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Tells whether one of the holders is stopped.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub(crate) fn are_stopped(&self, proc: &mut ProcFs) -> io::Result<bool> {
        for holder in &self.processes {
            if is_stopped(proc, holder)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Continues commands that were stopped while they cleaned up: they have almost finished.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub(crate) fn wake(&self, proc: &mut ProcFs) -> io::Result<()> {
        for holder in self.processes.iter().filter(|_| self.passing) {
            if is_stopped(proc, holder)? {
                holder.signal(Signal::CONT)?;
            }
        }
        Ok(())
    }
}

fn is_stopped(proc: &mut ProcFs, process: &Process) -> io::Result<bool> {
    let stat = proc.stat(process.id().pid)?;
    Ok(stat.is_some_and(|stat| stat.id() == process.id() && stat.state == SchedulerState::Stopped))
}

fn is_exiting(proc: &mut ProcFs, process: &Process) -> io::Result<bool> {
    let stat = proc.stat(process.id().pid)?;
    Ok(stat.is_some_and(|stat| stat.id() == process.id() && stat.is_exiting()))
}
