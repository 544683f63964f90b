//! A client of the control socket that says and hands over what it likes.

use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use serde_json::{Value, json};

/// A connection.
pub struct Peer(pub OwnedFd);

impl Peer {
    /// Connects, and hears the greeting at most this much later.
    pub fn greeted(record: &Path, limit: Duration) -> Result<Peer, String> {
        let begun = Instant::now();
        let peer = Peer::silent(record).ok_or("nobody listens")?;
        match peer.hear(limit) {
            Some(hello) if hello.get("hello").is_some() && begun.elapsed() <= limit => Ok(peer),
            heard => Err(format!("{heard:?} after {:?}", begun.elapsed())),
        }
    }

    /// Connects.
    pub fn silent(record: &Path) -> Option<Peer> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(record.join("control.sock")).ok()?).ok()?;
        Some(Peer(socket))
    }

    /// The next answer; none at the end.
    pub fn hear(&self, limit: Duration) -> Option<Value> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        if poll(&mut fds, Some(&limit.try_into().ok()?)).ok()? == 0 {
            return None;
        }
        let mut buffer = vec![0_u8; 256 * 1024];
        let (length, _) = recv(&self.0, &mut buffer, RecvFlags::empty()).ok()?;
        serde_json::from_slice(buffer.get(..length)?).ok()
    }

    /// Says something, with descriptors.
    pub fn say(&self, text: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(&self.0, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }
}

/// What an exec is asked for with.
pub fn request() -> Vec<u8> {
    json!({"exec": {"command": ["touch"]}}).to_string().into_bytes()
}

/// What `exec touch FILE` would send, in memory that is sealed or not.
pub fn description(file: &Path, sealed: bool) -> OwnedFd {
    let words = ["touch".as_bytes(), file.as_os_str().as_encoded_bytes()];
    let text = json!({
        "schema": 1,
        "command": words.map(|word| json!({"Unix": word})),
        "environment": [],
        "directory": null,
        "timeout_ms": null,
        "signal": 15,
        "grace_ms": 100,
        "terminal": false,
        "detached": true,
    });
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = std::fs::File::from(rustix::fs::memfd_create("what", flags).unwrap());
    memory.write_all(text.to_string().as_bytes()).unwrap();
    if sealed {
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(memory.as_fd(), seals).unwrap();
    }
    memory.into()
}

/// `/dev/null`.
pub fn null() -> OwnedFd {
    std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into()
}
