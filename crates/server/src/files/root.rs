//! An open directory in which every path of a request stays. A path is a text, as of [`path_text`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use penfold_process::path_text::{path_of_text, path_text};
use penfold_state::Identity;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::FileError;
use super::rights::Actor;

/// The longest path.
const LONGEST: usize = 4096;
/// A rename elsewhere on the host can make openat2(2) fail with EAGAIN; it is repeated at most this often.
const TRIES: u32 = 64;

/// An open directory in which every path stays; a clone is another handle.
#[derive(Debug, Clone)]
pub struct Root {
    dir: Arc<OwnedFd>,
    border: Border,
    /// With whose rights the server acts on the files.
    pub(crate) actor: Actor,
}

/// What happens to a path that leads above the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Border {
    /// It is refused, and so is an absolute path.
    Refuses,
    /// It stays at the directory, as at the root directory of a process. Absolute paths and links begin there.
    Stays,
}

impl Root {
    pub(crate) fn new(dir: OwnedFd, border: Border, actor: Actor) -> Root {
        Root { dir: Arc::new(dir), border, actor }
    }

    /// Takes a directory of the host for the root directory of a jail.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn of_directory(path: &Path) -> io::Result<Root> {
        Ok(Root::new(open_directory(path)?, Border::Stays, Actor::Jail))
    }

    /// The root directory of this machine, with the rights of a user.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn of_machine(user: Arc<Identity>) -> io::Result<Root> {
        Ok(Root::new(open_directory(Path::new("/"))?, Border::Stays, Actor::User(user)))
    }

    /// Tells whether another handle is one of the same open directory.
    pub(crate) fn is_same(&self, other: &Root) -> bool {
        Arc::ptr_eq(&self.dir, &other.dir)
    }

    /// Opens a path. Links are followed as long as they stay in the directory.
    pub(crate) fn open(&self, path: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let border = if self.border == Border::Stays { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let resolve = border | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        loop {
            tries += 1;
            match rustix::fs::openat2(self.dir.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => {}
                opened => return opened,
            }
        }
    }

    /// Reads a path of a request. The empty path and `.` are the directory.
    ///
    /// # Errors
    /// When it is too long, has a NUL, or is absolute where paths are relative.
    pub(crate) fn checked(&self, text: &str) -> Result<OsString, FileError> {
        let path = path_of_text(text).into_os_string();
        if path.len() > LONGEST {
            return Err(FileError::Path("longer than 4096 bytes"));
        }
        if path.as_bytes().contains(&0) {
            return Err(FileError::Path("contains a NUL"));
        }
        if self.border == Border::Refuses && path.as_bytes().starts_with(b"/") {
            return Err(FileError::Path("begins with `/`; paths are relative to the workspace"));
        }
        Ok(if path.is_empty() { ".".into() } else { path })
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The text of a path.
pub(crate) fn text_of(path: &OsStr) -> String {
    path_text(Path::new(path))
}
