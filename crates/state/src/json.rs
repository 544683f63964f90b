//! Small JSON files: read without trust, replaced whole, or written once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the formats on disk. A newer one is only read.
pub const SCHEMA: u32 = 1;

/// No file of a record is larger, but for those of the log, the state and the report.
const LARGEST: u64 = 1 << 20;
/// The state names every exec, of which there are at most 2048: of each 256 bytes of its command, up to six times as long
/// in JSON.
const LARGEST_STATE: u64 = 4 << 20;
/// How large a file of a record mostly is.
const USUAL: usize = 4096;
/// A report names every member that was ended.
const LARGEST_REPORT: u64 = 64 << 20;

/// What every version of the formats begins with.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// Reads the file `name` of a record; none when there is none.
///
/// # Errors
/// When it is not a plain file of ours, cut short, garbage, or of a newer version (`Unsupported`).
pub(crate) fn read<T: DeserializeOwned>(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<T>> {
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
    // Nearly all fit: a list of a thousand sandboxes reads three thousand of them.
    let mut text = Vec::with_capacity(USUAL);
    file.take(largest).read_to_end(&mut text)?;
    if text.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    let Version { schema } = serde_json::from_slice(&text)?;
    if schema > SCHEMA {
        let message = format!("format {schema} is newer than this penfold knows ({SCHEMA})");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// How things stand with a sandbox that runs.
pub(crate) const STATE: &str = "state.json";
/// The report of a sandbox that has ended.
pub(crate) const REPORT: &str = "report.json";

/// Replaces the file `name` of a record: readers see the old content or the new.
///
/// # Errors
/// The old content stays then.
pub(crate) fn replace(dir: BorrowedFd<'_>, name: &str, value: &impl Serialize) -> io::Result<()> {
    let fresh = write_fresh(dir, name, value)?;
    rustix::fs::renameat(dir, &fresh, dir, name)?;
    Ok(())
}

/// Writes the file `name` of a record unless there is one already: whoever comes first tells the truth. True if it was
/// this one.
///
/// # Errors
/// When it cannot be written; there is none then, or that of another.
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

/// A name of its own for each process, so that two writers do not mix.
fn write_fresh(dir: BorrowedFd<'_>, name: &str, value: &impl Serialize) -> io::Result<String> {
    let fresh = format!("{name}.{}.new", rustix::process::getpid());
    let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir.as_fd(), &fresh, flags, Mode::RUSR | Mode::WUSR)?;
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    if let Err(error) = File::from(file).write_all(&text) {
        let _ = rustix::fs::unlinkat(dir, &fresh, AtFlags::empty());
        return Err(error);
    }
    Ok(fresh)
}
