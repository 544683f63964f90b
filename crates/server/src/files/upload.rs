//! Writes the body of a request to a file that appears whole.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::pin::Pin;

use axum::body::{Body, Bytes, HttpBody as _};
use penfold_state::{error_chain, fnv_hash};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, XattrFlags, flock,
};
use rustix::io::Errno;
use tokio::sync::mpsc;

use super::error::FileError;
use super::rights::Rights;
use super::root::text_of;
use super::workspace::{FilePlace, open_readable, refuse_mount};
use crate::engine::{Engine, EngineError};

/// The parts of a body that wait for the disk.
const QUEUE: usize = 8;
/// The drafts with a name that one file can have at one time.
const TRIES: u32 = 64;
/// The beginning of the name of a draft.
pub(super) const DRAFT: &str = ".penfold-";
const USUAL_MODE: Mode = Mode::from_raw_mode(0o644);

/// Why a body was not written to a file. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// As many streams are open as can be.
    #[error("this server has as many open streams as it can have")]
    TooMany,
    /// The server cannot write now.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The client did not send all of the body.
    #[error("the body broke off: {0}")]
    Body(axum::Error),
    /// The request is gone, and its body was not whole.
    #[error("the body broke off")]
    Abandoned,
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a file has that a body is written to.
#[derive(Debug, Clone, Default)]
pub struct NewFile {
    /// The permissions; `None` for those of the file that is replaced, or 0644.
    pub mode: Option<Mode>,
    /// The extended attributes, by their names.
    pub attributes: Vec<(CString, Vec<u8>)>,
    /// Whether those that watch the directory see changes of permissions and content after the file appears, as if it was made, given
    /// to its owner and written.
    pub is_announced: bool,
}

/// Writes a body to a file, and returns its size. The old content or the new is there at every moment.
///
/// # Errors
/// When the body is not whole, or the file cannot be written; then the file is as it was.
pub async fn write_body(
    engine: &Engine,
    place: FilePlace,
    new: NewFile,
    body: Body,
) -> Result<u64, UploadError> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let writer = engine.follower().ok_or(UploadError::TooMany)?;
    let writing = engine.wait(writer, move |_| receive(&place, &new, receiver));
    let sending = send(body, sender);
    let (written, sent) = tokio::join!(writing, sending);
    match sent {
        Err(error) => Err(UploadError::Body(error)),
        Ok(()) => written?,
    }
}

/// Passes the body on. The last message says that the body is whole.
async fn send(mut body: Body, sender: mpsc::Sender<Option<Bytes>>) -> Result<(), axum::Error> {
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame?.into_data()
            && sender.send(Some(data)).await.is_err()
        {
            return Ok(());
        }
    }
    let _ = sender.send(None).await;
    Ok(())
}

fn receive(
    place: &FilePlace,
    new: &NewFile,
    mut parts: mpsc::Receiver<Option<Bytes>>,
) -> Result<u64, UploadError> {
    let system = |errno| UploadError::File(FileError::system(&text_of(&place.name), errno));
    let failed = |error: &io::Error| system(Errno::from_io_error(error).unwrap_or(Errno::IO));
    let _rights = Rights::of(&place.actor).map_err(system)?;
    let old = rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let kind = old.as_ref().map(|old| FileType::from_raw_mode(old.st_mode));
    match kind {
        None | Some(FileType::RegularFile | FileType::Symlink) => refuse_mount(place).map_err(system)?,
        Some(FileType::Directory) => return Err(system(Errno::ISDIR)),
        // Others may have it open.
        Some(_) => return Err(FileError::NotPlain { path: text_of(&place.name) }.into()),
    }
    let old_mode = old.filter(|_| kind == Some(FileType::RegularFile)).map(|old| old.st_mode & 0o7777);
    let mode = new.mode.or(old_mode.map(Mode::from_raw_mode)).unwrap_or(USUAL_MODE);
    let mut draft = Draft::create(place).map_err(system)?;
    penfold_sys::crash_point!("serve-upload-begun");
    let mut size = 0;
    loop {
        match parts.blocking_recv() {
            Some(Some(part)) => {
                draft.file.write_all(&part).map_err(|error| failed(&error))?;
                size += u64::try_from(part.len()).unwrap_or(0);
            }
            Some(None) => break,
            None => return Err(UploadError::Abandoned),
        }
    }
    for (name, value) in &new.attributes {
        rustix::fs::fsetxattr(&draft.file, name, value, XattrFlags::empty()).map_err(system)?;
    }
    rustix::fs::fchmod(&draft.file, mode).map_err(system)?;
    draft.finish(place).map_err(system)?;
    if new.is_announced {
        announce(place, mode);
    }
    Ok(size)
}

