//! The record of one sandbox on disk: made before anything else, removed last.
//!
//! `<root>/sandboxes/<id>/` is private to its user. The supervisor's processes lock the directory itself (flock(2))
//! while one of them lives. A free lock on a record with an `intent.json` means that the sandbox has no supervisor. A
//! lock file could be deleted while the record exists; the directory cannot.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penfold_teardown::Resource;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::clear::{clear_directory, list_entries};
use crate::files::{COUNTED, Files};
use crate::id::Id;
use crate::json::REPORT;
use crate::lock;
use crate::sweep_turn;

use crate::intent::{INTENT, Intent};
pub use crate::json::SCHEMA;

/// A link to the leaf, in a record that is kept after the end; without a leaf its target does not exist.
pub(crate) const LEAF: &str = "leaf";
const SANDBOXES: &str = "sandboxes";
const PRIVATE: Mode = Mode::RWXU;

/// Why a record is not available.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A directory cannot be made, opened or locked, or a file not written.
    #[error("cannot {act} `{path}`")]
    Io {
        /// The operation.
        act: &'static str,
        /// The path of the file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory of the state is not private to this user.
    #[error("`{path}` belongs to user {owner}, not to {user}", path = path.display())]
    Stranger {
        /// The path of the directory.
        path: PathBuf,
        /// The owner of the directory.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
}

impl StateError {
    /// Returns the kind of the cause: what belongs to another user is not permitted.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            StateError::Io { source, .. } => source.kind(),
            StateError::Stranger { .. } => io::ErrorKind::PermissionDenied,
        }
    }

    /// Tells whether there is no such directory or file.
    pub(crate) fn is_missing(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    fn io<'a>(act: &'static str, path: &'a Path) -> impl FnOnce(rustix::io::Errno) -> StateError + use<'a> {
        move |errno| StateError::Io { act, path: path.to_owned(), source: errno.into() }
    }
}

/// All records of one user.
#[derive(Debug, Clone)]
pub struct Registry {
    path: PathBuf,
    dir: Arc<OwnedFd>,
}

impl Registry {
    /// Opens the records below `root`, and makes missing directories.
    ///
    /// # Errors
    /// When they cannot be made, or are not private to this user.
    pub fn open(root: &Path) -> Result<Registry, StateError> {
        // Another user could swap a root that they made first: check the root before anything is made in it.
        let user = rustix::process::geteuid().as_raw();
        let top = open_or_make_of(rustix::fs::CWD, root, user)?;
        let dir = open_or_make_of(top.as_fd(), Path::new(SANDBOXES), user)?;
        Ok(Registry { path: root.join(SANDBOXES), dir: Arc::new(dir) })
    }

    /// Opens the records below `root` if there are any.
    ///
    /// # Errors
    /// When they cannot be opened, or are not private to this user.
    pub fn open_existing(root: &Path) -> Result<Option<Registry>, StateError> {
        let opened = open_private(rustix::fs::CWD, root)
            .and_then(|top| open_private(top.as_fd(), Path::new(SANDBOXES)));
        match opened {
            Ok(dir) => Ok(Some(Registry { path: root.join(SANDBOXES), dir: Arc::new(dir) })),
            Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the record of a new sandbox and locks it.
    ///
    /// # Errors
    /// When the record cannot be written; nothing of it is left then.
    pub fn reserve(&self, intent: &Intent) -> Result<Record, StateError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_reserve(intent) {
                // Another process has just probed whether the maker of the empty directory is dead, and may have
                // removed it.
                Err(error) if tries < lock::TRIES && (is_looked_at(&error) || error.is_missing()) => {
                    lock::pause_for_lock(tries);
                }
                Err(error) => {
                    // Remove only an empty directory: one with an intent belongs to another process.
                    let _ = rustix::fs::unlinkat(&self.dir, intent.id.short(), AtFlags::REMOVEDIR);
                    return Err(error);
                }
                Ok(record) => return Ok(record),
            }
        }
    }

    fn try_reserve(&self, intent: &Intent) -> Result<Record, StateError> {
        let name = intent.id.short();
        let path = self.path.join(&name);
        match rustix::fs::mkdirat(&self.dir, &name, PRIVATE) {
            Ok(()) => {}
            // The directory is from an earlier try.
            Err(Errno::EXIST) if self.is_bare(&name) => {}
            Err(errno) => return Err(StateError::io("make", &path)(errno)),
        }
        penfold_sys::crash_point!("reserving");
        let written = self.write_intent(&name, &path, intent);
        if written.as_ref().is_err_and(|error| !is_looked_at(error)) {
            let _ = remove_entry(&self.dir, &name);
        }
        Ok(Record { registry: Arc::clone(&self.dir), files: Files { dir: Arc::new(written?), name, path } })
    }

