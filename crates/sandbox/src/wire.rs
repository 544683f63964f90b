//! What is said to a supervisor and what it answers: JSON, one message a packet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// What the front asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// To stop politely.
    Stop {
        /// The polite signal.
        signal: i32,
        /// A process group that got it from its terminal.
        spared_group: Option<i32>,
    },
    /// To kill.
    Kill,
    /// To send a signal to the leader.
    Forward(i32),
    /// To do what the policy says for an owner that is gone.
    OwnerGone,
}

/// What the front is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The end has begun.
    Ending(Ending),
    /// It is over, or what is left will take longer than anybody should wait.
    Outcome(Box<Outcome>),
}

/// How a sandbox is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Politely, within this many milliseconds.
    Stopping(u64),
    /// At once.
    Killing,
}

/// The largest message: a little less than the default size of a socket's buffer.
const LARGEST: usize = 160 * 1024;

/// Sends one message, waiting for room.
pub fn send<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    rustix::io::retry_on_intr(|| rustix::net::send(socket, &text, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Sends one message if there is room for it.
pub fn offer<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    rustix::net::send(socket, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// What came out of a socket.
pub enum Received<M> {
    /// A message.
    Message(M),
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    End,
}

/// Takes the next message without waiting. What is no message is passed over.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Received<M>> {
    let mut buffer = vec![0_u8; LARGEST];
    match rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT)) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Ok(Received::End),
        Ok((length, _)) => {
            let text = buffer.get(..length).unwrap_or_default();
            Ok(serde_json::from_slice(text).map_or(Received::Nothing, Received::Message))
        }
        Err(rustix::io::Errno::AGAIN) => Ok(Received::Nothing),
        Err(errno) => Err(errno.into()),
    }
}
