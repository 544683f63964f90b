//! What the two ends say to each other: a line of greeting from the far end, then frames in both directions.
//!
//! A frame is a byte for its kind, four bytes for the length of its body (big endian), and the body.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// The far end's first line. A shell may have printed something before.
pub(super) const GREETING: &[u8] = b"\npenfold ssh-end 1\n";
/// The longest body.
pub(super) const LONGEST: usize = 32 << 10;
/// The bytes of standard input that the near end sends before the command has taken them.
pub(super) const WINDOW: usize = 64 << 10;
/// Each end says that it lives when it has said nothing else for this time, in seconds.
pub(super) const ALIVE_SECONDS: u64 = 5;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// From the near end: the verb.
    Start(Start),
    /// From the near end: standard input.
    Input(Vec<u8>),
    /// From the near end: standard input is at its end.
    InputEnd,
    /// From the near end: a signal for the verb.
    Signal(i32),
    /// From the near end: nobody reads this output any more; 1 or 2.
    Closed(u8),
    /// From the far end: standard output.
    Output(Vec<u8>),
    /// From the far end: standard error.
    Error(Vec<u8>),
    /// From the far end: the verb has taken so many bytes of its standard input.
    Taken(u32),
    /// From the far end: the verb has ended.
    Exit(Exit),
    /// From both: this end lives.
    Alive,
}

/// The verb to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// The words of the command line, without the name of the program.
    pub(super) words: Vec<OsString>,
    /// Whether standard input follows.
    pub(super) input: bool,
}

/// How the verb ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By a signal.
    Signal(i32),
}

/// The other end said something that is no frame.
#[derive(Debug, thiserror::Error)]
#[error("the other end does not speak as this penfold does; are both of the same version?")]
pub(super) struct Foreign;

impl Frame {
    /// Adds the frame to a buffer.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let json = |value: Result<Vec<u8>, serde_json::Error>| value.unwrap_or_default();
        let (kind, body) = match self {
            Frame::Start(start) => (b's', json(serde_json::to_vec(start))),
            Frame::Input(bytes) => (b'i', bytes.clone()),
            Frame::InputEnd => (b'e', Vec::new()),
            Frame::Signal(number) => (b'k', number.to_be_bytes().to_vec()),
            Frame::Closed(stream) => (b'c', vec![*stream]),
            Frame::Output(bytes) => (b'1', bytes.clone()),
            Frame::Error(bytes) => (b'2', bytes.clone()),
            Frame::Taken(count) => (b't', count.to_be_bytes().to_vec()),
            Frame::Exit(exit) => (b'x', json(serde_json::to_vec(exit))),
            Frame::Alive => (b'a', Vec::new()),
        };
        to.push(kind);
        to.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        to.extend_from_slice(&body);
    }

    /// Takes the first frame from a buffer; `None` if it is not whole yet.
    ///
    /// # Errors
    /// When the bytes are no frame.
    pub(super) fn take(from: &mut Vec<u8>) -> Result<Option<Frame>, Foreign> {
        /// The words of a command line may be as long as the kernel permits.
        const LONGEST_START: usize = 16 << 20;
        let Some((&kind, rest)) = from.split_first() else { return Ok(None) };
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Foreign)?;
        if length > if kind == b's' { LONGEST_START } else { LONGEST } {
            return Err(Foreign);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let number = || body.first_chunk::<4>().copied().ok_or(Foreign);
        let frame = match kind {
            b's' => Frame::Start(serde_json::from_slice(body).map_err(|_| Foreign)?),
            b'i' => Frame::Input(body.to_vec()),
            b'e' => Frame::InputEnd,
            b'k' => Frame::Signal(i32::from_be_bytes(number()?)),
            b'c' => Frame::Closed(*body.first().ok_or(Foreign)?),
            b'1' => Frame::Output(body.to_vec()),
            b'2' => Frame::Error(body.to_vec()),
            b't' => Frame::Taken(u32::from_be_bytes(number()?)),
            b'x' => Frame::Exit(serde_json::from_slice(body).map_err(|_| Foreign)?),
            b'a' => Frame::Alive,
            _ => return Err(Foreign),
        };
        from.drain(..5 + length);
        Ok(Some(frame))
    }
}

/// Removes what came before the greeting, and the greeting; false if it is not there yet.
///
/// # Errors
/// When too much came that is no greeting.
pub(super) fn take_greeting(from: &mut Vec<u8>) -> Result<bool, Foreign> {
    /// What a shell prints before.
    const LONGEST_BEFORE: usize = 1 << 20;
    match from.windows(GREETING.len()).position(|window| window == GREETING) {
        Some(at) => {
            from.drain(..at + GREETING.len());
            Ok(true)
        }
        None if from.len() > LONGEST_BEFORE => Err(Foreign),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 32.2
    #[test]
    fn frames_come_as_they_were_written_in_any_pieces() {
        let start = Start { words: vec!["run".into(), "a b".into()], input: true };
        let frames = [
            Frame::Start(start),
            Frame::Input(vec![0; LONGEST]),
            Frame::InputEnd,
            Frame::Signal(15),
            Frame::Closed(1),
            Frame::Output(b"x".to_vec()),
            Frame::Error(Vec::new()),
            Frame::Taken(70_000),
            Frame::Exit(Exit::Signal(9)),
            Frame::Exit(Exit::Code(255)),
            Frame::Alive,
        ];
        let mut text = Vec::new();
        for frame in &frames {
            frame.write(&mut text);
        }
        for piece in [1, 3, 4096, text.len()] {
            let (mut buffer, mut taken) = (Vec::new(), Vec::new());
            for part in text.chunks(piece) {
                buffer.extend_from_slice(part);
                while let Some(frame) = Frame::take(&mut buffer).unwrap() {
                    taken.push(frame);
                }
            }
            assert_eq!(taken, frames, "{piece}");
        }
    }

    /// spec: 32.2
    #[test]
    fn other_bytes_are_refused() {
        for text in [&b"Welcome"[..], b"i\xff\xff\xff\xff", b"k\0\0\0\x01x", b"s\0\0\0\x02{}"] {
            assert!(Frame::take(&mut text.to_vec()).is_err(), "{text:?}");
        }
        let mut text = [b"motd", GREETING, b"a\0\0\0\0"].concat();
        assert!(take_greeting(&mut text).unwrap());
        assert_eq!(Frame::take(&mut text).unwrap(), Some(Frame::Alive));
        assert!(!take_greeting(&mut b"\npenfold ssh".to_vec()).unwrap());
    }
}
