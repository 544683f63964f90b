//! Connections to ports of a jail, on the loopback address of its network namespace.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_state::wire::{ReceiveResult, receive_with};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::files::Jail;

/// The verb that connects from inside, and sends the socket.
pub const JAIL_DIAL: &str = "jail-dial";
/// The time for one connection.
const LIMIT: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nothing listens on the port.
    #[error("port {0} is not open")]
    NotOpen(u16),
    /// There is no way to the port.
    #[error("cannot reach port {port}")]
    Io {
        /// The port.
        port: u16,
        /// The cause.
        source: io::Error,
    },
}

/// Connects to a port of a jail. A jail with the network of the server is reached at once, any other one through a process in its network
/// namespace: `program` is penfold's.
///
/// # Errors
/// When nothing listens on the port, or it cannot be reached.
pub fn dial_jail(program: &Path, jail: &Jail, port: u16) -> Result<TcpStream, DialError> {
    let connected = match is_own(jail) {
        Ok(true) => dial(port),
        Ok(false) => dial_inside(program, jail, port),
        Err(error) => Err(error),
    };
    connected.map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => DialError::NotOpen(port),
        _ => DialError::Io { port, source },
    })
}

/// Tells whether the network namespace of the jail is that of this process.
fn is_own(jail: &Jail) -> io::Result<bool> {
    let own = rustix::fs::stat("/proc/self/ns/net")?;
    let theirs = rustix::fs::fstat(&jail.network)?;
    Ok((own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino))
}

/// Connects to a port of this network namespace.
///
/// # Errors
/// Those of connect(2).
pub fn dial(port: u16) -> io::Result<TcpStream> {
    let to = |address: SocketAddr| TcpStream::connect_timeout(&address, LIMIT);
    to((Ipv4Addr::LOCALHOST, port).into())
        .or_else(|first| to((Ipv6Addr::LOCALHOST, port).into()).map_err(|_| first))
}

fn dial_inside(program: &Path, jail: &Jail, port: u16) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut command = Command::new(program);
    command.arg0("penfold").arg(JAIL_DIAL).arg(port.to_string()).env_clear();
    command.stdin(Stdio::from(jail.network.try_clone()?)).stdout(Stdio::from(theirs)).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // Its copy of the other end is closed with it.
    drop(command);
    let received = receive(&ours);
    if received.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    received
}

fn receive(from: &OwnedFd) -> io::Result<TcpStream> {
    let until = Instant::now() + LIMIT;
    loop {
        match receive_with::<i32>(from)? {
            (ReceiveResult::Message(0), fds) => {
                let socket = fds.into_iter().next().ok_or(Errno::BADMSG)?;
                return Ok(TcpStream::from(socket));
            }
            (ReceiveResult::Message(errno), _) => return Err(io::Error::from_raw_os_error(errno)),
            (ReceiveResult::End, _) => {
                return Err(io::Error::other("the process in its network namespace has failed"));
            }
            (ReceiveResult::Nothing, _) => {}
        }
        let left =
            Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)];
        if rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&left)))? == 0 {
            return Err(Errno::TIMEDOUT.into());
        }
    }
}
