//! The directory of a session, below the record of its sandbox.
//!
//! ```text
//! sessions/<name>/
//!     socket               SOCK_SEQPACKET
//!     bell, whole, ready   FIFOs: the shell opens them for writing after each step
//!     ends/                a file whose name is the command that has returned and its status: `7.0`
//!     out.<n>, err.<n>     FIFOs: a command's output; used again by the next command
//!     state.<number>       exported variables, functions and aliases after a command, as a script
//!     commands/<number>/   cmd, pre, post; log; end.json
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use penfold_state::names::is_name;
use penfold_state::record::open_private;
use penfold_state::{Identity, clear};
use penfold_sys::launch::Credentials;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Gid, Uid};

use crate::protocol::CommandEnd;

pub(crate) const SESSIONS: &str = "sessions";
pub(crate) const SOCKET: &str = "socket";
pub(crate) const ENDS: &str = "ends";
pub(crate) const COMMANDS: &str = "commands";
pub(crate) const END: &str = "end.json";

/// The size limit for `end.json`.
const LARGEST_END: u64 = 1 << 20;
/// The number of clients that may wait to be accepted.
const BACKLOG: i32 = 256;
/// The size of the buffer for the list of `ends`.
const LIST: usize = 1024;
/// The lowest number of the directory's descriptor that a shell inherits.
const INHERITED: i32 = 200;
/// Private to the user.
const DIRECTORY: Mode = Mode::RWXU;
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The directory of a session, open.
#[derive(Debug)]
pub(crate) struct SessionDir {
    /// How the shell names the directory.
    pub(crate) path: PathBuf,
    fd: OwnedFd,
    commands: OwnedFd,
    ends: OwnedFd,
}

impl SessionDir {
    /// Creates the directory in a record. What a dead host has left there is removed.
    ///
    /// With an identity, the directory belongs to that user and this process becomes that user. The shell inherits the directory as
    /// a descriptor, since the user cannot enter the directories above.
    pub(crate) fn create(record: &Path, name: &str, identity: Option<&Identity>) -> io::Result<SessionDir> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is no name of a session"));
        }
        let record_fd = open_private(rustix::fs::CWD, record).map_err(io::Error::other)?;
        make_dir(record_fd.as_fd(), SESSIONS)?;
        let sessions = open_dir(record_fd.as_fd(), SESSIONS)?;
        make_dir(sessions.as_fd(), name)?;
        let fd = open_dir(sessions.as_fd(), name)?;
        if connect_session(fd.as_fd()).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another host has this session"));
        }
        clear::clear_directory(fd.as_fd(), &[])?;
        let path = match identity {
            None => record.join(SESSIONS).join(name),
            Some(identity) => become_user(fd.as_fd(), identity)?,
        };
        make_dir(fd.as_fd(), COMMANDS)?;
        make_dir(fd.as_fd(), ENDS)?;
        let commands = open_dir(fd.as_fd(), COMMANDS)?;
        let ends = open_dir(fd.as_fd(), ENDS)?;
        Ok(SessionDir { path, fd, commands, ends })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Listens on the socket. Clients find the session by it, so this comes last.
    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // The path in the record may be longer than a socket's address can be.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", self.fd.as_raw_fd()))?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Makes the directory of a command.
    pub(crate) fn make_command(&self, number: u64) -> io::Result<OwnedFd> {
        make_dir(self.commands.as_fd(), &number.to_string())?;
        Ok(open_dir(self.commands.as_fd(), &number.to_string())?)
    }

    pub(crate) fn open_command(&self, number: u64) -> io::Result<OwnedFd> {
        Ok(open_dir(self.commands.as_fd(), &number.to_string())?)
    }

    /// Removes the directory of a command.
    pub(crate) fn remove_command(&self, number: u64) -> io::Result<()> {
        clear::clear_directory(self.open_command(number)?.as_fd(), &[])?;
        Ok(rustix::fs::unlinkat(&self.commands, number.to_string(), AtFlags::REMOVEDIR)?)
    }

    /// Returns the end of a command that has ended and is kept.
    pub(crate) fn end(&self, number: u64) -> Option<CommandEnd> {
        read_end(self.open_command(number).ok()?.as_fd()).ok()
    }

    /// Takes the status of a command, if the shell has come back from it.
    pub(crate) fn take_status(&self, number: u64) -> Option<i32> {
        // Nobody else has this descriptor, and the list is read from its start.
        rustix::fs::seek(&self.ends, SeekFrom::Start(0)).ok()?;
        let mut space = Vec::with_capacity(LIST);
        let mut entries = RawDir::new(&self.ends, space.spare_capacity_mut());
        let mut found = None;
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let _ = rustix::fs::unlinkat(&self.ends, name, AtFlags::empty());
            let step = name.to_str().ok().and_then(|name| name.split_once('.'));
            found = found.or(step.and_then(|(command, status)| {
                (command.parse() == Ok(number)).then(|| status.parse().ok()).flatten()
            }));
        }
        found
    }

    /// Makes a FIFO that does not exist.
    pub(crate) fn make_fifo(&self, name: &str) -> io::Result<()> {
        Ok(make_fifo(self.fd(), name)?)
    }

    pub(crate) fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Makes the empty file for a state, so that the shell's umask does not matter.
    pub(crate) fn make_state(&self, number: u64) {
        let _ = write_file(self.fd(), &format!("state.{number}"), b"");
    }

    /// Tells whether a state has nothing in it. That of a usable shell has variables at least.
    pub(crate) fn is_state_empty(&self, number: u64) -> bool {
        let stat = rustix::fs::statat(&self.fd, format!("state.{number}"), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| stat.st_size == 0)
    }

    pub(crate) fn remove_state(&self, number: u64) {
        let _ = rustix::fs::unlinkat(&self.fd, format!("state.{number}"), AtFlags::empty());
    }
}

