//! A private directory that goes with its sandbox.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clear::{self, ClearFailure, clear_flagged};
use crate::deadline::Pauses;
use crate::error::{ResourceError, failed_step};
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;
use crate::{holders, mount_table};

/// The attribute with the mark; the second for file systems that take only such ones.
const ATTRIBUTES: [&str; 2] = ["user.penfold", "trusted.penfold"];

/// The time to wait for the lock of a directory that was just made.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// A directory with mode 0700.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The absolute path.
    #[serde(with = "penfold_process::path_text")]
    pub path: PathBuf,
    /// Whether the directory stays after the sandbox, with everything in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// Whether the parent is made first if it is missing. Other sandboxes use the parent, too, so it stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_shared_parent: bool,
}

/// The owner that a directory's mark names.
enum DirectoryMark {
    /// This text.
    Text(Vec<u8>),
    /// The file system takes attributes, and there is none.
    Missing,
    /// The file system takes no attributes.
    Unsupported,
}

impl Directory {
    /// Plans a directory that is removed with the sandbox.
    pub(crate) fn at(path: PathBuf) -> Directory {
        Directory { path, keep: false, in_shared_parent: false }
    }

    pub(crate) fn describe(&self) -> String {
        format!("directory `{}`", self.path.display())
    }

    pub(crate) fn check(&self) -> Result<(), ResourceError> {
        match rustix::fs::lstat(&self.path) {
            Ok(_) => Err(ResourceError::Taken { resource: format!("`{}`", self.path.display()) }),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed_step(|| format!("look for {}", self.describe()))(errno)),
        }
    }

    pub(crate) fn create(&self, owner: &ResourceOwner) -> Result<(), ResourceError> {
        let made = self.make(owner);
        if made.is_err() {
            let _ = self.remove_unfinished(owner);
        }
        made.map_err(failed_step(|| format!("make {}", self.describe())))
    }

    /// Makes the directory under another name and renames it when it has its mark: no directory is ever without.
    fn make(&self, owner: &ResourceOwner) -> io::Result<()> {
        let unfinished = self.unfinished(owner)?;
        if self.in_shared_parent {
            let parent = unfinished.parent().ok_or(Errno::INVAL)?;
            match rustix::fs::mkdir(parent, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        rustix::fs::mkdir(&unfinished, Mode::RWXU)?;
        penfold_sys::crash_point!("directory-made");
        let dir = open(&unfinished)?;
        // The umask may have taken bits away.
        rustix::fs::fchmod(&dir, Mode::RWXU)?;
        if !self.keep {
            mark(dir.as_fd(), &owner.mark())?;
        }
        penfold_sys::crash_point!("directory-marked");
        rustix::fs::renameat_with(CWD, &unfinished, CWD, &self.path, RenameFlags::NOREPLACE)?;
        penfold_sys::crash_point!("directory-named");
        Ok(())
    }

    fn unfinished(&self, owner: &ResourceOwner) -> io::Result<PathBuf> {
        let parent = self.path.parent().ok_or(Errno::INVAL)?;
        Ok(parent.join(format!(".{}-new", owner.name())))
    }

    /// Nothing was ever put into it.
    fn remove_unfinished(&self, owner: &ResourceOwner) -> io::Result<()> {
        match rustix::fs::rmdir(self.unfinished(owner)?) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        if self.keep {
            return Ok(ResourcePresence::Absent);
        }
        let look = || format!("look for {}", self.describe());
        Ok(match self.open_ours(owner).map_err(failed_step(look))? {
            Ok(None) if self.unfinished(owner).is_ok_and(|path| rustix::fs::lstat(path).is_ok()) => {
                ResourcePresence::Ours { held_by: Vec::new() }
            }
            Ok(None) => ResourcePresence::Absent,
            Ok(Some(_)) => ResourcePresence::Ours { held_by: holders::of_directory(&self.path) },
            Err(why) => ResourcePresence::Foreign { why },
        })
    }

    pub(crate) fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        self.release_held(None, owner, until)
    }

    /// Removes the directory that is held open, or the one of this path.
    pub(crate) fn release_held(
        &self,
        held: Option<BorrowedFd<'_>>,
        owner: &ResourceOwner,
        until: Instant,
    ) -> Result<(), ResourceError> {
        self.remove_unfinished(owner).map_err(failed_step(|| format!("remove {}", self.describe())))?;
        if self.keep {
            return Ok(());
        }
        let look = || format!("look for {}", self.describe());
        let opened = match held {
            Some(_) => None,
            None => self
                .open_ours(owner)
                .map_err(failed_step(look))?
                .map_err(|why| ResourceError::Foreign { resource: self.describe(), why })?,
        };
        let Some(dir) = held.or(opened.as_ref().map(AsFd::as_fd)) else { return Ok(()) };
        penfold_sys::crash_point!("directory-found");
        remove_directory(&self.path, dir, until)?;
        // The command may have moved the directory and put something else in its place.
        match rustix::fs::lstat(&self.path) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(failed_step(look)(errno)),
            Ok(_) => {
                let why = "something else has taken the place of the directory".to_owned();
                Err(ResourceError::Foreign { resource: self.describe(), why })
            }
        }
    }

    /// Opens and locks the directory; `None` if it is kept. A rename then does not save it from its removal, and commands that
    /// see neither record nor processes of the sandbox see that it is alive.
    pub(crate) fn hold(&self, owner: &ResourceOwner) -> Option<OwnedFd> {
        let dir = if self.keep { None } else { self.open_ours(owner).ok()?.ok()? };
        if let Some(dir) = &dir {
            // A look of another command holds the lock for a moment only. A file system without locks goes without.
            let mut pauses = Pauses::until(Instant::now() + LOCK_PATIENCE);
            while rustix::fs::flock(dir, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
                && pauses.pause()
            {}
        }
        dir
    }

    /// Opens the directory if it is ours; the inner error is the evidence that it is not.
    fn open_ours(&self, owner: &ResourceOwner) -> io::Result<Result<Option<OwnedFd>, String>> {
        let dir = match open(&self.path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Ok(None)),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Err("it is no directory".to_owned())),
            Err(errno) => return Err(errno.into()),
        };
        let user = rustix::fs::fstat(&dir)?.st_uid;
        Ok(match read_mark(dir.as_fd())? {
            DirectoryMark::Text(text) if text == owner.mark().as_bytes() => Ok(Some(dir)),
            DirectoryMark::Text(text) => Err(format!("its owner is `{}`", String::from_utf8_lossy(&text))),
            DirectoryMark::Missing => Err("it has no mark".to_owned()),
            DirectoryMark::Unsupported if user == rustix::process::geteuid().as_raw() => Ok(Some(dir)),
            DirectoryMark::Unsupported => Err(format!("it belongs to the user {user}")),
        })
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn mark(dir: BorrowedFd<'_>, text: &str) -> Result<(), Errno> {
    for attribute in ATTRIBUTES {
        match rustix::fs::fsetxattr(dir, attribute, text.as_bytes(), XattrFlags::CREATE) {
            Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            other => return other,
        }
    }
    Ok(())
}

