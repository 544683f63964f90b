//! A client of a control socket that says and hands over what it likes, and hears what any version answers.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use serde_json::Value;

use super::DEADLINE;

/// A connection to a supervisor.
pub struct ControlClient(OwnedFd);

impl ControlClient {
    /// Connects, and takes the greeting; nothing where nobody listens.
    pub fn connect(record: &Path) -> Option<ControlClient> {
        let client = ControlClient::silent(record)?;
        client.hear()?.get("hello")?;
        Some(client)
    }

    /// Connects and hears nothing.
    pub fn silent(record: &Path) -> Option<ControlClient> {
        let socket = endpoint();
        connect(&socket, &SocketAddrUnix::new(record.join("control.sock")).ok()?).ok()?;
        Some(ControlClient(socket))
    }

    /// Takes the other side of a connection.
    pub fn of(socket: OwnedFd) -> ControlClient {
        ControlClient(socket)
    }

    /// Says one thing.
    pub fn say(&self, request: &str) {
        let _ = rustix::net::send(&self.0, request.as_bytes(), SendFlags::NOSIGNAL);
    }

    /// Says one thing, with descriptors.
    pub fn hand_over(&self, text: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(&self.0, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next answer; none at the end of the connection.
    pub fn hear(&self) -> Option<Value> {
        self.hear_within(DEADLINE)
    }

    /// The next answer; none at the end of the connection, or when there is none by then.
    pub fn hear_within(&self, limit: Duration) -> Option<Value> {
        let timeout = limit.try_into().ok()?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).ok()? == 0 {
            return None;
        }
        let mut buffer = vec![0_u8; 256 * 1024];
        let (length, _) = recv(&self.0, &mut buffer, RecvFlags::empty()).ok()?;
        serde_json::from_slice(buffer.get(..length)?).ok()
    }

    /// Everything up to the end of the connection.
    pub fn rest(&self) -> Vec<Value> {
        std::iter::from_fn(|| self.hear()).collect()
    }
}

/// An unconnected socket of the kind that supervisors listen on.
pub fn endpoint() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}
