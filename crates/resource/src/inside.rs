//! Opens sockets in another network namespace, in a short-lived child: the caller never leaves its own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_sys::fork::exit_now;
use penfold_sys::{ForkSide, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink::NetlinkSocket;

/// Longer than the child takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The namespace to open sockets in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NamespaceEntry<'a> {
    /// A new one.
    New,
    /// This one.
    Existing(BorrowedFd<'a>),
}

/// Descriptors of a network namespace.
#[derive(Debug)]
pub(crate) struct NamespaceDescriptors {
    /// The namespace.
    pub(crate) namespace: OwnedFd,
    /// A socket in it.
    pub(crate) netlink: NetlinkSocket,
    /// `/dev/net/tun`, opened in it, if this was asked.
    pub(crate) tun: Option<OwnedFd>,
}

/// Opens the descriptors.
///
/// # Errors
/// `EDEADLK` if this process has more than one thread, `EPERM` without privilege.
pub(crate) fn enter_namespace(entry: NamespaceEntry<'_>, with_tun: bool) -> io::Result<NamespaceDescriptors> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match fork()? {
        ForkSide::Child => {
            let code = match open_and_send(entry, with_tun, theirs.as_fd()) {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            };
            exit_now(code)
        }
        ForkSide::Parent(pid) => {
            drop(theirs);
            let received = receive(ours.as_fd());
            let code = reap_child(pid)?;
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
            let mut received = received?.into_iter();
            let (Some(namespace), Some(netlink)) = (received.next(), received.next()) else {
                return Err(Errno::BADMSG.into());
            };
            Ok(NamespaceDescriptors {
                namespace,
                netlink: NetlinkSocket::from_fd(netlink)?,
                tun: received.next(),
            })
        }
    }
}

fn open_and_send(entry: NamespaceEntry<'_>, with_tun: bool, to: BorrowedFd<'_>) -> io::Result<()> {
    match entry {
        NamespaceEntry::New => penfold_sys::namespace::unshare_network()?,
        NamespaceEntry::Existing(namespace) => {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        }
    }
    let mut opened = vec![open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?];
    let netlink =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    opened.push(netlink);
    if with_tun {
        opened.push(open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
    }
    let borrowed: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::NOBUFS.into());
    }
    sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    wait(from, Instant::now() + PATIENCE)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect())
}

/// Waits for the end of the child, and kills it at the deadline. Returns its exit code.
pub(crate) fn reap_child(pid: Pid) -> io::Result<i32> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    if wait(pidfd.as_fd(), Instant::now() + PATIENCE).is_err() {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        // A child that hangs in the kernel stays behind as a zombie.
        wait(pidfd.as_fd(), Instant::now() + Duration::from_secs(1))?;
    }
    let status = waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status);
    Ok(status.and_then(rustix::process::WaitStatus::exit_status).unwrap_or(Errno::INTR.raw_os_error()))
}

/// Waits until the descriptor can be read.
fn wait(fd: BorrowedFd<'_>, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(Errno::TIMEDOUT.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the inode of a namespace of this thread: `net` or `mnt`.
pub(crate) fn own_namespace(kind: &str) -> io::Result<u64> {
    Ok(rustix::fs::stat(format!("/proc/thread-self/ns/{kind}"))?.st_ino)
}

/// Opens a socket in the network namespace with this inode; `None` if no process is in it and no mount here keeps it.
pub(crate) fn socket_in(home: u64) -> io::Result<Option<NetlinkSocket>> {
    if own_namespace("net")? == home {
        return NetlinkSocket::open().map(Some);
    }
    let processes = std::fs::read_dir("/proc")?.flatten().map(|entry| entry.path().join("ns/net"));
    let mounts = crate::mount_table::read_mount_table()?.into_iter().filter(|mount| mount.fs_type == "nsfs");
    for path in processes.chain(mounts.map(|mount| mount.mount_point)) {
        if !rustix::fs::stat(&path).is_ok_and(|stat| stat.st_ino == home) {
            continue;
        }
        let Ok(namespace) = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { continue };
        if rustix::fs::fstat(&namespace)?.st_ino == home {
            return enter_namespace(NamespaceEntry::Existing(namespace.as_fd()), false)
                .map(|inside| Some(inside.netlink));
        }
    }
    Ok(None)
}

/// Returns a path for this descriptor that mount(2) takes.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
