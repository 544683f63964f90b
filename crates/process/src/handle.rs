//! A verified handle to a process, for signals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::id::ProcessId;
use crate::procfs::ProcFs;
use crate::stat::Stat;

/// The result of sending a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The kernel accepted the signal. Its effect on the process is unknown.
    Delivered,
    /// The process is gone.
    Gone,
}

/// A handle to one process with a verified identity.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process that has this pid now; `None` when no process or only a dead process has the pid.
    ///
    /// The order makes the identity certain: first the pidfd, then `stat`, then a check that the pidfd's process has
    /// not exited. Until its exit the pid could not be reused. The pidfd must also report this pid for the `/proc` that
    /// was read: in another namespace's `/proc` the pid belongs to another process.
    ///
    /// # Errors
    /// Also when the process exists and this `/proc` hides it.
    pub fn open(proc: &mut ProcFs, pid: Pid) -> io::Result<Option<Self>> {
        Ok(Self::open_with_stat(proc, pid)?.map(|(process, _)| process))
    }

    /// Like [`Process::open`], and also returns the `stat` that was read meanwhile.
    pub fn open_with_stat(proc: &mut ProcFs, pid: Pid) -> io::Result<Option<(Self, Stat)>> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Self::verify(proc, pidfd, pid),
            // The thread is not a main thread: EINVAL, and ENOENT on newer kernels.
            Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens exactly this process; `None` when the process is gone, even if its pid was reused.
    pub fn open_exact(proc: &mut ProcFs, id: ProcessId) -> io::Result<Option<Self>> {
        Ok(Self::open(proc, id.pid)?.filter(|process| process.id == id))
    }

    /// Takes a pidfd from elsewhere (clone3, `SCM_RIGHTS`) and the pid that its sender claims; `None` when the process
    /// is gone.
    pub fn from_pidfd(proc: &mut ProcFs, pidfd: OwnedFd, pid: Pid) -> io::Result<Option<Self>> {
        Ok(Self::verify(proc, pidfd, pid)?.map(|(process, _)| process))
    }

    fn verify(proc: &mut ProcFs, pidfd: OwnedFd, pid: Pid) -> io::Result<Option<(Self, Stat)>> {
        let stat = proc.stat(pid)?;
        let named = proc.pid_of(pidfd.as_fd())?;
        let Some(stat) = stat else {
            // The pid was free, or `/proc` does not show the process.
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

    /// Returns the identity.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns the pidfd, which polls readable once every thread of the process has exited, `pidfd_open(2)`.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Discards the identity and returns the pidfd.
    pub fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }

    /// Tells whether every thread of the process has exited; the process may still be unreaped.
    pub fn has_exited(&self) -> io::Result<bool> {
        has_exited(&self.pidfd)
    }

    /// Sends a signal to this process and to no other, `pidfd_send_signal(2)`.
    ///
    /// # Errors
    /// `EPERM` when this user may not signal the process.
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
