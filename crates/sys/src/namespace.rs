//! Namespaces of this process: namespaces(7).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;

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

/// `unshare(CLONE_NEWIPC | CLONE_NEWNS)`—Moves this process into a new IPC namespace, and a new mount namespace for its `/dev/shm`.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `ENOSPC` at the limits of `/proc/sys/user`.
pub fn unshare_ipc() -> io::Result<()> {
    // SAFETY: takes no pointers; these flags leave descriptors and memory as they are.
    match unsafe { libc::unshare(libc::CLONE_NEWIPC | libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Tells whether a process is in another user namespace than this process.
///
/// # Errors
/// Those of readlink(2): the process has ended, or may not be looked at.
pub(crate) fn is_in_another_user_namespace(process: Pid) -> io::Result<bool> {
    let theirs = std::fs::read_link(format!("/proc/{}/ns/user", process.as_raw_pid()))?;
    Ok(theirs != std::fs::read_link("/proc/self/ns/user")?)
}

/// Maps a user and a group to themselves, in the user namespace of this process: `user_namespaces(7)`, "Defining user and group ID
/// mappings". `ids` are those that this process has outside.
///
/// # Errors
/// Those of write(2): this process is in no new user namespace, or a security module forbids it.
pub fn map_user((user, group): (u32, u32)) -> io::Result<()> {
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// `ioctl(NS_GET_USERNS)`—Opens the user namespace that owns a namespace: `ioctl_nsfs(2)`.
///
/// # Errors
/// `EPERM` if the owner is not below the user namespace of this process, `ENOTTY` if the descriptor is no namespace.
pub fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: the request takes no argument; the descriptor is open.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Moves this process into a network namespace: one of its own user namespace, or of one that this user has made. Open sockets stay in
/// the old one. The process must have one thread.
///
/// # Errors
/// Those of setns(2).
pub fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let enter = || rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network));
    match enter() {
        Err(Errno::PERM) => {
            let owner = owner_of(namespace)?;
            rustix::thread::move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User))?;
            Ok(enter()?)
        }
        entered => Ok(entered?),
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
