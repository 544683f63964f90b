//! The paths in a request.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::mistake::Mistake;

/// Returns the path if it is absolute and plain.
pub(crate) fn check_path(path: &Path) -> Result<PathBuf, Mistake> {
    if !path.is_absolute() {
        return Err(Mistake::Relative(path.to_owned()));
    }
    // `components` drops a `.` and repeated slashes on its own.
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let has_nul = path.as_os_str().as_bytes().contains(&0);
    if !plain || has_nul || path.file_name().is_none() {
        return Err(Mistake::BadPath(path.to_owned()));
    }
    Ok(path.components().collect())
}

/// Returns the type of what a path leads to; `None` if there is nothing.
pub(crate) fn kind_of(path: &Path) -> io::Result<Option<FileType>> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the path without links, as the kernel's tables have it. The last parts may be missing.
pub(crate) fn resolve_path(path: &Path) -> io::Result<PathBuf> {
    match rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())),
        Err(Errno::NOENT) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::NOENT.into());
            };
            Ok(resolve_path(parent)?.join(name))
        }
        Err(errno) => Err(errno.into()),
    }
}
