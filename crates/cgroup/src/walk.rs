//! Walks the cgroups below a cgroup; the last one entered is the first one left.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use crate::dir;

const DIRECTORY_BYTES: usize = 8 * 1024;

/// The callbacks of a walk.
pub(crate) trait Visit {
    /// Enters a cgroup, before the cgroups below it.
    fn enter(&mut self, dir: BorrowedFd<'_>);
    /// Returns to `parent` after everything below `name` was visited; not called for the first cgroup.
    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr);
    /// Reports that `dir` could not be listed or a cgroup below it could not be entered.
    fn fail(&mut self, dir: BorrowedFd<'_>, errno: Errno);
}

struct WalkLevel {
    name: CString,
    /// Names in the parent that are not yet visited.
    siblings: Vec<CString>,
}

/// Walks `top` and all cgroups below it. Cgroups that are removed meanwhile are skipped.
///
/// The walk needs one descriptor and no recursion, whatever the depth: a member can nest cgroups as deep as it likes.
pub(crate) fn walk_cgroups(top: BorrowedFd<'_>, visit: &mut impl Visit) {
    visit.enter(top);
    let mut here: Option<OwnedFd> = None;
    let mut levels: Vec<WalkLevel> = Vec::new();
    let mut pending = list(top, visit);
    loop {
        let current = here.as_ref().map_or(top, AsFd::as_fd);
        if let Some(name) = pending.pop() {
            match dir::open_dir(current, &name) {
                Ok(next) => {
                    visit.enter(next.as_fd());
                    let below = list(next.as_fd(), visit);
                    levels.push(WalkLevel { name, siblings: std::mem::replace(&mut pending, below) });
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
        // The way back never leaves the hierarchy: cgroups cannot be moved, and each step up undoes one step down.
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
    // Listing moves the offset of a descriptor, so the listing gets its own.
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
