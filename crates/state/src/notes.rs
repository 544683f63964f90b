//! Directories of notes in the state root: a small file for each sandbox, named by its id.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use penfold_process::{ProcFs, pid_from_raw};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::id::Id;
use crate::json;

/// A directory of notes.
#[derive(Debug)]
pub(crate) struct NoteDirectory(OwnedFd);

impl NoteDirectory {
    /// Opens the directory with this name below a state root; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be opened, or belongs to another user.
    pub(crate) fn open(root: &Path, name: &str) -> io::Result<Option<NoteDirectory>> {
        match open_private(CWD, root).and_then(|root| open_private(root.as_fd(), Path::new(name))) {
            Ok(dir) => Ok(Some(NoteDirectory(dir))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the directory, and makes it if it is missing.
    ///
    /// # Errors
    /// When it cannot be made or opened, or belongs to another user.
    pub(crate) fn make(root: &Path, name: &str) -> io::Result<NoteDirectory> {
        let make = |at: BorrowedFd<'_>, path: &Path| match rustix::fs::mkdirat(at, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_private(at, path),
            Err(errno) => Err(errno.into()),
        };
        Ok(NoteDirectory(make(make(CWD, root)?.as_fd(), Path::new(name))?))
    }

    /// Returns the ids of the sandboxes with a note.
    ///
    /// # Errors
    /// Those of readdir(3).
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            ids.extend(entry.file_name().to_str().ok().filter(|name| Id::is_short(name)).map(str::to_owned));
        }
        Ok(ids)
    }

    /// Reads the note of a sandbox; `None` if there is none, or it cannot be read.
    pub(crate) fn read<T: DeserializeOwned>(&self, id: &str) -> Option<T> {
        json::read_json(self.0.as_fd(), id).ok()?
    }

    /// Writes the note of a sandbox, whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write<T: Serialize>(&self, id: &str, note: &T) -> io::Result<()> {
        match json::replace_json(self.0.as_fd(), id, note) {
            // Somebody in another pid namespace took this process for dead.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                json::replace_json(self.0.as_fd(), id, note)
            }
            written => written,
        }
    }

    /// Removes what writers left that died before their note was whole. One that may live, as another process with its pid does, keeps it.
    ///
    /// # Errors
    /// Those of readdir(3) and unlink(2).
    pub(crate) fn remove_unfinished(&self, proc: &mut ProcFs) -> io::Result<()> {
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Some((_, writer)) = json::unfinished_file(name).filter(|(id, _)| Id::is_short(id)) else {
                continue;
            };
            let is_gone = |pid| proc.stat(pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.is_dead()));
            if pid_from_raw(writer).is_none_or(is_gone) {
                self.remove(name)?;
            }
        }
        Ok(())
    }

    /// Removes the note of a sandbox, if there is one.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, id, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Opens a directory of this user without following a link in its last part.
pub(crate) fn open_private(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(at, path, flags, Mode::empty())?;
    let owner = rustix::fs::fstat(&dir)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("`{}` belongs to user {owner}", path.display())));
    }
    Ok(dir)
}
