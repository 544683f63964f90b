//! Empties a directory that a command could fill with anything.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The depth from which the removal moves directories to the top, because each level needs an open descriptor.
const DEEP: u32 = 64;

/// An entry that could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove `{}`", path.display())]
pub struct ClearFailure {
    /// The path of the entry below the directory.
    pub path: PathBuf,
    /// The answer of the kernel.
    pub source: io::Error,
}

impl ClearFailure {
    fn below(self, name: &CString) -> ClearFailure {
        let name = Path::new(OsStr::from_bytes(name.to_bytes()));
        // Joined with an empty path, a name would end in a slash.
        let path = if self.path.as_os_str().is_empty() { name.to_owned() } else { name.join(self.path) };
        ClearFailure { path, ..self }
    }
}

impl From<io::Error> for ClearFailure {
    fn from(source: io::Error) -> ClearFailure {
        ClearFailure { path: PathBuf::new(), source }
    }
}

impl From<Errno> for ClearFailure {
    fn from(errno: Errno) -> ClearFailure {
        ClearFailure { path: PathBuf::new(), source: errno.into() }
    }
}

impl From<ClearFailure> for io::Error {
    fn from(failure: ClearFailure) -> io::Error {
        io::Error::new(failure.source.kind(), failure)
    }
}

/// Removes everything in a directory, without following a link or crossing into another mount.
///
/// The entries in `last` are removed one after the other, after all else is gone. No member is left that could move
/// files meanwhile; other processes of the user can at worst make the removal fail.
///
/// # Errors
/// The first entry that stays; everything else is removed then.
pub fn clear_directory(top: BorrowedFd<'_>, last: &[&str]) -> Result<(), ClearFailure> {
    clear_with(top, last, false)
}

/// Does the same as [`clear_directory`]. Entries that are immutable or append-only lose these flags first, if this process may do
/// so: a command that sets them must not be able to keep its files.
///
/// # Errors
/// The first entry that stays; everything else is removed then.
pub fn clear_flagged(top: BorrowedFd<'_>) -> Result<(), ClearFailure> {
    clear_with(top, &[], true)
}

fn clear_with(top: BorrowedFd<'_>, last: &[&str], removes_flags: bool) -> Result<(), ClearFailure> {
    for kept in (0..=last.len()).map(|done| last.get(done..).unwrap_or_default()) {
        let mut clearing = ClearPass { top, lifted: 0, removes_flags };
        loop {
            let before = clearing.lifted;
            let all = list_entries(top)?;
            let rest = all
                .into_iter()
                .filter(|(name, _)| !kept.iter().any(|kept| kept.as_bytes() == name.to_bytes()));
            clearing.clear_all(top, rest, 0)?;
            if clearing.lifted == before {
                break;
            }
        }
    }
    Ok(())
}

/// One pass over a directory.
struct ClearPass<'a> {
    top: BorrowedFd<'a>,
    /// The number of directories that were moved to the top.
    lifted: u32,
    /// Whether immutable and append-only entries lose these flags.
    removes_flags: bool,
}

impl ClearPass<'_> {
    fn clear_all(
        &mut self,
        dir: BorrowedFd<'_>,
        entries: impl IntoIterator<Item = (CString, FileType)>,
        depth: u32,
    ) -> Result<(), ClearFailure> {
        let mut failed = None;
        for (name, kind) in entries {
            let mut result = self.remove(dir, &name, kind, depth);
            if self.removes_flags
                && result.as_ref().is_err_and(|failure| may_be_flagged(&failure.source))
                && unflag(dir, &name, kind)
            {
                result = self.remove(dir, &name, kind, depth);
            }
            match result {
                Err(failure) if failure.source.kind() != io::ErrorKind::NotFound => {
                    failed.get_or_insert(failure.below(&name));
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn remove(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CString,
        kind: FileType,
        depth: u32,
    ) -> Result<(), ClearFailure> {
        if kind == FileType::Directory {
            self.clear_directory(dir, name, depth)
        } else {
            Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
        }
    }

    fn clear_directory(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CString,
        depth: u32,
    ) -> Result<(), ClearFailure> {
        if rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok() {
            return Ok(());
        }
        if depth == DEEP {
            return self.lift(dir, name);
        }
        let child = match open_below(dir, name) {
            // The process has fewer descriptors than the tree has levels.
            Err(Errno::MFILE) if depth > 0 => return self.lift(dir, name),
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
                open_below(dir, name)?
            }
            other => other?,
        };
        // A command may have removed its own access to the directory, or may have made it immutable.
        if let Err(errno) = rustix::fs::fchmod(&child, Mode::RWXU)
            && !(self.removes_flags
                && unflag_open(child.as_fd())
                && rustix::fs::fchmod(&child, Mode::RWXU).is_ok())
        {
            return Err(errno.into());
        }
        let inside = match list_entries(child.as_fd()) {
            Err(error) if depth > 0 && error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                return self.lift(dir, name);
            }
            other => other?,
        };
        self.clear_all(child.as_fd(), inside, depth + 1)?;
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // Directories moved out of this one are cleared in the next round.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Moves a directory to the top, where the next round clears it.
    fn lift(&mut self, dir: BorrowedFd<'_>, name: &CString) -> Result<(), ClearFailure> {
        self.lifted += 1;
        // A fresh name, so that nothing is overwritten: a taken name is skipped.
        let fresh = CString::new(format!(".lifted-{}-{}", rustix::process::getpid(), self.lifted))
            .map_err(|_| Errno::INVAL)?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(dir, name, self.top, &fresh, flags)?)
    }
}

/// With one of these flags, the kernel answers `EPERM`, and `EACCES` to some calls.
fn may_be_flagged(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::ACCESS))
}

/// Removes the flags immutable and append-only from an entry and its directory; tells whether one was there.
fn unflag(dir: BorrowedFd<'_>, name: &CString, kind: FileType) -> bool {
    let mut changed = unflag_open(dir);
    if matches!(kind, FileType::Directory | FileType::RegularFile) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        if let Ok(entry) = rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
            changed |= unflag_open(entry.as_fd());
        }
    }
    changed
}

pub(crate) fn unflag_open(file: BorrowedFd<'_>) -> bool {
    let flagged = IFlags::IMMUTABLE | IFlags::APPEND;
    match rustix::fs::ioctl_getflags(file) {
        Ok(flags) if flags.intersects(flagged) => rustix::fs::ioctl_setflags(file, flags - flagged).is_ok(),
        _ => false,
    }
}

/// Opens a directory below another, without following a link or crossing into another mount.
///
/// # Errors
/// `EXDEV` for a mount point, `ELOOP` for a link.
pub fn open_below(dir: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)
}

/// Lists a directory without `.` and `..`, each entry with its kind.
pub fn list_entries(dir: BorrowedFd<'_>) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}
