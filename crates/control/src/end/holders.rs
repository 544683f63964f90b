//! Which processes look after a sandbox: those that are seen to hold its lock.
//!
//! What a record says of processes is never believed. The kernel shows for each descriptor which file it is and whether
//! a lock was taken through it (`/proc/<pid>/fdinfo`, proc(5)); that cannot be forged.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use penfold_process::{Pid, ProcFs, Process, Signal, State};
use rustix::event::{PollFd, PollFlags};

use super::timespec;

use penfold_state::Files;

/// A file as the kernel knows it.
type Inode = (u64, u64);

/// What the supervisors of one sandbox have locked.
#[derive(Debug)]
pub(crate) struct Locks {
    /// The directories that are there: the record, the leaf.
    inodes: Vec<Inode>,
    /// What the link to a record that was deleted ends with.
    deleted: String,
}

impl Locks {
    /// The locks of a sandbox with this record, if it has one, and this leaf.
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

    /// The processes that hold one of them, the oldest first; this one is left out.
    ///
    /// # Errors
    /// When /proc cannot be read at all. Processes of others, whose descriptors cannot be seen, are none of ours.
    pub(crate) fn holders(&self, proc: &mut ProcFs) -> io::Result<Holders<'_>> {
        let own = rustix::process::getpid();
        let mut pids = Vec::new();
        proc.processes(&mut pids)?;
        let mut found = Vec::new();
        for pid in pids.into_iter().filter(|&pid| pid != own) {
            if !self.are_held_by(pid) {
                continue;
            }
            // Looked at again with the handle open: until that process has exited its number is no other's.
            if let Some(process) = Process::open(proc, pid)?
                && self.are_held_by(pid)
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

    /// Whether the process with this number holds one of them now.
    pub(crate) fn are_held_by(&self, pid: Pid) -> bool {
        let pid = pid.as_raw_pid();
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        entries
            .filter_map(Result::ok)
            .any(|entry| self.is_one(&entry.path()) && is_locked(pid, &entry.file_name()))
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

/// Those who hold the lock of a record and look after nothing, as far as they are seen from here; none where one of the
/// holders looks after something.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn passing(record: &Files) -> io::Result<Vec<Pid>> {
    let locks = Locks::of(record.name(), Some(record), None);
    let holders = locks.holders(&mut ProcFs::open()?)?;
    Ok(holders.processes.iter().filter(|_| holders.passing).map(|holder| holder.id().pid).collect())
}

/// The supervisors of a sandbox, by what its record says: good enough to wait for while they exit.
pub(crate) fn named(record: &Files) -> Vec<Process> {
    let (Ok(Some(state)), Ok(mut proc)) = (record.state(), ProcFs::open()) else { return Vec::new() };
    let open = |id| Process::open_exact(&mut proc, id).ok().flatten();
    state.supervisors.into_iter().filter_map(open).collect()
}

/// The supervisor of a sandbox that is over which has let go of the lock by exiting and has not exited yet.
pub(crate) fn leaving(record: &Files) -> Option<OwnedFd> {
    let mut proc = ProcFs::open().ok()?;
    named(record).into_iter().find(|it| is_exiting(&mut proc, it).unwrap_or(false)).map(Process::into_pidfd)
}

/// Waits until those that have let go by exiting have exited, and tells which have not by then.
///
/// # Errors
/// Those of a look at a pidfd, and when /proc cannot be read.
pub(crate) fn see_off(processes: &[Process], until: Instant) -> io::Result<Vec<Pid>> {
    let mut proc = ProcFs::open()?;
    let mut late = Vec::new();
    for process in processes {
        let exiting = is_exiting(&mut proc, process)?;
        let limit = timespec(until.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN)];
        if exiting && rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, limit.as_ref()))? == 0 {
            late.push(process.id().pid);
        }
    }
    Ok(late)
}

/// Who holds the locks of a sandbox.
#[derive(Debug)]
pub(crate) struct Holders<'a> {
    locks: &'a Locks,
    processes: Vec<Process>,
    /// None of them has a child, so that they look after nothing: another command that puts the sandbox away, and lives on
    /// when it has let go, or supervisors on their way out.
    passing: bool,
}

impl Holders<'_> {
    pub(crate) fn are_passing(&self) -> bool {
        self.passing
    }

    /// Those that are in the way still. Supervisors hold their locks for life, and are there a moment longer: the kernel
    /// frees the locks of a process before that can be seen to have ended.
    ///
    /// # Errors
    /// Those of a look at a pidfd, and when /proc cannot be read.
    pub(crate) fn left(&self, proc: &mut ProcFs) -> io::Result<Vec<&Process>> {
        let mut left = Vec::new();
        for holder in &self.processes {
            let stays = !self.passing || self.locks.are_held_by(holder.id().pid) || is_exiting(proc, holder)?;
            if stays && !holder.has_exited()? {
                left.push(holder);
            }
        }
        Ok(left)
    }

    /// All of them, whatever became of them.
    pub(crate) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Whether one of them was stopped and is in the way.
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

    /// Lets commands go on that were stopped while they put the sandbox away: they are as good as done.
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
    Ok(stat.is_some_and(|stat| stat.id() == process.id() && stat.state == State::Stopped))
}

fn is_exiting(proc: &mut ProcFs, process: &Process) -> io::Result<bool> {
    let stat = proc.stat(process.id().pid)?;
    Ok(stat.is_some_and(|stat| stat.id() == process.id() && stat.is_exiting()))
}

/// Whether an exclusive flock(2) was taken through this descriptor.
fn is_locked(pid: i32, fd: &OsStr) -> bool {
    let text = std::fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(fd));
    text.is_ok_and(|text| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("lock:")
                && words.clone().any(|word| word == "FLOCK")
                && words.any(|word| word == "WRITE")
        })
    })
}
