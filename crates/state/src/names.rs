//! Names of sandboxes: a name belongs to at most one living sandbox. Each tenant of a server has names of its own, which are
//! held as `TENANT~NAME`.
//!
//! `<root>/names/<name>` is a file that holds an id. The processes that supervise the sandbox lock the file (flock(2)):
//! a free lock is a free name, however the processes died.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use penfold_teardown::Resource;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::clear::list_entries;
use crate::id::Id;
use crate::lock;
use crate::record::{StateError, open_or_make, open_private};

pub use crate::name_text::{
    NAME_RULE, TENANT, held_name, is_held_name, is_label_key, is_label_value, is_name, name_in, tenant_in,
    tenant_of,
};

/// The directory of names below a state root.
pub const NAMES: &str = "names";
/// The number of tries to create a file that its last holder has just removed.
const TRIES: u32 = 100;

/// A name, held for as long as this value, or the copy of it in a forked process, lives.
#[derive(Debug)]
pub struct NameClaim {
    dir: OwnedFd,
    file: File,
    text: String,
}

/// Why a name is not available.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// Another living sandbox has the name.
    #[error("the name `{name}` is taken by sandbox {holder}")]
    Taken {
        /// The name.
        name: String,
        /// The id of that sandbox; `?` when it cannot be read.
        holder: String,
    },
    /// The directory of names cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file of the name cannot be made or locked.
    #[error("cannot take the name `{name}`")]
    Io {
        /// The name.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

/// Takes a name for a sandbox.
///
/// # Errors
/// When a living sandbox has the name, or the file cannot be made.
pub fn take_name(root: &Path, name: &str, id: &Id) -> Result<NameClaim, NameError> {
    let mut taken = claim_name(root, name)?;
    if let Err(source) = taken.give(&id.short()) {
        let _ = taken.release(false);
        return Err(NameError::Io { name: name_in(name).to_owned(), source });
    }
    Ok(taken)
}

/// Takes a name, and leaves its file as it is: the caller may look first at the sandbox that had the name last.
///
/// # Errors
/// When the name is held, or the file cannot be made.
pub fn claim_name(root: &Path, name: &str) -> Result<NameClaim, NameError> {
    let io = |source: io::Error| NameError::Io { name: name_in(name).to_owned(), source };
    if !is_held_name(name) {
        return Err(io(io::ErrorKind::InvalidInput.into()));
    }
    let top = open_or_make(rustix::fs::CWD, root)?;
    let dir = open_or_make(top.as_fd(), Path::new(NAMES))?;
    for _ in 0..TRIES {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| io(errno.into()))?;
        if !lock::hold_lock(&file).map_err(io)? {
            let holder = read_id(&mut File::from(file)).unwrap_or_else(|| "?".to_owned());
            return Err(NameError::Taken { name: name_in(name).to_owned(), holder });
        }
        // The last holder may have removed the file between the open and the lock.
        if is_same(&dir, name, &file).map_err(io)? {
            return Ok(NameClaim { dir, file: File::from(file), text: name.to_owned() });
        }
    }
    Err(io(io::ErrorKind::TimedOut.into()))
}

/// Returns the living sandbox that has a name; `None` when the name is free.
///
/// # Errors
/// When the holder cannot be determined.
pub fn name_holder(root: &Path, name: &str) -> io::Result<Option<String>> {
    let Some(file) = open(root, name)? else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => Ok(read_id(&mut File::from(file))),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the sandbox that has a name or had it last, if the file of the name still exists.
///
/// # Errors
/// When the holder cannot be determined.
pub fn last_holder(root: &Path, name: &str) -> io::Result<Option<String>> {
    Ok(open(root, name)?.and_then(|file| read_id(&mut File::from(file))))
}

/// Opens the file of a name for reading.
fn open(root: &Path, name: &str) -> io::Result<Option<OwnedFd>> {
    if !is_held_name(name) {
        return Ok(None);
    }
    let path: PathBuf = root.join(NAMES);
    let dir = match open_private(rustix::fs::CWD, &path) {
        Ok(dir) => dir,
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io::Error::other(error)),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn read_id(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    Some(text).filter(|text| Id::is_short(text))
}

fn is_same(dir: &OwnedFd, name: &str, file: &impl AsFd) -> io::Result<bool> {
    let named = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        named => named?,
    };
    let held = rustix::fs::fstat(file)?;
    Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino))
}

/// Returns the id in the file of a free name, empty without an id; `None` for a name that is held, or another user's
/// file.
pub fn free_name(dir: &OwnedFd, name: &str) -> Option<String> {
    let file = open_name(dir, name)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
    Some(id_in(&file))
}