fn read_mark(dir: BorrowedFd<'_>) -> Result<DirectoryMark, Errno> {
    let mut supported = false;
    for attribute in ATTRIBUTES {
        let mut text = [0_u8; 256];
        match rustix::fs::fgetxattr(dir, attribute, &mut text) {
            Ok(length) => return Ok(DirectoryMark::Text(text.get(..length).unwrap_or_default().to_vec())),
            // Without privilege, every file system says this of `trusted.`.
            Err(Errno::NODATA) => {
                supported |= attribute == ATTRIBUTES[0] || rustix::process::geteuid().is_root();
            }
            Err(Errno::OPNOTSUPP) => {}
            Err(Errno::RANGE) => return Ok(DirectoryMark::Text(b"...".to_vec())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(if supported { DirectoryMark::Missing } else { DirectoryMark::Unsupported })
}

/// Returns the mark of a directory; `None` if there is none, or none that can be read.
pub(crate) fn mark_at(path: &Path) -> Option<Vec<u8>> {
    ATTRIBUTES.iter().find_map(|attribute| {
        let mut text = [0_u8; 256];
        let length = rustix::fs::lgetxattr(path, *attribute, &mut text).ok()?;
        text.get(..length).map(<[u8]>::to_vec)
    })
}

/// Removes a directory that is held open, wherever a rename has put it, with everything in it.
///
/// # Errors
/// When something is left at the deadline, with the processes that hold it.
pub fn remove_directory(path: &Path, dir: BorrowedFd<'_>, until: Instant) -> Result<(), ResourceError> {
    remove_if(path, dir, until, &|_| true)
}

/// Removes a directory that is held open, as long as it is at this path: nobody has moved it to save it.
///
/// # Errors
/// When something is left at the deadline, with the processes that hold it.
pub fn remove_directory_in_place(
    path: &Path,
    dir: BorrowedFd<'_>,
    until: Instant,
) -> Result<(), ResourceError> {
    remove_if(path, dir, until, &|place| place == path)
}

fn remove_if(
    path: &Path,
    dir: BorrowedFd<'_>,
    until: Instant,
    may: &dyn Fn(&Path) -> bool,
) -> Result<(), ResourceError> {
    let mut pauses = Pauses::until(until);
    loop {
        let failure = match remove_once(dir, may) {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if pauses.pause() {
            continue;
        }
        let held_by = holders::of_directory(path);
        let path =
            if failure.path.as_os_str().is_empty() { path.to_owned() } else { path.join(&failure.path) };
        return Err(ResourceError::Remains {
            path: path.display().to_string(),
            held_by,
            source: failure.source,
        });
    }
}

fn remove_once(dir: BorrowedFd<'_>, may: &dyn Fn(&Path) -> bool) -> Result<(), ClearFailure> {
    let Some(path) = place(dir)? else { return Ok(()) };
    if !may(&path) {
        return Err(Errno::STALE.into());
    }
    // Most directories are empty. Nothing can be mounted in such a one, and rmdir(2) refuses one on which something is mounted.
    if remove_empty(dir) == Ok(()) {
        return Ok(());
    }
    mount_table::detach_in(&path)?;
    if rustix::fs::fchmod(dir, Mode::RWXU).is_err() {
        clear::unflag_open(dir);
    }
    clear_flagged(dir)?;
    penfold_sys::crash_point!("directory-cleared");
    let mut result = remove_empty(dir);
    if result == Err(Errno::PERM) && clear::unflag_open(dir) {
        result = remove_empty(dir);
    }
    result.map_err(ClearFailure::from)
}

/// Removes the directory under its present name. rmdir(2) removes nothing that is not an empty directory.
fn remove_empty(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let Some(path) = place(dir)? else { return Ok(()) };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let parent = open(parent)?;
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    let (found, own) =
        (rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?, rustix::fs::fstat(dir)?);
    if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
        return Err(Errno::AGAIN);
    }
    rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR)?;
    // The name was that of another empty directory if ours still has one.
    if rustix::fs::fstat(dir)?.st_nlink == 0 { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Returns the present path of a directory; `None` once it is removed.
fn place(dir: BorrowedFd<'_>) -> Result<Option<PathBuf>, Errno> {
    if rustix::fs::fstat(dir)?.st_nlink == 0 {
        return Ok(None);
    }
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", dir.as_raw_fd()), Vec::new())?;
    Ok(Some(PathBuf::from(OsString::from_vec(path.into_bytes()))))
}
