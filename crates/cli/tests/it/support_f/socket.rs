//! The other side of a control socket, spelled out: what a client of any version says and hears.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recv, send, shutdown, socket_with,
};
use serde_json::Value;

/// Longer than an answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(20);

/// A connection to a supervisor.
pub struct Control(OwnedFd);

impl Control {
    /// Connects and hears the greeting; none where nobody listens.
    pub fn to(record: &Path) -> Option<(Control, Value)> {
        let socket = endpoint();
        connect(&socket, &SocketAddrUnix::new(record.join("control.sock")).ok()?).ok()?;
        let control = Control(socket);
        let hello = control.hear()?;
        Some((control, hello))
    }

    /// Says one thing.
    pub fn say(&self, request: &str) {
        let _ = send(&self.0, request.as_bytes(), SendFlags::NOSIGNAL);
    }

    /// The next answer; none at the end of the connection, or of patience.
    pub fn hear(&self) -> Option<Value> {
        let timeout = ANSWER.try_into().ok()?;
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

/// Listens where a supervisor should, and says to whoever comes that all is gone; without a lie, nothing. Until it
/// is dropped.
pub fn lie(record: &Path, id: &str, lie: Option<String>) -> Liar {
    let socket = endpoint();
    bind(&socket, &SocketAddrUnix::new(record.join("control.sock")).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    let (ours, hello) =
        (socket.try_clone().unwrap(), format!("{{\"hello\":{{\"protocol\":1,\"id\":\"{id}\"}}}}"));
    let thread = std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok(client) = accept(&ours) {
            let client = Control(client);
            if let Some(lie) = &lie {
                client.say(&hello);
                client.hear();
                client.say("{\"ending\":\"killing\"}");
                client.say(lie);
            } else {
                held.push(client);
            }
        }
    });
    Liar { socket, thread: Some(thread) }
}

/// Who listens in a supervisor's place.
pub struct Liar {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        // Ends the wait for clients, and with it the thread and its copy of the socket.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn endpoint() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}
