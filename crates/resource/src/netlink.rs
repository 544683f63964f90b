//! Questions to the kernel over rtnetlink(7), with one answer each.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{DefaultNla, Emitable as _, NetlinkBuffer, NlasIterator};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

/// The kernel answers while it handles the request; this is for a kernel that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

const HEADER: usize = 16;
/// Flags of `linux/netlink.h`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// A socket in one network namespace.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: Cell<u32>,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct NetlinkMessage {
    /// The type, such as `RTM_NEWLINK`.
    pub(crate) kind: u16,
    /// Flags beside those of every request.
    pub(crate) flags: u16,
    /// The header of the family of requests, such as an `ifinfomsg`; its length is a multiple of 4.
    pub(crate) header: Vec<u8>,
    pub(crate) attributes: Vec<DefaultNla>,
}

/// The part of an answer after the header of netlink.
pub(crate) type NetlinkAnswer = Vec<u8>;

impl NetlinkSocket {
    /// Opens a socket in the network namespace of this thread.
    pub(crate) fn open() -> io::Result<NetlinkSocket> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        NetlinkSocket::from_fd(fd)
    }

    /// Opens a socket for netfilter in the network namespace of this thread.
    pub(crate) fn open_netfilter() -> io::Result<NetlinkSocket> {
        let protocol = Some(rustix::net::netlink::NETFILTER);
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        NetlinkSocket::from_fd(fd)
    }

    /// Takes a socket that another process has opened.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<NetlinkSocket> {
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(NetlinkSocket { fd, sequence: Cell::new(0) })
    }

    /// Makes the socket receive the events of this group, from 1.
    pub(crate) fn subscribe(&self, group: u32) -> io::Result<()> {
        let bit = 1_u32.checked_shl(group.wrapping_sub(1)).ok_or(Errno::INVAL)?;
        Ok(rustix::net::bind(&self.fd, &SocketAddrNetlink::new(0, bit))?)
    }

    /// Forgets the events that have arrived.
    pub(crate) fn drain(&self) {
        let mut buffer = [0_u8; 4096];
        while rustix::net::recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT).is_ok() {}
    }

    /// Sends a request and returns the answers before its acknowledgement.
    pub(crate) fn ask(&self, message: &NetlinkMessage) -> io::Result<Vec<NetlinkAnswer>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        rustix::net::send(&self.fd, &encode(message, sequence)?, SendFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0_u8; 64 * 1024];
        loop {
            let length = match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT.into()),
                Err(errno) => return Err(errno.into()),
            };
            let mut rest = buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let one = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
                if one.sequence_number() == sequence {
                    match one.message_type() {
                        ERROR => return error(one.payload()).map(|()| answers),
                        DONE => return Ok(answers),
                        _ => answers.push(one.payload().to_vec()),
                    }
                }
                let step = usize::try_from(one.length()).unwrap_or(usize::MAX).next_multiple_of(4);
                rest = rest.get(step..).unwrap_or_default();
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn encode(message: &NetlinkMessage, sequence: u32) -> io::Result<Vec<u8>> {
    let attributes = encoded(&message.attributes);
    let length = HEADER + message.header.len() + attributes.len();
    let mut bytes = vec![0_u8; HEADER];
    let mut header = NetlinkBuffer::new(&mut bytes);
    header.set_length(u32::try_from(length).map_err(io::Error::other)?);
    header.set_message_type(message.kind);
    header.set_flags(REQUEST | ACK | message.flags);
    header.set_sequence_number(sequence);
    bytes.extend_from_slice(&message.header);
    bytes.extend(attributes);
    Ok(bytes)
}

/// Reads the error number of an `nlmsgerr`; 0 is an acknowledgement.
fn error(payload: &[u8]) -> io::Result<()> {
    let number = payload.first_chunk().copied().map(i32::from_ne_bytes);
    match number {
        Some(0) => Ok(()),
        Some(negative) => Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
        None => Err(Errno::BADMSG.into()),
    }
}

fn encoded(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0_u8; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// Makes an attribute of bytes.
pub(crate) fn bytes_attribute(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

/// Makes an attribute of a text, with the zero at its end.
pub(crate) fn text_attribute(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

/// Makes an attribute that contains a header, if any, and attributes.
pub(crate) fn nested_attribute(kind: u16, header: &[u8], inner: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind, [header, &encoded(inner)].concat())
}

/// Finds an attribute after a header of this length.
pub(crate) fn find_attribute(answer: &[u8], header: usize, kind: u16) -> Option<&[u8]> {
    let attributes = answer.get(header..)?;
    NlasIterator::new(attributes).map_while(Result::ok).find(|found| found.kind() == kind).map(|found| {
        // The buffer borrows from the answer, the value from the buffer: cut the value out of the answer itself.
        let inner = found.into_inner();
        let length = inner.first_chunk().copied().map_or(4, u16::from_ne_bytes);
        inner.get(4..usize::from(length)).unwrap_or_default()
    })
}

/// Reads an attribute that is a text.
pub(crate) fn text_of(answer: &[u8], header: usize, kind: u16) -> Option<String> {
    let value = find_attribute(answer, header, kind)?;
    let value = value.strip_suffix(&[0]).unwrap_or(value);
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Reads an attribute that is a number.
pub(crate) fn number_of(answer: &[u8], header: usize, kind: u16) -> Option<i32> {
    find_attribute(answer, header, kind)?.first_chunk().copied().map(i32::from_ne_bytes)
}
