//! Empties a directory, whatever a command has put there.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How deep the removal goes before it lifts what is deeper to the top: a descriptor is open for each level.
const DEEP: u32 = 64;

/// Removes all that is in a directory, without following a link or crossing into another mount; those called `last` only
/// after all else is gone, one after the other.
///
/// No member is left that could move things meanwhile; other processes of the user can at worst make it fail.
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
        // Fewer descriptors than levels.
        Err(Errno::MFILE) if depth > 0 => return lift(top, dir, name, lifted),
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            open_below(dir, name)?
        }
        other => other?,
    };
    // A command may have locked the directory against itself.
    rustix::fs::fchmod(&child, Mode::RWXU)?;
    let inside = match entries(child.as_fd()) {
        Err(error) if depth > 0 && error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            return lift(top, dir, name, lifted);
        }
        other => other?,
    };
    clear_all(top, child.as_fd(), inside, depth + 1, lifted)?;
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        // What was lifted out of it is cleared in the next round.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Moves a directory to the top, where it is cleared in the next round.
fn lift(top: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CString, lifted: &mut u32) -> io::Result<()> {
    *lifted += 1;
    // A number of our own, so that nothing there is overwritten: a taken name is passed over.
    let fresh = CString::new(format!(".lifted-{}-{lifted}", rustix::process::getpid()))?;
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    Ok(rustix::fs::renameat_with(dir, name, top, &fresh, flags)?)
}

pub(crate) fn open_below(dir: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)
}

/// What is in a directory, but for `.` and `..`, each with its kind.
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