/// Has the kernel report a change of attributes and a write of a file that is whole already. The file may be another one by now; what
/// it has does not change.
fn announce(place: &FilePlace, mode: Mode) {
    let _ = rustix::fs::chmodat(&place.dir, &place.name, mode, AtFlags::empty());
    let keep = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    // inotify(7) takes a change of this time alone for a write.
    let times = Timestamps { last_access: keep, last_modification: now };
    let _ = rustix::fs::utimensat(&place.dir, &place.name, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Tells whether a name is one that a server gives to an incomplete file.
pub fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT)
}

/// A file that is not complete. It has no name where the file system permits that, and goes with its descriptor.
/// Otherwise its name is made from the name of the target, and the server that writes it holds a lock on it: a draft
/// whose lock is free is the rest of a server that was killed, and the next write of the target removes it.
struct Draft {
    file: File,
    /// The name, and the directory for its removal.
    named: Option<(OwnedFd, String)>,
}

impl Draft {
    fn create(place: &FilePlace) -> Result<Draft, Errno> {
        let private = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&place.dir, ".", flags | OFlags::TMPFILE, private) {
            Ok(file) => return Ok(Draft { file: file.into(), named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        let dir = open_readable(&place.dir)?;
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let (name, file) = under_name(place, |name| {
            let file = rustix::fs::openat(&place.dir, name, flags, private)?;
            lock(&file)?;
            // Before the lock, another writer could take it for the rest of a killed server.
            if is_at(&file, place, name)? { Ok(file) } else { Err(Errno::EXIST) }
        })?;
        Ok(Draft { file: file.into(), named: Some((dir, name)) })
    }

    /// Puts the file in its place.
    fn finish(mut self, place: &FilePlace) -> Result<(), Errno> {
        penfold_sys::crash_point!("serve-upload-whole");
        if self.named.is_none() {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link =
                |name: &OsStr| rustix::fs::linkat(CWD, &path, &place.dir, name, AtFlags::SYMLINK_FOLLOW);
            // A link replaces nothing; only a rename does.
            match link(&place.name) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
            lock(&self.file)?;
            let (name, ()) = under_name(place, |name| link(name.as_ref()))?;
            self.named = Some((open_readable(&place.dir)?, name));
        }
        penfold_sys::crash_point!("serve-upload-named");
        if let Some((_, name)) = &self.named {
            rustix::fs::renameat(&place.dir, name, &place.dir, &place.name)?;
        }
        self.named = None;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some((dir, name)) = &self.named
            && let Err(errno) = rustix::fs::unlinkat(dir, name, AtFlags::empty())
            && errno != Errno::NOENT
        {
            tracing::warn!(name, error = error_chain(&errno), "an incomplete file is left");
        }
    }
}

/// Makes a draft under the first of its names that is free, or whose server was killed.
fn under_name<T>(place: &FilePlace, make: impl Fn(&str) -> Result<T, Errno>) -> Result<(String, T), Errno> {
    let hash = fnv_hash(place.name.as_encoded_bytes());
    for number in 0..TRIES {
        let name = format!("{DRAFT}{hash:032x}-{number}");
        let draft = match make(&name) {
            Err(Errno::EXIST) if remove_abandoned(place, &name) => make(&name),
            draft => draft,
        };
        match draft {
            Ok(value) => return Ok((name, value)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

/// Locks a draft as long as its descriptor is open.
fn lock(file: impl AsFd) -> Result<(), Errno> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // Another writer looks whether the lock is free.
        Err(Errno::WOULDBLOCK) => Err(Errno::EXIST),
        other => other,
    }
}

/// Removes a draft that no server writes any more.
fn remove_abandoned(place: &FilePlace, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(&place.dir, name, flags, Mode::empty()) else { return false };
    lock(&file).is_ok()
        && is_at(&file, place, name) == Ok(true)
        && rustix::fs::unlinkat(&place.dir, name, AtFlags::empty()).is_ok()
}

/// Tells whether a regular file has this name.
fn is_at(file: impl AsFd, place: &FilePlace, name: &str) -> Result<bool, Errno> {
    let open = rustix::fs::fstat(file)?;
    let named = match rustix::fs::statat(&place.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        named => named?,
    };
    let is_regular = FileType::from_raw_mode(open.st_mode) == FileType::RegularFile;
    Ok(is_regular && (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino))
}
