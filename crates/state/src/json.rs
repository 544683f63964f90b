//! Small JSON files: read without trust, replaced whole, or written once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the formats on disk. Files of a newer version are only read.
pub const SCHEMA: u32 = 1;

/// The size limit for files of a record, except the log, the state and the report.
const LARGEST: u64 = 1 << 20;
/// The size limit for the state. The state lists up to 2048 execs with 256 bytes of command each, which JSON may escape
/// to six times that length.
const LARGEST_STATE: u64 = 4 << 20;
/// The size limit for a report, which lists every member that was ended.
const LARGEST_REPORT: u64 = 64 << 20;

/// The field with which every version of the formats begins.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// Reads the file `name` of a record; `None` when it does not exist.
///
/// # Errors
/// When it is not a plain file of this user, truncated, malformed, or of a newer version (`Unsupported`).
pub(crate) fn read_json<T: DeserializeOwned>(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<T>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other("it is a symbolic link")),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no plain file"));
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(io::Error::other(format!("it belongs to user {}, not to {user}", stat.st_uid)));
    }
    let largest = match name {
        REPORT => LARGEST_REPORT,
        STATE => LARGEST_STATE,
        _ => LARGEST,
    };
    // The size tells where the file ends: no further read has to find that out.
    let size = u64::try_from(stat.st_size).unwrap_or(0).min(largest);
    let mut text = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(size).read_to_end(&mut text)?;
    if text.is_empty() {
        // As of a file of which a part is written so far.
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty"));
    }
    let Version { schema } = serde_json::from_slice(&text)?;
    if schema > SCHEMA {
        let message = format!("format {schema} is newer than this penfold knows ({SCHEMA})");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// The file with the current state of a running sandbox.
pub(crate) const STATE: &str = "state.json";
/// The file with the report of an ended sandbox.
pub(crate) const REPORT: &str = "report.json";

/// Replaces the file `name` of a record: readers see the old content or the new.
///
/// # Errors
/// The old content stays after an error.
pub(crate) fn replace_json(dir: BorrowedFd<'_>, name: &str, value: &impl Serialize) -> io::Result<()> {
    let fresh = write_fresh(dir, name, value)?;
    rustix::fs::renameat(dir, &fresh, dir, name)?;
    Ok(())
}

/// Writes the file `name` of a record unless the file exists: the first writer wins. True if this call wrote the file.
///
/// # Errors
/// When the file cannot be written; then it is missing, or another writer's.
pub(crate) fn create_once(dir: BorrowedFd<'_>, name: &str, value: &impl Serialize) -> io::Result<bool> {
    let fresh = write_fresh(dir, name, value)?;
    let linked = rustix::fs::linkat(dir, &fresh, dir, name, AtFlags::empty());
    let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
    match linked {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The end of the name of a temporary file.
const UNFINISHED: &str = ".new";

/// Returns for which file a temporary file was made, and the pid of its writer in the writer's own pid namespace; `None` for the name of
/// another file.
pub(crate) fn unfinished_file(name: &str) -> Option<(&str, i32)> {
    let (name, pid) = name.strip_suffix(UNFINISHED)?.rsplit_once('.')?;
    Some((name, pid.parse().ok()?))
}

/// Each process writes to its own temporary file, so that two writers do not mix.
fn write_fresh(dir: BorrowedFd<'_>, name: &str, value: &impl Serialize) -> io::Result<String> {
    let fresh = format!("{name}.{}{UNFINISHED}", rustix::process::getpid());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let create = || rustix::fs::openat(dir.as_fd(), &fresh, flags, Mode::RUSR | Mode::WUSR);
    let file = create().or_else(|_| {
        // A process that had this pid may have died here.
        let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
        create()
    })?;
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    if let Err(error) = File::from(file).write_all(&text) {
        let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
        return Err(error);
    }
    Ok(fresh)
}
