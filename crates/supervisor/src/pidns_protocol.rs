//! The messages between our init in a pid namespace and the supervisor, one per packet of a socket.
//!
//! A message is a letter, then a number of four bytes in native byte order, or text. Both sides are forks of one
//! process, so there are no versions.

use penfold_sys::child::Exit;
use penfold_sys::launch::{LaunchFailure, LaunchStep};

/// A message of our init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InitMessage {
    /// The leader waits for its release.
    Ready,
    /// The leader cannot be created, with the reason as a sentence; our init then exits.
    Refused(String),
    /// The leader executes its program.
    Running,
    /// The leader could not execute its program. Only the step `Directory` has a letter of its own; any other is
    /// decoded as `Exec`.
    Failed(LaunchFailure),
    /// The leader has ended.
    Ended(Exit),
    /// The leader was stopped by this signal.
    Stopped(i32),
    /// The leader was continued.
    Continued,
}

/// The only message of the supervisor: the leader may call execve(2).
pub(crate) const RELEASE: &[u8] = b"g";

/// The longest message; a longer text is truncated.
pub(crate) const MAX_MESSAGE_BYTES: usize = 512;

const READY: u8 = b'r';
const REFUSED: u8 = b'!';
const RUNNING: u8 = b's';
const NO_DIRECTORY: u8 = b'd';
const NOT_EXECUTED: u8 = b'x';
const NO_NETWORK: u8 = b'w';
const CODE: u8 = b'c';
const KILLED: u8 = b'k';
const STOPPED: u8 = b't';
const CONTINUED: u8 = b'n';

impl InitMessage {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (letter, number) = match self {
            InitMessage::Refused(reason) => return [&[REFUSED], reason.as_bytes()].concat(),
            InitMessage::Ready => (READY, 0),
            InitMessage::Running => (RUNNING, 0),
            InitMessage::Failed(LaunchFailure { step: LaunchStep::Directory, errno }) => {
                (NO_DIRECTORY, *errno)
            }
            InitMessage::Failed(LaunchFailure { step: LaunchStep::Network, errno }) => (NO_NETWORK, *errno),
            InitMessage::Failed(LaunchFailure { errno, .. }) => (NOT_EXECUTED, *errno),
            InitMessage::Ended(Exit::Code(code)) => (CODE, *code),
            InitMessage::Ended(Exit::Signal(signal)) => (KILLED, *signal),
            InitMessage::Stopped(signal) => (STOPPED, *signal),
            InitMessage::Continued => (CONTINUED, 0),
        };
        let mut text = vec![letter];
        text.extend(number.to_ne_bytes());
        text
    }

    /// Decodes a message; `None` if it is not one of our init.
    pub(crate) fn decode(text: &[u8]) -> Option<InitMessage> {
        let (letter, rest) = text.split_first()?;
        let number = || rest.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
        Some(match *letter {
            READY => InitMessage::Ready,
            REFUSED => InitMessage::Refused(String::from_utf8_lossy(rest).into_owned()),
            RUNNING => InitMessage::Running,
            NO_DIRECTORY => {
                InitMessage::Failed(LaunchFailure { step: LaunchStep::Directory, errno: number() })
            }
            NO_NETWORK => InitMessage::Failed(LaunchFailure { step: LaunchStep::Network, errno: number() }),
            NOT_EXECUTED => InitMessage::Failed(LaunchFailure { step: LaunchStep::Exec, errno: number() }),
            CODE => InitMessage::Ended(Exit::Code(number())),
            KILLED => InitMessage::Ended(Exit::Signal(number())),
            STOPPED => InitMessage::Stopped(number()),
            CONTINUED => InitMessage::Continued,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_sent() {
        for message in [
            InitMessage::Ready,
            InitMessage::Refused("cannot map the user".to_owned()),
            InitMessage::Running,
            InitMessage::Failed(LaunchFailure { step: LaunchStep::Directory, errno: 2 }),
            InitMessage::Failed(LaunchFailure { step: LaunchStep::Network, errno: 2 }),
            InitMessage::Failed(LaunchFailure { step: LaunchStep::Exec, errno: 13 }),
            InitMessage::Ended(Exit::Code(-1)),
            InitMessage::Ended(Exit::Signal(9)),
            InitMessage::Stopped(19),
            InitMessage::Continued,
        ] {
            assert_eq!(InitMessage::decode(&message.encode()), Some(message));
        }
        assert_eq!(InitMessage::decode(b""), None);
        assert_eq!(InitMessage::decode(b"?"), None);
    }
}
