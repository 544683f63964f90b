//! A process one can aim at.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::id::ProcessId;
use crate::procfs::ProcFs;
use crate::stat::Stat;

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The kernel took it for the process; what it does to it is another matter.
    Delivered,
    /// There is nobody left to take it.
    Gone,
}

/// A handle to one process, its identity verified.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process that has this pid now; none when there is none, or only a dead one.
    ///
    /// The order makes the identity certain: the pidfd first, then `stat`, then a check that the pidfd's process had
    /// not exited: until then its pid could not be given to another. And the pidfd itself must say that its process has this
    /// number in the `/proc` that was read: another namespace's `/proc` calls somebody else so.
    ///
    /// # Errors
    /// Also when there is one and this `/proc` hides it.
    pub fn open(proc: &mut ProcFs, pid: Pid) -> io::Result<Option<Self>> {
        Ok(Self::open_with_stat(proc, pid)?.map(|(process, _)| process))
    }

    /// As [`Process::open`], with the `stat` that was read on the way.
    pub fn open_with_stat(proc: &mut ProcFs, pid: Pid) -> io::Result<Option<(Self, Stat)>> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Self::verify(proc, pidfd, pid),
            // A thread that leads no process: EINVAL, and ENOENT on newer kernels.
            Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens exactly this process; none when it is gone, even if its pid now belongs to another.
    pub fn open_exact(proc: &mut ProcFs, id: ProcessId) -> io::Result<Option<Self>> {
        Ok(Self::open(proc, id.pid)?.filter(|process| process.id == id))
    }

    /// Takes a pidfd that came from elsewhere (clone3, `SCM_RIGHTS`) and `pid`, the number it was said to have; none
    /// when its process is gone.
    pub fn from_pidfd(proc: &mut ProcFs, pidfd: OwnedFd, pid: Pid) -> io::Result<Option<Self>> {
        Ok(Self::verify(proc, pidfd, pid)?.map(|(process, _)| process))
    }

    fn verify(proc: &mut ProcFs, pidfd: OwnedFd, pid: Pid) -> io::Result<Option<(Self, Stat)>> {
        let stat = proc.stat(pid)?;
        let named = proc.pid_of(pidfd.as_fd())?;
        let Some(stat) = stat else {
            // Its number was free, or `/proc` does not show it.
            return if has_exited(&pidfd)? { Ok(None) } else { Err(hidden()) };
        };
        let process = Self { id: stat.id(), pidfd };
        if process.has_exited()? {
            return Ok(None);
        }
        match named {
            Some(named) if named == pid => Ok(Some((process, stat))),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "`/proc` and the kernel do not mean the same process by this pid",
            )),
            None => Ok(None),
        }
    }

    /// Gives the identity.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Gives the pidfd: it polls readable once every thread of the process has exited, `pidfd_open(2)`.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Gives up the identity and keeps the pidfd.
    pub fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }

    /// Tells whether every thread of it has exited; it may still wait to be reaped.
    pub fn has_exited(&self) -> io::Result<bool> {
        has_exited(&self.pidfd)
    }

    /// Sends a signal to this process and to no other, `pidfd_send_signal(2)`.
    ///
    /// # Errors
    /// `EPERM` when it is not ours to signal.
    pub fn signal(&self, signal: Signal) -> io::Result<Delivery> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(Delivery::Delivered),
            Err(Errno::SRCH) => Ok(Delivery::Gone),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn has_exited(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

fn hidden() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "`/proc` does not show this process (hidepid)")
}
