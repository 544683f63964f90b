//! The messages between a client and a supervisor: JSON, one message a packet (`SOCK_SEQPACKET`).
//!
//! Fields and variants are only ever added.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penfold_teardown::{Cause, Level};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::{ExitStatus, Outcome};
use crate::requester::Requester;

/// The version of the control socket's protocol.
///
/// A supervisor sends its own version first. It refuses unknown requests, and they change nothing.
pub const PROTOCOL: u32 = 1;

/// A request to a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Stop the sandbox politely.
    Stop {
        /// The polite signal; 0 means the sandbox's own.
        #[serde(default)]
        signal: i32,
        /// A process group that has received the signal from its terminal.
        #[serde(default)]
        spared_group: Option<i32>,
        /// The grace in milliseconds; `None` means the sandbox's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// Kill the sandbox.
    Kill,
    /// For stop and kill requests of this client, report the survivors this many milliseconds after the kill. An older
    /// supervisor refuses this, and uses its own patience.
    Patience(u64),
    /// For the next requests of this client: who requests the end. Of a client of the control socket only the verb is believed.
    /// Sent only to a supervisor that says in its greeting that it understands this.
    By(Requester),
    /// Send a signal to the leader.
    Forward(i32),
    /// Act on a signal that the terminal has sent to its foreground group, which is the launcher's. Only valid from the
    /// launcher.
    Key {
        /// The signal: INT or QUIT.
        signal: i32,
        /// The launcher's process group.
        group: i32,
    },
    /// Nothing to do: the launcher has forwarded all signals that it received before [`Answer::LeaderEnded`].
    Heard,
    /// Act as the policy says for an owner that is gone.
    OwnerGone,
    /// End the sandbox, because the launcher's standard input has hung up. Only valid from the launcher.
    StdinClosed {
        /// Whether to kill. Otherwise the sandbox is stopped with half of its grace; the other half has passed.
        kill: bool,
    },
    /// End the lease this many milliseconds from now; 0 means never.
    Extend(u64),
    /// Run a command in the sandbox. Four descriptors come with the request: a sealed memory file with the command's
    /// specification as JSON, and its standard input, output and error. A recorded exec has only the first two: an
    /// older supervisor then refuses the request.
    Exec(ExecMessage),
    /// Kill an exec at once, by its number.
    KillExec(u32),
    /// Stop an exec politely.
    StopExec {
        /// The number of the exec.
        number: u32,
        /// The polite signal; 0 means the exec's own.
        #[serde(default)]
        signal: i32,
        /// The grace in milliseconds; `None` means the exec's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
    },
    /// Send a signal to the command of an exec.
    SignalExec {
        /// The number of the exec.
        number: u32,
        /// The signal.
        signal: i32,
    },
    /// Set the size of the terminal of a recorded exec.
    ResizeExec {
        /// The number of the exec.
        number: u32,
        /// The size.
        size: Size,
    },
    /// End the open input of a recorded exec without a terminal.
    CloseExecInput(u32),
    /// List the execs whose end is not verified.
    Execs,
    /// Answer once the end of an exec is verified: with [`Answer::ExecEnded`] if the end is on disk, else with
    /// [`Answer::UnwrittenEnds`].
    AwaitExec(u32),
    /// List the verified ends of execs that could not be written to a full disk so far.
    UnwrittenEnds,
    /// Attach the client to the sandbox's terminal. One end of a stream socket comes with the request: the terminal's
    /// output is written to it, and bytes read from it are the terminal's input.
    Attach(Size),
    /// The attached client's terminal has another size now.
    Resize(Size),
    /// Go on without the launcher, which knows that the command runs and has printed the id. Only valid from the
    /// launcher.
    LetGo,
}

/// The facts about an exec that the supervisor needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecMessage {
    /// The command, for people, shortened.
    pub command: Vec<String>,
    /// Whether the exec continues when its client is gone.
    #[serde(default)]
    pub detached: bool,
    /// Whether the output and the end of the exec are recorded on disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// An answer of a supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The first message on a control socket.
    Hello {
        /// The version that this supervisor speaks.
        protocol: u32,
        /// The short id of the sandbox.
        id: String,
        /// Whether the supervisor understands [`Request::By`]. Older ones do not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by: bool,
    },
    /// The command runs.
    Running,
    /// The command of a recorded exec runs.
    ExecStarted {
        /// The number of the exec.
        number: u32,
        /// The pid of the command in penfold's pid namespace; `None` if unknown.
        leader: Option<i32>,
    },
    /// The numbers of the execs whose end is not verified.
    Execs(Vec<u32>),
    /// The end of the exec is verified, or there is no such exec.
    ExecEnded(u32),
    /// Verified ends that are not on disk.
    UnwrittenEnds(Vec<UnwrittenEnd>),
    /// The request is done.
    Done,
    /// The request is refused; a sentence.
    Refused(String),
    /// The end of the sandbox has begun.
    Ending(Ending),
    /// The signal of the terminal is left to the leader.
    PassedOn,
    /// The leader, with this pid, was stopped, and the launcher must stop too, because its terminal has not stopped it.
    /// Sent to the launcher only.
    Suspended(i32),
    /// The leader has ended. The end of the other members depends on the signals that the launcher has received by
    /// then: the launcher forwards them, and sends [`Request::Heard`].
    LeaderEnded,
    /// The sandbox has ended, or its survivors take longer than the patience.
    Outcome(Box<Outcome>),
}

