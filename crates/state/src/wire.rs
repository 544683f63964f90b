//! What is said to a supervisor and what it answers: JSON, one message a packet (`SOCK_SEQPACKET`).
//!
//! Fields and variants are only ever added.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// The version of what is said on a control socket. A supervisor says its own first; requests that it does not know are
/// refused and change nothing.
pub const PROTOCOL: u32 = 1;

/// What a supervisor is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// To stop politely.
    Stop {
        /// The polite signal; 0 means the one that the sandbox was made with.
        #[serde(default)]
        signal: i32,
        /// A process group that got it from its terminal.
        #[serde(default)]
        spared_group: Option<i32>,
        /// How long members may take to end, in milliseconds; nothing means what the sandbox was made with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// To kill.
    Kill,
    /// To report what is left so many milliseconds after a kill, where this client asks for an end. A supervisor that does not
    /// know this refuses it, and keeps its own time.
    Patience(u64),
    /// To send a signal to the leader.
    Forward(i32),
    /// To act on a signal that the terminal has sent to its foreground group, the front's own. Over the channel of a front only.
    Key {
        /// Its number: INT or QUIT.
        signal: i32,
        /// The group, the front's.
        group: i32,
    },
    /// Nothing: the front has said all that it was sent before [`Answer::LeaderEnded`] came.
    Heard,
    /// To do what the policy says for an owner that is gone.
    OwnerGone,
    /// To end the lease so many milliseconds from now; 0 means never.
    Extend(u64),
    /// To put a command into the sandbox. With it come four descriptors: a sealed memory file that holds the
    /// `Spec` of the command as JSON, and its standard input, output and error.
    Exec(Exec),
    /// To end one of those commands, by its number.
    KillExec(u32),
    /// To be put at the terminal of the sandbox. With it comes one end of a stream socket: what the terminal shows is
    /// written to it, what is read from it is typed.
    Attach(Size),
    /// The terminal of who is attached has another size now.
    Resize(Size),
    /// To go on without the front, which knows that the command runs and has told the id. Of the front only.
    LetGo,
}

/// What the supervisor has to know of a command that is put into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The command, for people, shortened.
    pub command: Vec<String>,
    /// It goes on when who asked for it is gone.
    #[serde(default)]
    pub detached: bool,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// What a supervisor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The first word on a control socket.
    Hello {
        /// The version that this supervisor speaks.
        protocol: u32,
        /// The sandbox, as shown.
        id: String,
    },
    /// The command runs.
    Running,
    /// What was asked for is done.
    Done,
    /// What was asked for cannot be done; a sentence.
    Refused(String),
    /// The end has begun.
    Ending(Ending),
    /// What the terminal has sent is left to the leader.
    PassedOn,
    /// The leader, with this pid, was stopped, and the front, which its terminal has not stopped with it, is to do as it did.
    /// Over the channel of a front only.
    Suspended(i32),
    /// The leader has ended, and how the rest is ended depends on what the front was sent by then: it says so, and
    /// [`Request::Heard`].
    LeaderEnded,
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
///
/// # Errors
/// Those of send(2); where the kernel has no memory for it, after a while only.
pub fn send<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut tries = 0;
    loop {
        match rustix::io::retry_on_intr(|| rustix::net::send(socket, &text, SendFlags::NOSIGNAL)) {
            Err(errno) if tries < TRIES && !is_final(&errno.into()) => {
                tries += 1;
                let _ = rustix::thread::nanosleep(&AGAIN);
            }
            other => return Ok(other.map(drop)?),
        }
    }
}

/// How often a message is sent again for which the kernel has no memory, and after how long.
const TRIES: u32 = 100;
const AGAIN: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Whether an error of send(2) says that nobody will ever hear it.
pub fn is_final(error: &io::Error) -> bool {
    let gone = [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN, Errno::MSGSIZE];
    error.raw_os_error().is_none_or(|number| gone.iter().any(|errno| errno.raw_os_error() == number))
}

/// As [`offer`], again and again for a while where an error passes: of what is said once, and waited for.
pub fn offer_once<M: Serialize>(socket: &OwnedFd, message: &M) {
    for _ in 0..TRIES {
        match offer(socket, message) {
            Err(error) if !is_final(&error) => {
                let _ = rustix::thread::nanosleep(&AGAIN);
            }
            _ => return,
        }
    }
}

/// Sends one message if there is room for it.
pub fn offer<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::send(socket, &text, flags))?;
    Ok(())
}

/// Sends one message and copies of descriptors with it, waiting for room.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_with<M: Serialize>(socket: impl AsFd, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let text = [io::IoSlice::new(&text)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &text, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// No message carries more descriptors.
const MOST_FDS: usize = 8;

/// Takes the next message without waiting, and the descriptors that came with it. What is no message is passed over.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_with<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<(Received<M>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let taken = take(&socket, |buffer| {
        let message = rustix::net::recvmsg(&socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags)?;
        Ok(message.bytes)
    });
    let received = understood(taken)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received, fds))
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
    let once =
        || understood(take(&socket, |buffer| Ok(rustix::net::recv(&socket, buffer, RecvFlags::DONTWAIT)?.0)));
    for _ in 0..TRIES {
        match once() {
            // What was sent is still there: it is not given up for an error that passes.
            Err(_) => drop(rustix::thread::nanosleep(&AGAIN)),
            received => return received,
        }
    }
    once()
}

/// The next message, taken into memory of its size: most are short, and memory for the largest comes from the kernel each
/// time. One that comes after the look waits for the next, for what is too long for the memory is cut off and lost.
fn take(
    socket: impl AsFd,
    mut into: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let look = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, length) = before_reset(|| rustix::net::recv(&socket, &mut [0_u8; 1], look))?;
    let mut buffer = vec![0_u8; length.clamp(1, LARGEST)];
    let length = before_reset(|| into(&mut buffer))?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Who closes its end without having read all makes an error at the other, which comes before what it has said itself, and
/// once.
fn before_reset<T>(mut receive: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut receive = || rustix::io::retry_on_intr(&mut receive);
    match receive() {
        Err(Errno::CONNRESET) => receive(),
        other => other,
    }
}

fn understood<M: DeserializeOwned>(taken: Result<Vec<u8>, Errno>) -> io::Result<Received<M>> {
    match taken {
        Ok(text) if text.is_empty() => Ok(Received::End),
        Ok(text) => Ok(serde_json::from_slice(&text).map_or(Received::Nothing, Received::Message)),
        Err(Errno::CONNRESET) => Ok(Received::End),
        Err(Errno::AGAIN) => Ok(Received::Nothing),
        Err(errno) => Err(errno.into()),
    }
}
