//! What our init in a pid namespace and the supervisor say to each other over a socket, one message a packet.
//!
//! A message is a letter, then a number of four bytes in the order of this machine, or text. Both sides are forks of one
//! process: there are no versions.

use penfold_sys::child::Exit;
use penfold_sys::launch::{Failure, Step};

/// What our init says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InitMessage {
    /// The leader waits to be let go.
    Ready,
    /// It cannot be made, in a sentence; our init ends with that.
    Refused(String),
    /// The leader runs its program.
    Running,
    /// The leader could not become its program. Which step failed is told of that into its directory only.
    Failed(Failure),
    /// The leader has ended.
    Ended(Exit),
    /// The leader was stopped, by this signal.
    Stopped(i32),
    /// The leader goes on.
    Continued,
}

/// What the supervisor says, its only word: the leader may become its program.
pub(crate) const RELEASE: &[u8] = b"g";

/// As long as a message can be; the text of a longer one is cut short.
pub(crate) const LONGEST: usize = 512;

const READY: u8 = b'r';
const REFUSED: u8 = b'!';
const RUNNING: u8 = b's';
const NO_DIRECTORY: u8 = b'd';
const NOT_EXECUTED: u8 = b'x';
const CODE: u8 = b'c';
const KILLED: u8 = b'k';
const STOPPED: u8 = b't';
const CONTINUED: u8 = b'n';

impl InitMessage {
    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (letter, number) = match self {
            InitMessage::Refused(reason) => return [&[REFUSED], reason.as_bytes()].concat(),
            InitMessage::Ready => (READY, 0),
            InitMessage::Running => (RUNNING, 0),
            InitMessage::Failed(Failure { step: Step::Directory, errno }) => (NO_DIRECTORY, *errno),
            InitMessage::Failed(Failure { errno, .. }) => (NOT_EXECUTED, *errno),
            InitMessage::Ended(Exit::Code(code)) => (CODE, *code),
            InitMessage::Ended(Exit::Signal(signal)) => (KILLED, *signal),
            InitMessage::Stopped(signal) => (STOPPED, *signal),
            InitMessage::Continued => (CONTINUED, 0),
        };
        let mut text = vec![letter];
        text.extend(number.to_ne_bytes());
        text
    }

    /// Reads what came; none if it is no message of our init.
    pub(crate) fn decode(text: &[u8]) -> Option<InitMessage> {
        let (letter, rest) = text.split_first()?;
        let number = || rest.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
        Some(match *letter {
            READY => InitMessage::Ready,
            REFUSED => InitMessage::Refused(String::from_utf8_lossy(rest).into_owned()),
            RUNNING => InitMessage::Running,
            NO_DIRECTORY => InitMessage::Failed(Failure { step: Step::Directory, errno: number() }),
            NOT_EXECUTED => InitMessage::Failed(Failure { step: Step::Exec, errno: number() }),
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
            InitMessage::Failed(Failure { step: Step::Directory, errno: 2 }),
            InitMessage::Failed(Failure { step: Step::Exec, errno: 13 }),
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
