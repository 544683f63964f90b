//! Namespaces of this process: namespaces(7).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// `unshare(CLONE_NEWNET)`—Moves the calling thread into a new network namespace. Open sockets stay in the old one.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `ENOSPC` at the limit of `/proc/sys/user/max_net_namespaces`.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: takes no pointers; this flag leaves descriptors, memory and the file system of the thread as they are.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `ioctl(SIOCGSKNS)`—Opens the network namespace of a socket or of a descriptor of `/dev/net/tun`.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENOTTY` if the descriptor is neither.
pub fn network_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SIOCGSKNS: libc::Ioctl = 0x894c;
    // SAFETY: the request takes no argument; the descriptor is open.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