/// The verified end of an exec that is not on disk: the disk is full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnwrittenEnd {
    /// The number of the exec.
    pub number: u32,
    /// How the command ended; `None` if unknown.
    pub exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub cause: Cause,
    /// How membership was known.
    pub level: Level,
    /// The time of the end, in milliseconds since 1970.
    pub at_ms: u64,
}

/// How a sandbox is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Politely, with this grace in milliseconds.
    Stopping(u64),
    /// At once.
    Killing,
}

/// The largest message: a little less than the default size of a socket's buffer.
const LARGEST: usize = 160 * 1024;

/// Sends one message, and waits for room.
///
/// # Errors
/// Those of send(2). When the kernel has no memory for the message, the error comes only after repeated tries.
pub fn send_message<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
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

/// The number of tries to send a message for which the kernel has no memory, and the time between them.
const TRIES: u32 = 100;
const AGAIN: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Tells whether an error of send(2) is final: no peer will ever receive the message.
pub fn is_final(error: &io::Error) -> bool {
    let gone = [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN, Errno::MSGSIZE];
    error.raw_os_error().is_none_or(|number| gone.iter().any(|errno| errno.raw_os_error() == number))
}

/// Like [`offer_message`], but repeats for a while after a temporary error: for messages that are sent once, and awaited.
pub fn offer_once<M: Serialize>(socket: &OwnedFd, message: &M) {
    for _ in 0..TRIES {
        match offer_message(socket, message) {
            Err(error) if !is_final(&error) => {
                let _ = rustix::thread::nanosleep(&AGAIN);
            }
            _ => return,
        }
    }
}

/// Sends one message if there is room for it.
pub fn offer_message<M: Serialize>(socket: &OwnedFd, message: &M) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::send(socket, &text, flags))?;
    Ok(())
}

/// Sends one message and copies of descriptors with it, and waits for room.
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

/// The most descriptors in a message.
const MOST_FDS: usize = 8;

/// Receives the next message without waiting, and the descriptors that came with it. Malformed messages are skipped.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_with<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<(ReceiveResult<M>, Vec<OwnedFd>)> {
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

/// The result of receiving from a socket.
pub enum ReceiveResult<M> {
    /// A message.
    Message(M),
    /// There is no message yet.
    Nothing,
    /// The peer is gone.
    End,
}

/// Receives the next message without waiting. Malformed messages are skipped.
pub fn receive_message<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<ReceiveResult<M>> {
    let once =
        || understood(take(&socket, |buffer| Ok(rustix::net::recv(&socket, buffer, RecvFlags::DONTWAIT)?.0)));
    for _ in 0..TRIES {
        match once() {
            // The message is still in the socket: do not give it up for a temporary error.
            Err(_) => drop(rustix::thread::nanosleep(&AGAIN)),
            received => return received,
        }
    }
    once()
}

/// Receives the next message into a buffer of its size.
///
/// Most messages are short, and the kernel would map a buffer for the largest anew each time. A message that arrives
/// after the size was queried is left for the next call: a buffer that is too short would cut it off.
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

/// Retries after the error that a peer causes by closing its end with unread messages. The error comes once, before the
/// peer's own messages.
fn before_reset<T>(mut receive: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut receive = || rustix::io::retry_on_intr(&mut receive);
    match receive() {
        Err(Errno::CONNRESET) => receive(),
        other => other,
    }
}

fn understood<M: DeserializeOwned>(taken: Result<Vec<u8>, Errno>) -> io::Result<ReceiveResult<M>> {
    match taken {
        Ok(text) if text.is_empty() => Ok(ReceiveResult::End),
        Ok(text) => Ok(serde_json::from_slice(&text).map_or(ReceiveResult::Nothing, ReceiveResult::Message)),
        Err(Errno::CONNRESET) => Ok(ReceiveResult::End),
        Err(Errno::AGAIN) => Ok(ReceiveResult::Nothing),
        Err(errno) => Err(errno.into()),
    }
}
