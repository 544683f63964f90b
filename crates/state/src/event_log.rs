//! Where the events of a sandbox are written too: a file or journald.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

/// The socket of journald, for datagrams of fields: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>.
const JOURNALD: &str = "/run/systemd/journal/socket";

/// An event log: where the events of a sandbox are written, beside the state root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventLog {
    /// The journal of systemd.
    Journald,
    /// A file, by its absolute path, with a line of JSON for each event.
    #[serde(with = "penfold_process::path_text")]
    File(PathBuf),
}

impl EventLog {
    /// Checks before the start that events can be written, and creates the file.
    ///
    /// # Errors
    /// When journald does not listen, or the file is no regular file of this user.
    pub fn check(&self) -> io::Result<()> {
        match self {
            EventLog::Journald => connect_journald().map(drop),
            EventLog::File(path) => open_file(path).map(drop),
        }
    }
}

/// Opens the file of an event log, or creates it for this user alone. Returns its size too.
///
/// # Errors
/// When it is no regular file of this user.
pub(crate) fn open_file(path: &Path) -> io::Result<(OwnedFd, u64)> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link")),
        Err(Errno::ISDIR) => return Err(io::Error::other("it is a directory")),
        file => file?,
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to user {}", stat.st_uid)));
    }
    Ok((file, u64::try_from(stat.st_size).unwrap_or(0)))
}

/// Connects to journald.
///
/// # Errors
/// When it does not listen.
pub(crate) fn connect_journald() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(JOURNALD)?)
        .map_err(|errno| io::Error::other(format!("journald does not listen on `{JOURNALD}`: {errno}")))?;
    Ok(socket)
}
