//! The files that the commands of a sandbox see, or those of this machine as a user sees them.
//!
//! - [`Inside`] — looks at, lists, makes, moves and removes them.
//! - [`EntryInfo`] — a file as clients see it.
//! - `failure` — errors of calls. `paths` — the paths of requests. `names` — users and groups. `permissions` — permissions as text.

mod entry;
mod failure;
mod names;
mod paths;
mod permissions;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penfold_server::files::{Entry, FileError, IdMap, Jail, Root, Workspace};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::PidfdFlags;

use crate::guest::{Guest, Place};
use crate::user::User;

pub(crate) use self::entry::EntryInfo;
pub(crate) use self::paths::{name_of, normal_path, parent_of};

/// The permissions of directories that are made.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
/// The most entries of a list.
const MOST_ENTRIES: usize = 50_000;

/// The files of a sandbox or of this machine, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) root: Root,
    users: IdMap,
    groups: IdMap,
    user: User,
}

impl Seen {
    /// Finds the files that the commands of a guest see. Also returns a pidfd that is readable once the guest is gone.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub(crate) fn of(guest: &Guest) -> Result<(Seen, OwnedFd), FileError> {
        let user = guest.user.clone();
        match (&guest.place, &user.account) {
            (Place::Sandbox(files), _) => {
                let Jail { root, users, groups, first, .. } = Jail::open(files)?;
                Ok((Seen { root, users, groups, user }, first))
            }
            (Place::Machine { .. }, Some(account)) => {
                let root = Root::of_machine(Arc::clone(&account.identity)).map_err(FileError::NoJail)?;
                let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
                let own = own.map_err(|errno| FileError::System { path: "/".to_owned(), errno })?;
                Ok((Seen { root, users: IdMap::all(), groups: IdMap::all(), user }, own))
            }
            (Place::Machine { .. }, None) => {
                Err(FileError::NoJail(std::io::Error::other("the user is unknown")))
            }
        }
    }

    /// Reaches the files. Until the value is dropped, this thread has the rights of the sandbox's commands.
    ///
    /// # Errors
    /// When the thread cannot have these rights.
    pub(crate) fn enter(&self) -> Result<Inside, FileError> {
        Ok(Inside { workspace: Workspace::enter(&self.root)?, seen: self.clone() })
    }
}

/// The files of a sandbox, from this thread. Paths are absolute and normal.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) workspace: Workspace,
    seen: Seen,
}

/// What is at a path at which a directory is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupied {
    Directory,
    Other,
}

impl Inside {
    /// Reaches the files that the commands of a guest see.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub(crate) fn of(guest: &Guest) -> Result<Inside, FileError> {
        Seen::of(guest)?.0.enter()
    }

    /// Returns the absolute path of a request's path, which is relative to the home directory.
    ///
    /// # Errors
    /// When it can be no path.
    pub(crate) fn path(&self, text: &str) -> Result<String, FileError> {
        normal_path(&self.seen.user.home, text)
    }

    /// Looks at a file. A link is described itself, with the kind of its target.
    ///
    /// # Errors
    /// When there is no such file, or it cannot be reached.
    pub(crate) fn entry(&self, path: &str) -> Result<EntryInfo, FileError> {
        let entry = self.workspace.entry(path)?;
        Ok(self.names().describe(path, &entry))
    }

    /// Lists a directory down to a depth, each directory before what is in it, by name. A link to a directory is followed only at the
    /// top.
    ///
    /// # Errors
    /// When it is no directory, cannot be read, or has too many entries.
    pub(crate) fn list(&self, path: &str, depth: u32) -> Result<Vec<EntryInfo>, FileError> {
        let names = self.names();
        let mut found = Vec::new();
        let mut waiting = self.children(path)?;
        while let Some((child, entry, level)) = waiting.pop() {
            if found.len() >= MOST_ENTRIES {
                return Err(FileError::System { path: path.to_owned(), errno: Errno::OVERFLOW });
            }
            found.push(names.describe(&child, &entry));
            let is_directory = FileType::from_raw_mode(entry.stat.st_mode) == FileType::Directory;
            if is_directory && level < depth {
                match self.children(&child) {
                    Ok(inner) => {
                        waiting.extend(inner.into_iter().map(|(path, entry, _)| (path, entry, level + 1)));
                    }
                    // It is gone by now, or may not be read.
                    Err(FileError::System {
                        errno: Errno::NOENT | Errno::NOTDIR | Errno::ACCESS, ..
                    }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    /// The entries of a directory, the last first, each with its path and a level.
    fn children(&self, path: &str) -> Result<Vec<(String, Entry, u32)>, FileError> {
        let page = self.workspace.entries(path, None, MOST_ENTRIES)?;
        if page.next.is_some() {
            return Err(FileError::System { path: path.to_owned(), errno: Errno::OVERFLOW });
        }
        let named = |entry: Entry| (paths::joined(path, &paths::text_of(&entry.name)), entry, 1);
        let mut found: Vec<_> = page.entries.into_iter().map(named).collect();
        found.reverse();
        Ok(found)
    }

    /// Makes a directory with those above it. Returns what is there already.
    ///
    /// # Errors
    /// When one cannot be made; those above it stay.
    pub(crate) fn make_directory(&self, path: &str) -> Result<Option<Occupied>, FileError> {
        let occupied = self.workspace.at(path, OFlags::PATH, Mode::empty());
        match occupied.map(rustix::fs::fstat) {
            Ok(stat) => {
                let is_directory =
                    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
                return Ok(Some(if is_directory { Occupied::Directory } else { Occupied::Other }));
            }
            Err(FileError::System { errno: Errno::NOENT, .. }) => {}
            Err(error) => return Err(error),
        }
        self.make_parents(path)?;
        match self.workspace.make_directory(path, DIRECTORY_MODE) {
            // Another one made it meanwhile.
            Err(FileError::System { errno: Errno::EXIST, .. }) => Ok(Some(Occupied::Directory)),
            made => made.map(|()| None),
        }
    }

    /// Makes the missing directories above a path.
    ///
    /// # Errors
    /// When one cannot be made; those above it stay.
    pub(crate) fn make_parents(&self, path: &str) -> Result<(), FileError> {
        self.workspace.make_directories(parent_of(path), DIRECTORY_MODE)
    }

    /// Moves a file or directory. What is at the new path is replaced, and the directories above it are made.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub(crate) fn move_to(&self, from: &str, to: &str) -> Result<(), FileError> {
        self.workspace.entry(from)?;
        self.make_parents(to)?;
        self.workspace.move_entry(from, to, true)
    }

    /// Removes a file, or a directory with all that is in it. A missing one is no error.
    ///
    /// # Errors
    /// When it cannot be removed; a part of a directory may be gone.
    pub(crate) fn remove(&self, path: &str) -> Result<(), FileError> {
        match self.workspace.remove_entry(path, true) {
            Err(FileError::System { errno: Errno::NOENT, .. }) => Ok(()),
            removed => removed,
        }
    }

    fn names(&self) -> names::Names<'_> {
        names::Names::new(&self.workspace, &self.seen)
    }
}

/// The files below a directory of the host, as if it was the root of a jail.
#[cfg(test)]
pub(crate) fn of_test(top: &std::path::Path) -> Seen {
    let user = User { name: "user".to_owned(), home: "/home/user".to_owned(), account: None };
    Seen { root: Root::of_directory(top).unwrap(), users: IdMap::all(), groups: IdMap::all(), user }
}

#[cfg(test)]
mod tests;
