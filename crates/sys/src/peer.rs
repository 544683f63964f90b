//! The credentials of the process at the other end of a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Pid, Uid};

/// The process at the other end of a Unix socket, at the time of its connect(2) or listen(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The pid of the peer; `None` if the peer has no pid in this pid namespace.
    pub pid: Option<Pid>,
    /// The user id of the peer.
    pub uid: Uid,
}

/// `getsockopt(SO_PEERCRED)`—Returns the credentials of the peer, unix(7).
///
/// rustix 1.1 cannot represent a peer in another pid namespace: rustix turns the pid 0 into an error.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let wanted = size_of::<libc::ucred>();
    let mut length = libc::socklen_t::try_from(wanted).map_err(io::Error::other)?;
    let fd = socket.as_raw_fd();
    let place = (&raw mut peer).cast();
    // SAFETY: `peer` has room for `length` bytes, and any bytes make a valid `ucred`.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    if usize::try_from(length) != Ok(wanted) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Peer { pid: Pid::from_raw(peer.pid), uid: Uid::from_raw(peer.uid) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn own_process_is_at_both_ends_of_a_pair() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = super::peer_credentials(one.as_fd()).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(rustix::process::getpid()), rustix::process::getuid()));
        assert!(super::peer_credentials(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
