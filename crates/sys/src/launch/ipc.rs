//! The way into namespaces that a sandbox does not share with its host: System V and POSIX IPC, with a `/dev/shm` of their own.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::namespace::is_in_another_user_namespace;

/// Open namespaces, which all clones of this value in a process share. Empty until [`IpcEntry::open`], and again after
/// [`IpcEntry::close`]: no program enters then, and none runs.
#[derive(Debug, Clone, Default)]
pub struct IpcEntry(Arc<RwLock<Vec<OwnedFd>>>);

impl IpcEntry {
    /// Opens the namespaces of a process, its root and its working directory, in which programs start. The caller makes sure that the
    /// pid is that process.
    ///
    /// # Errors
    /// When the caller may not enter them. This value is then as before.
    pub fn open(&self, process: Pid) -> io::Result<()> {
        let at = |name: &str, flags| {
            let path = format!("/proc/{}/{name}", process.as_raw_pid());
            rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
        };
        let directory = OFlags::PATH | OFlags::DIRECTORY;
        let mut opened = Vec::new();
        // The user namespace comes first: it gives an ordinary user the right to enter the others.
        if is_in_another_user_namespace(process)? {
            opened.push(at("ns/user", OFlags::RDONLY)?);
        }
        opened.push(at("ns/ipc", OFlags::RDONLY)?);
        opened.push(at("ns/mnt", OFlags::RDONLY)?);
        opened.push(at("root", directory)?);
        opened.push(at("cwd", directory)?);
        self.set(opened);
        Ok(())
    }

    /// Closes them in this process. A namespace ends with its last process and its last descriptor.
    pub fn close(&self) {
        self.set(Vec::new());
    }

    fn set(&self, opened: Vec<OwnedFd>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = opened;
    }

    /// Returns the open descriptors.
    pub fn fds(&self) -> RwLockReadGuard<'_, Vec<OwnedFd>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the namespaces, with async-signal-safe calls only.
    pub(super) fn enter(&self) -> rustix::io::Result<()> {
        // The lock takes no system call, and nobody opens or closes them while a program starts.
        let Ok(fds) = self.0.try_read() else { return Err(Errno::BUSY) };
        let [spaces @ .., root, _] = fds.as_slice() else { return Err(Errno::BADF) };
        for space in spaces {
            rustix::thread::move_into_link_name_space(space.as_fd(), None)?;
        }
        // The entry into a mount namespace leads to its root, which is not that of a process below chroot(2).
        rustix::process::fchdir(root)?;
        rustix::process::chroot(c".")
    }

    /// Enters the directory in which programs start, with async-signal-safe calls only.
    pub(super) fn go_home(&self) -> rustix::io::Result<()> {
        let Ok(fds) = self.0.try_read() else { return Err(Errno::BUSY) };
        fds.last().map_or(Err(Errno::BADF), rustix::process::fchdir)
    }
}
