//! The cgroups below a cgroup, deepest last seen first left.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use crate::dir;

const DIRECTORY_BYTES: usize = 8 * 1024;

/// What is done at the cgroups of a walk.
pub(crate) trait Visit {
    /// Comes to a cgroup, before those below it.
    fn enter(&mut self, dir: BorrowedFd<'_>);
    /// Is back in `parent` after all below `name` was seen; not called for the first cgroup.
    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr);
    /// Could not list `dir` or look into what is below it.
    fn fail(&mut self, dir: BorrowedFd<'_>, errno: Errno);
}

struct Level {
    name: CString,
    /// Names in the parent that are still to be seen.
    siblings: Vec<CString>,
}

/// Walks `top` and all below it. What is removed meanwhile is skipped.
///
/// One descriptor and no recursion, whatever the depth: a member can nest cgroups as deep as it likes.
pub(crate) fn walk(top: BorrowedFd<'_>, visit: &mut impl Visit) {
    visit.enter(top);
    let mut here: Option<OwnedFd> = None;
    let mut levels: Vec<Level> = Vec::new();
    let mut pending = list(top, visit);
    loop {
        let current = here.as_ref().map_or(top, AsFd::as_fd);
        if let Some(name) = pending.pop() {
            match dir::open_dir(current, &name) {
                Ok(next) => {
                    visit.enter(next.as_fd());
                    let below = list(next.as_fd(), visit);
                    levels.push(Level { name, siblings: std::mem::replace(&mut pending, below) });
                    here = Some(next);
                }
                Err(errno) if dir::is_gone(errno) => {}
                Err(errno) => visit.fail(current, errno),
            }
            continue;
        }
        let Some(level) = levels.pop() else {
            return;
        };
        // The way back never leaves the hierarchy: cgroups cannot be moved, and each step up undoes one down.
        let parent = match dir::open_dir(current, c"..") {
            Ok(parent) => parent,
            Err(errno) => return visit.fail(current, errno),
        };
        visit.leave(parent.as_fd(), &level.name);
        pending = level.siblings;
        here = Some(parent);
    }
}

fn list(dir: BorrowedFd<'_>, visit: &mut impl Visit) -> Vec<CString> {
    let mut names = Vec::new();
    if let Err(errno) = list_into(dir, &mut names)
        && !dir::is_gone(errno)
    {
        visit.fail(dir, errno);
    }
    names
}

fn list_into(dir: BorrowedFd<'_>, names: &mut Vec<CString>) -> Result<(), Errno> {
    if !dir::has_cgroups(dir)? {
        return Ok(());
    }
    // A descriptor of its own, as listing moves the offset of the one that is kept.
    let listing = dir::open_dir(dir, c".")?;
    let mut buffer = Vec::with_capacity(DIRECTORY_BYTES);
    let mut entries = RawDir::new(&listing, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if entry.file_type() == FileType::Directory && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(())
}