fn open_name(dir: &OwnedFd, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    (ours && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(file)
}

fn id_in(file: impl AsFd) -> String {
    let mut text = [0_u8; 64];
    let length = rustix::io::pread(file, &mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(text.get(..length).unwrap_or_default()).unwrap_or_default();
    if Id::is_short(text) { text.to_owned() } else { String::new() }
}

/// Removes the names of a sandbox that has no record.
pub fn forget_names_of(root: &Path, id: &str) -> io::Result<()> {
    let dir = match open_private(rustix::fs::CWD, &root.join(NAMES)) {
        Ok(dir) => dir,
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    for (name, _) in list_entries(dir.as_fd())? {
        let Ok(name) = name.to_str() else { continue };
        if open_name(&dir, name).is_some_and(|file| id_in(&file) == id) {
            forget_name(root, name, id)?;
        }
    }
    Ok(())
}

/// Removes the file of a name, under its lock, unless another sandbox has taken the name.
///
/// The file must still hold `id`.
pub fn forget_name(root: &Path, name: &str, id: &str) -> io::Result<()> {
    let dir = match open_private(rustix::fs::CWD, &root.join(NAMES)) {
        Ok(dir) => dir,
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    let Some(file) = open_name(&dir, name) else { return Ok(()) };
    // The next holder has the name.
    if !lock::hold_lock(&file)? {
        return Ok(());
    }
    if id_in(&file) != id {
        return Ok(());
    }
    if !is_same(&dir, name, &file)? {
        return Ok(());
    }
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl NameClaim {
    /// Returns the id of the sandbox that had the name last, if the file has one.
    pub fn last_holder(&self) -> Option<String> {
        Some(id_in(&self.file)).filter(|id| !id.is_empty())
    }

    /// Writes the id of the sandbox that has the name now.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn give(&mut self, id: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(id.as_bytes(), 0)
    }
}

impl Resource for NameClaim {
    fn describe(&self) -> String {
        format!("name {}", self.text)
    }

    /// Removes the file. The name is free once the last holder has exited.
    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if is_same(&self.dir, &self.text, &self.file)? {
            match rustix::fs::unlinkat(&self.dir, &self.text, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_names_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let ids: Vec<Id> = (0..3).map(|_| Id::new().unwrap()).collect();
        let held = [held_name(None, "web"), held_name(Some("alice"), "web"), held_name(Some("bob"), "web")];
        assert_eq!(held, ["web", "alice~web", "bob~web"]);
        let _claims: Vec<NameClaim> =
            held.iter().zip(&ids).map(|(name, id)| take_name(&root, name, id).unwrap()).collect();
        for (name, id) in held.iter().zip(&ids) {
            assert_eq!(name_holder(&root, name).unwrap(), Some(id.short()));
        }
        match take_name(&root, "alice~web", &ids[0]) {
            Err(NameError::Taken { name, holder }) => {
                assert_eq!((name.as_str(), holder), ("web", ids[1].short()));
            }

            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_belongs_to_one_at_a_time_and_is_free_again_after() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let (one, two) = (Id::new().unwrap(), Id::new().unwrap());
        let mut taken = take_name(&root, "web", &one).unwrap();
        assert_eq!(name_holder(&root, "web").unwrap(), Some(one.short()));
        match take_name(&root, "web", &two) {
            Err(NameError::Taken { holder, .. }) => assert_eq!(holder, one.short()),
            other => panic!("{other:?}"),
        }
        taken.release(false).unwrap();
        drop(taken);
        assert_eq!(name_holder(&root, "web").unwrap(), None);
        let died = take_name(&root, "web", &two).unwrap();
        drop(died);
        assert_eq!(name_holder(&root, "web").unwrap(), None, "a file that nobody locks is nobody's");
        take_name(&root, "web", &one).unwrap();
    }

    #[test]
    fn a_claim_shows_the_last_holder_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let (one, two) = (Id::new().unwrap().short(), Id::new().unwrap().short());
        let mut claimed = claim_name(&root, "web").unwrap();
        assert_eq!(claimed.last_holder(), None);
        assert!(matches!(claim_name(&root, "web"), Err(NameError::Taken { .. })));
        claimed.give(&one).unwrap();
        drop(claimed);
        drop(claim_name(&root, "web").unwrap());
        let mut claimed = claim_name(&root, "web").unwrap();
        assert_eq!(claimed.last_holder(), Some(one));
        claimed.give(&two).unwrap();
        assert_eq!(claimed.last_holder(), Some(two.clone()));
        drop(claimed);
        forget_name(&root, "web", &two).unwrap();
        assert_eq!(last_holder(&root, "web").unwrap(), None);
    }

    #[test]
    fn what_could_leave_the_directory_is_no_name() {
        for text in ["", ".", "..", "a/b", "-x", ".hidden", "a b", "é"] {
            assert!(!is_name(text), "{text:?}");
        }
        assert!(is_name("web-1.2_b"));
    }
}
