//! Empties a directory that a command could fill with anything.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The depth from which the removal moves directories to the top, because each level needs an open descriptor.
const DEEP: u32 = 64;

/// Removes everything in a directory, without following a link or crossing into another mount.
///
/// The entries in `last` are removed one after the other, after all else is gone. No member is left that could move
/// files meanwhile; other processes of the user can at worst make the removal fail.
pub fn clear(top: BorrowedFd<'_>, last: &[&str]) -> io::Result<()> {
    for kept in (0..=last.len()).map(|done| last.get(done..).unwrap_or_default()) {
        let mut lifted = 0_u32;
        loop {
            let before = lifted;
            let all = entries(top)?;
            let rest = all
                .into_iter()
                .filter(|(name, _)| !kept.iter().any(|kept| kept.as_bytes() == name.to_bytes()));
            clear_all(top, top, rest, 0, &mut lifted)?;
            if lifted == before {
                break;
            }
        }
    }
    Ok(())
}

fn clear_all(
    top: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    entries: impl IntoIterator<Item = (CString, FileType)>,
    depth: u32,
    lifted: &mut u32,
) -> io::Result<()> {
    let mut failed = None;
    for (name, kind) in entries {
        let result = if kind == FileType::Directory {
            clear_directory(top, dir, &name, depth, lifted)
        } else {
            rustix::fs::unlinkat(dir, &name, AtFlags::empty()).map_err(io::Error::from)
        };
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                failed.get_or_insert(error);
            }
            _ => {}
        }
    }
    failed.map_or(Ok(()), Err)
}

fn clear_directory(
    top: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &CString,
    depth: u32,
    lifted: &mut u32,
) -> io::Result<()> {
    if rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok() {
        return Ok(());
    }
    if depth == DEEP {
        return lift(top, dir, name, lifted);
    }
    let child = match open_below(dir, name) {
        // The process has fewer descriptors than the tree has levels.
        Err(Errno::MFILE) if depth > 0 => return lift(top, dir, name, lifted),
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            open_below(dir, name)?
        }
        other => other?,
    };
    // A command may have removed its own access to the directory.
    rustix::fs::fchmod(&child, Mode::RWXU)?;
    let inside = match entries(child.as_fd()) {
        Err(error) if depth > 0 && error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            return lift(top, dir, name, lifted);
        }
        other => other?,
    };
    clear_all(top, child.as_fd(), inside, depth + 1, lifted)?;
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        // Directories moved out of this one are cleared in the next round.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves a directory to the top, where the next round clears it.
fn lift(top: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CString, lifted: &mut u32) -> io::Result<()> {
    *lifted += 1;
    // A fresh name, so that nothing is overwritten: a taken name is skipped.
    let fresh = CString::new(format!(".lifted-{}-{lifted}", rustix::process::getpid()))?;
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    Ok(rustix::fs::renameat_with(dir, name, top, &fresh, flags)?)
}

pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)
}

/// Lists a directory without `.` and `..`, each entry with its kind.
pub fn entries(dir: BorrowedFd<'_>) -> io::Result<Vec<(CString, FileType)>> {
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