    fn write_intent(&self, name: &str, path: &Path, intent: &Intent) -> Result<OwnedFd, StateError> {
        let dir = open_private(self.dir.as_fd(), Path::new(name))?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)
            .map_err(StateError::io(LOCK, path))?;
        // Write the intent only under the lock: an intent with a free lock means a sandbox without a supervisor.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, INTENT, flags, Mode::RUSR | Mode::WUSR)
            .map_err(StateError::io("write", path))?;
        let text = serde_json::to_vec(intent).map_err(io::Error::other);
        text.and_then(|text| File::from(file).write_all(&text)).map_err(|source| StateError::Io {
            act: "write",
            path: path.join(INTENT),
            source,
        })?;
        if intent.detached.is_some() {
            let leaf = intent.leaf.as_deref().unwrap_or(Path::new("none"));
            rustix::fs::symlinkat(leaf, &dir, LEAF).map_err(StateError::io("write", &path.join(LEAF)))?;
        }
        Ok(dir)
    }

    fn is_bare(&self, name: &str) -> bool {
        open_private(self.dir.as_fd(), Path::new(name))
            .is_ok_and(|dir| list_entries(dir.as_fd()).is_ok_and(|entries| entries.is_empty()))
    }

    /// Returns the names of all records.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(list_entries(self.dir.as_fd())?
            .into_iter()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| Id::is_short(name))
            .collect())
    }

    /// Returns the names of the records that the next sweep reads, at most this number; `own` is skipped.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn next_names(&self, own: &str, most: usize) -> io::Result<Vec<String>> {
        sweep_turn::next_names(self.dir.as_fd(), own, most)
    }

    /// Takes over the record of an orphan. Its sandbox must have no supervisor and no verified end.
    ///
    /// Returns `None` when the record has a supervisor, is gone, is still being made, or is kept only for its log and
    /// exit code.
    ///
    /// # Errors
    /// When the record cannot be opened or belongs to another user.
    pub fn take_orphan(&self, name: &str) -> Result<Option<Record>, StateError> {
        if self.seems_ended(name) {
            return Ok(None);
        }
        // Only under the lock it is certain that the sandbox has not ended meanwhile.
        Ok(self.take(name)?.filter(|record| !record.files.has_ended()))
    }

    /// Tells whether a record has a report and a link to a leaf that does not exist.
    ///
    /// The check opens nothing, because each command makes it for the records of many ended sandboxes.
    pub fn seems_ended(&self, name: &str) -> bool {
        let look = |file, flags| rustix::fs::statat(&self.dir, Path::new(name).join(file), flags).err();
        look(REPORT, AtFlags::SYMLINK_NOFOLLOW).is_none()
            && look(LEAF, AtFlags::SYMLINK_NOFOLLOW).is_none()
            && look(LEAF, AtFlags::empty()) == Some(Errno::NOENT)
    }

    /// Takes over a record without a supervisor, ended or not.
    ///
    /// Returns `None` when the record has a supervisor, is gone, or is still being made.
    ///
    /// # Errors
    /// When the record cannot be opened or belongs to another user.
    pub fn take(&self, name: &str) -> Result<Option<Record>, StateError> {
        let Some(files) = self.look(name)? else { return Ok(None) };
        match rustix::fs::flock(&files.dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StateError::io("lock", &files.path)(errno)),
        }
        match rustix::fs::statat(&files.dir, INTENT, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(Errno::NOENT) => {
                // The maker died, or has not locked the directory yet and will make it anew. Nothing was started for
                // the record. If the directory is not empty, the intent was lost.
                match rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                    _ => return Ok(None),
                }
            }
            Err(errno) => return Err(StateError::io("look at", &files.path)(errno)),
        }
        Ok(Some(Record { registry: Arc::clone(&self.dir), files }))
    }

    /// Takes over the record of an ended sandbox for its next life, or that of a life of which nothing is left.
    ///
    /// Returns `None` when another process holds the lock, or the record is gone.
    ///
    /// # Errors
    /// When the record cannot be opened or locked, or belongs to another user.
    pub fn resume(&self, name: &str) -> Result<Option<Record>, StateError> {
        let Some(files) = self.look(name)? else { return Ok(None) };
        let is_held = lock::hold_lock(&files.dir).map_err(|source| StateError::Io {
            act: LOCK,
            path: files.path.clone(),
            source,
        })?;
        let is_there =
            rustix::fs::fstat(&files.dir).map_err(StateError::io("look at", &files.path))?.st_nlink > 0;
        Ok((is_held && is_there).then(|| Record { registry: Arc::clone(&self.dir), files }))
    }

    /// As [`Registry::resume`], with the locked directory of the record that the last process of the former life has passed on.
    ///
    /// # Errors
    /// Those of [`Registry::resume`].
    pub fn resume_with(&self, name: &str, dir: OwnedFd) -> Result<Option<Record>, StateError> {
        let Some(files) = self.look(name)? else { return Ok(None) };
        let place = |dir: BorrowedFd<'_>| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
        let is_same =
            matches!((place(files.dir()), place(dir.as_fd())), (Ok(own), Ok(other)) if own == other);
        // Of the former life, or free: the lock is the same for all copies of a descriptor.
        if !is_same || rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        Ok(Some(Record { registry: Arc::clone(&self.dir), files: Files { dir: Arc::new(dir), ..files } }))
    }

    /// Opens the files of a record for reading, with or without a supervisor; `None` when there is no such record.
    ///
    /// # Errors
    /// When the record cannot be opened or belongs to another user.
    pub fn look(&self, name: &str) -> Result<Option<Files>, StateError> {
        if !Id::is_short(name) {
            return Ok(None);
        }
        match open_private(self.dir.as_fd(), Path::new(name)) {
            Ok(dir) => {
                Ok(Some(Files { dir: Arc::new(dir), name: name.to_owned(), path: self.path.join(name) }))
            }
            Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Restores the owner's access to a record whose permissions were removed.
    ///
    /// # Errors
    /// When there is no such record, or it belongs to another user.
    pub fn open_to_owner(&self, name: &str) -> io::Result<()> {
        if !Id::is_short(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
        if rustix::fs::fstat(&dir)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // fchmod(2) refuses a descriptor that was opened with O_PATH.
        Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", dir.as_raw_fd()), PRIVATE)?)
    }

    /// Tells whether there are so many records that a look at each is worth a thread. An estimate: not each file system counts the
    /// directories in a directory.
    pub fn is_crowded(&self) -> bool {
        rustix::fs::fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 100)
    }

    /// Tells whether there is a record of this name, with or without a supervisor.
    pub fn holds(&self, name: &str) -> bool {
        !matches!(rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }
}

impl AsFd for Registry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// The record of one sandbox, locked for as long as this value, or the copy of it in a forked process, lives.
#[derive(Debug)]
pub struct Record {
    registry: Arc<OwnedFd>,
    files: Files,
}

impl Record {
    /// Returns the files of the record.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the short id.
    pub fn name(&self) -> &str {
        &self.files.name
    }

    /// Reads the intent.
    ///
    /// # Errors
    /// When the intent is missing, truncated, or of a newer version.
    pub fn intent(&self) -> io::Result<Intent> {
        self.files.intent()
    }
}

impl Resource for Record {
    fn describe(&self) -> String {
        format!("record {}", self.files.path.display())
    }

    fn is_record(&self) -> bool {
        true
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Usually the record has only one file left. A command of the same user may have put anything there. A detached
        // sandbox's record has more files, and keeps its intent and report until the rest is gone.
        let has = |name| rustix::fs::statat(&self.files.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if ![LEAF, REPORT, COUNTED].into_iter().any(has)
            && rustix::fs::unlinkat(&self.files.dir, INTENT, AtFlags::empty()).is_ok()
            && rustix::fs::unlinkat(&self.registry, &self.files.name, AtFlags::REMOVEDIR).is_ok()
            || rustix::fs::fstat(&self.files.dir)?.st_nlink == 0
        {
            return Ok(());
        }
        // A process that dies here leaves the record of an ended sandbox.
        clear_directory(self.files.dir.as_fd(), &[INTENT, REPORT])?;
        gone(rustix::fs::unlinkat(&self.registry, &self.files.name, AtFlags::REMOVEDIR))?;
        Ok(())
    }
}

/// The operation that takes the lock, as errors name it.
const LOCK: &str = "lock";

/// Tells whether a new record could not be locked because another process probes it.
fn is_looked_at(error: &StateError) -> bool {
    matches!(error, StateError::Io { act: LOCK, source, .. } if source.kind() == io::ErrorKind::WouldBlock)
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn remove_entry(dir: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    if let Ok(record) = open_private(dir.as_fd(), Path::new(name)) {
        gone(rustix::fs::unlinkat(&record, INTENT, AtFlags::empty()))?;
    }
    gone(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
}

pub(crate) fn open_or_make(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StateError> {
    open_or_make_of(at, path, rustix::process::geteuid().as_raw())
}

fn open_or_make_of(at: BorrowedFd<'_>, path: &Path, user: u32) -> Result<OwnedFd, StateError> {
    match open_private_of(at, path, user) {
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            match rustix::fs::mkdirat(at, path, PRIVATE) {
                Ok(()) | Err(Errno::EXIST) => open_private_of(at, path, user),
                Err(errno) => Err(StateError::io("make", path)(errno)),
            }
        }
        other => other,
    }
}

/// Opens a directory without following a link in its last part, and only if it belongs to this user.
pub fn open_private(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StateError> {
    open_private_of(at, path, rustix::process::geteuid().as_raw())
}

fn open_private_of(at: BorrowedFd<'_>, path: &Path, user: u32) -> Result<OwnedFd, StateError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(at, path, flags, Mode::empty()).map_err(|errno| {
        // open(2) reports the same error for a link as for a file: ENOTDIR.
        let link = errno == Errno::NOTDIR
            && rustix::fs::statat(at, path, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        let why =
            || io::Error::new(io::ErrorKind::NotADirectory, "it is a symbolic link, which is not followed");
        let source = if link { why() } else { errno.into() };
        StateError::Io { act: "open", path: path.to_owned(), source }
    })?;
    let owner = rustix::fs::fstat(&dir).map_err(StateError::io("look at", path))?.st_uid;
    if owner == user { Ok(dir) } else { Err(StateError::Stranger { path: path.to_owned(), owner, user }) }
}
