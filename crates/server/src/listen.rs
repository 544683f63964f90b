//! The sockets on which the server listens.

use std::fs::Metadata;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Address;
use crate::error::ServeError;
use crate::tokens::Tokens;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;
/// The longest path that fits a `sockaddr_un`, unix(7).
const LONGEST: usize = 107;

/// Whether the callers on TCP must have a token.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// The tokens.
    pub tokens: &'a Tokens,
    /// Whether a loopback address may be served without a token.
    pub insecure_no_token: bool,
}

/// A socket on which the server listens.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, and the file to remove at the end.
    Unix(UnixListener, Option<SocketFile>),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on an address.
    ///
    /// # Errors
    /// When the address is in use or not available, or must not be served without a token.
    pub fn open(address: &Address, access: Access<'_>) -> Result<Listener, ServeError> {
        let cannot = |source| ServeError::Listen { address: address.to_string(), source };
        match address {
            Address::Unix(path) => {
                let (listener, file) = listen_unix(path).map_err(cannot)?;
                Ok(Listener::Unix(listener, Some(file)))
            }
            Address::Tcp(tcp) => {
                check(tcp, access)?;
                let listener = TcpListener::bind(tcp).map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                Ok(Listener::Tcp(listener))
            }
        }
    }

    /// Takes over a socket on which another process, such as systemd, listens already.
    ///
    /// # Errors
    /// When the descriptor is no listening stream socket, or must not be served without a token.
    pub fn inherit(socket: OwnedFd, access: Access<'_>) -> Result<Listener, ServeError> {
        let cannot = |source: io::Error| ServeError::Listen {
            address: format!("descriptor {}", socket.as_raw_fd()),
            source,
        };
        let kind = rustix::net::sockopt::socket_type(&socket).map_err(|errno| cannot(errno.into()))?;
        let listens =
            rustix::net::sockopt::socket_acceptconn(&socket).map_err(|errno| cannot(errno.into()))?;
        if kind != SocketType::STREAM || !listens {
            return Err(cannot(io::Error::other("it is no stream socket that listens")));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|errno| cannot(errno.into()))?;
        let address = rustix::net::getsockname(&socket).map_err(|errno| cannot(errno.into()))?;
        if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
            check(&tcp, access)?;
            return Ok(Listener::Tcp(socket.into()));
        }
        match SocketAddrUnix::try_from(address) {
            Ok(_) => Ok(Listener::Unix(socket.into(), None)),
            Err(_) => Err(cannot(io::Error::other("it is neither a Unix nor a TCP socket"))),
        }
    }

    /// The address, for people.
    pub fn address(&self) -> String {
        match self {
            Listener::Unix(_, Some(file)) => format!("unix:{}", file.path.display()),
            Listener::Unix(listener, None) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                format!("unix:{}", path.unwrap_or(Path::new("")).display())
            }
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
            }
        }
    }
}

/// Refuses an address that must not be served without a token.
fn check(address: &SocketAddr, access: Access<'_>) -> Result<(), ServeError> {
    let is_loopback = address.ip().to_canonical().is_loopback();
    match (access.tokens.is_empty(), is_loopback, access.insecure_no_token) {
        (false, ..) | (true, true, true) => Ok(()),
        (true, true, false) => Err(ServeError::LoopbackToken(*address)),
        (true, false, _) => Err(ServeError::Token(*address)),
    }
}

/// The file of a Unix socket, which is removed when this value is dropped, unless the path belongs to another socket by
/// then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Ok(_turn) = take_turn(&self.path) else { return };
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The directory of a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks the directory of a socket, so that two servers do not replace each other's.
fn take_turn(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent(path), flags, Mode::empty())?;
    rustix::fs::flock(&dir, FlockOperation::LockExclusive)?;
    Ok(dir)
}

fn listen_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    match rustix::fs::mkdir(parent(path), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = take_turn(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(meta) => remove_stale(path, &meta)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // bind(2) gives the file the mode of the socket: at no moment may others connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address(&dir, path)?)?;
    let meta = std::fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), file: (meta.dev(), meta.ino()) };
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), file))
}

/// A long path is reached through the descriptor of its directory.
fn address(dir: &OwnedFd, path: &Path) -> rustix::io::Result<SocketAddrUnix> {
    if path.as_os_str().len() <= LONGEST {
        return SocketAddrUnix::new(path);
    }
    let name = path.file_name().ok_or(Errno::INVAL)?;
    SocketAddrUnix::new(Path::new(&format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())).join(name))
}

/// Removes the socket of a server that is dead, and nothing else.
fn remove_stale(path: &Path, meta: &Metadata) -> io::Result<()> {
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the socket belongs to another user"));
    }
    match connect(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn connect(path: &Path) -> rustix::io::Result<UnixStream> {
    let dir =
        rustix::fs::open(parent(path), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address(&dir, path)?)?;
    Ok(socket.into())
}