/// Gives a directory to a user, and becomes that user. Returns the directory's path for this process and its children.
fn become_user(dir: BorrowedFd<'_>, identity: &Identity) -> io::Result<PathBuf> {
    let Identity { uid, gid, groups } = identity;
    let user = Credentials::new(*uid, *gid, groups).ok_or(Errno::INVAL)?;
    rustix::fs::fchown(dir, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))?;
    user.become_user()?;
    // Otherwise `/proc/self/fd` would be root's.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // The children inherit this descriptor, so it is never closed. A script may use the low numbers.
    let inherited = rustix::io::fcntl_dupfd_cloexec(dir, INHERITED)?;
    rustix::io::fcntl_setfd(&inherited, FdFlags::empty())?;
    Ok(PathBuf::from(format!("/proc/self/fd/{}", inherited.into_raw_fd())))
}

const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(crate) fn open_dir(at: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, name, OPEN_DIRECTORY, Mode::empty())
}

fn make_dir(at: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(at, name, DIRECTORY) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn make_fifo(at: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    rustix::fs::mknodat(at, name, FileType::Fifo, FILE, 0)
}

/// Opens a FIFO for reading without waiting for a writer.
pub(crate) fn open_fifo(at: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Writes a file.
pub(crate) fn write_file(at: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, FILE)?;
    File::from(file).write_all(content)
}

/// Writes the end of a command, by one write(2): a reader that finds less tries again.
pub(crate) fn write_end(command: BorrowedFd<'_>, end: &CommandEnd) -> io::Result<()> {
    write_file(command, END, &serde_json::to_vec(end)?)
}

/// Reads the end of a command.
pub(crate) fn read_end(command: BorrowedFd<'_>) -> io::Result<CommandEnd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(command, END, flags, Mode::empty())?;
    let mut text = Vec::new();
    File::from(file).take(LARGEST_END).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Connects to the socket of a session.
pub(crate) fn connect_session(session: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(session, SOCKET, flags, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}
