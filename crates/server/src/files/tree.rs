//! Files as entries of directories: look, list, make, move, remove.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, OwnedFd};

use penfold_state::clear::{clear_directory, list_entries};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::FileError;
use super::workspace::{FilePlace, Workspace, is_there, open_readable, refuse_mount};

/// An entry of a directory. A link is not followed.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name; `.` for the directory in which every path stays.
    pub name: CString,
    /// What fstatat(2) says.
    pub stat: Stat,
    /// The target, if the entry is a link.
    pub target: Option<CString>,
}

impl Entry {
    fn at(dir: &OwnedFd, name: &CStr) -> Result<Entry, Errno> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let target = is_link.then(|| rustix::fs::readlinkat(dir, name, Vec::new()).ok()).flatten();
        Ok(Entry { name: name.to_owned(), stat, target })
    }
}

/// Entries of a directory, by the bytes of their names.
#[derive(Debug, Clone)]
pub struct EntryPage {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The name after which the next page begins, if there is one.
    pub next: Option<CString>,
}

impl Workspace {
    /// Looks at a file. A link is not followed.
    ///
    /// # Errors
    /// When it is not there, or the path leads out of the workspace.
    pub fn entry(&self, path: &str) -> Result<Entry, FileError> {
        let system = |errno| FileError::system(path, errno);
        if matches!(path, "" | "." | "./" | "/") {
            let dir = self.at(path, OFlags::PATH, Mode::empty())?;
            let stat = rustix::fs::fstat(&dir).map_err(system)?;
            return Ok(Entry { name: c".".to_owned(), stat, target: None });
        }
        let place = self.place(path)?;
        let name = CString::new(place.name.into_encoded_bytes()).map_err(|_| system(Errno::INVAL))?;
        Entry::at(&place.dir, &name).map_err(system)
    }

    /// Lists at most `limit` entries of a directory, those whose names come after the bytes `after`.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn entries(&self, path: &str, after: Option<&[u8]>, limit: usize) -> Result<EntryPage, FileError> {
        let dir = self.at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        page(&dir, after, limit).map_err(|errno| FileError::system(path, errno))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// When it is there already, or cannot be made.
    pub fn make_directory(&self, path: &str, mode: Mode) -> Result<(), FileError> {
        let place = self.place(path)?;
        rustix::fs::mkdirat(&place.dir, &place.name, mode).map_err(|errno| FileError::system(path, errno))
    }

    /// Moves a file or a directory; with `replaces`, another file at the new path is replaced.
    ///
    /// # Errors
    /// When there is nothing to move, or something is at the new path.
    pub fn move_entry(&self, from: &str, to: &str, replaces: bool) -> Result<(), FileError> {
        let (old, new) = (self.place(from)?, self.place(to)?);
        refuse_mount(&old).map_err(|errno| FileError::system(from, errno))?;
        refuse_mount(&new).map_err(|errno| FileError::system(to, errno))?;
        let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let moved = rustix::fs::renameat_with(&old.dir, &old.name, &new.dir, &new.name, flags);
        moved.map_err(|errno| {
            FileError::system(if errno == Errno::NOENT && !is_there(&old) { from } else { to }, errno)
        })
    }

    /// Removes a file, or a directory; with `recursive`, with all that is in it. A link is removed, and not its target.
    ///
    /// # Errors
    /// When it cannot be removed; a part of a directory may be gone.
    pub fn remove_entry(&self, path: &str, recursive: bool) -> Result<(), FileError> {
        let place = self.place(path)?;
        remove_at(&place, recursive).map_err(|errno| FileError::system(path, errno))
    }
}

fn page(dir: &OwnedFd, after: Option<&[u8]>, limit: usize) -> Result<EntryPage, Errno> {
    let listed =
        list_entries(dir.as_fd()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut names: Vec<CString> = listed.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    if let Some(after) = after {
        names.retain(|name| name.as_bytes() > after);
    }
    let has_more = names.len() > limit;
    names.truncate(limit);
    let mut found = Vec::with_capacity(names.len());
    for name in &names {
        match Entry::at(dir, name) {
            Ok(entry) => found.push(entry),
            // It was removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(EntryPage { entries: found, next: names.pop().filter(|_| has_more) })
}

pub(super) fn remove_at(place: &FilePlace, recursive: bool) -> Result<(), Errno> {
    refuse_mount(place)?;
    match rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let empty = rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR);
    if !recursive || empty != Err(Errno::NOTEMPTY) {
        return empty;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let dir = rustix::fs::openat2(&place.dir, &place.name, flags, Mode::empty(), resolve)?;
    clear_directory(open_readable(&dir)?.as_fd(), &[])
        .map_err(|error| Errno::from_io_error(&error.source).unwrap_or(Errno::IO))?;
    rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::super::workspace::of_test;
    use super::*;

    #[test]
    fn pages_have_every_name_once() {
        let top = tempfile::tempdir().unwrap();
        // In the order of their bytes: the replacement of a byte that is not UTF-8 sorts before the last but one.
        let names: [&[u8]; 6] = [b"a", b"b", "\u{1f600}".as_bytes(), b"\xfd", b"\xfe", b"\xff"];
        for name in names {
            std::fs::write(top.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let workspace = of_test(top.path());
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = workspace.entries("", after.as_deref(), 1).unwrap();
            listed.extend(page.entries.into_iter().map(|entry| entry.name.into_bytes()));
            after = page.next.map(CString::into_bytes);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, names);
    }
}
