//! Follows a log for one reader, on a thread of its own.
//!
//! The queue to the reader is bounded. A slow reader delays only its own thread: the log stays on disk, and a part that
//! is overwritten meanwhile is reported as missed.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use penfold_state::log::{LogEntry, LogReader, LogWaitEnd};

use crate::drain::Drain;
use crate::sent_body::Sink;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// Everything was sent, and no more will come.
    Complete,
    /// The server ends.
    Draining,
}

/// What a follower gets.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Output, or a gap in it; the next piece begins at the offset.
    Entry(LogEntry<'a>, u64),
    /// Nothing came for a while.
    Silence,
}

/// Sends a log to a reader until no more will come, and returns why nothing more came. With `silence`, a call of `each` comes
/// after each such time without output. `has_ended` is called at least twice a second, and at once when the other end of
/// [`Sink::wake`] is shut down; its first `true` counts.
///
/// # Errors
/// When the log cannot be read, or the reader is gone.
pub fn follow_log(
    sink: &mut Sink,
    reader: &mut LogReader,
    drain: &Drain,
    silence: Option<Duration>,
    (mut has_ended, mut each): (impl FnMut() -> bool, impl FnMut(&mut Sink, Piece<'_>) -> io::Result<()>),
) -> io::Result<StreamEnd> {
    let mut peer = sink.wake.take();
    let ended = Cell::new(false);
    let next_silence = || silence.map(|silence| Instant::now() + silence);
    let mut due = next_silence();
    loop {
        while let Some((entry, next)) = next_entry(reader)? {
            each(sink, Piece::Entry(entry, next))?;
            due = next_silence();
        }
        sink.flush()?;
        let is_due = || due.is_some_and(|due| Instant::now() >= due);
        let stop = || {
            ended.set(has_ended());
            // Without a peer, nothing else shows that the reader is gone.
            ended.get() || drain.has_begun() || sink.is_closed() || is_due()
        };
        match reader.wait(stop, peer.as_ref().map(|peer| peer.as_fd())).map_err(io::Error::other)? {
            LogWaitEnd::More => {}
            LogWaitEnd::Ended if ended.get() => return Ok(StreamEnd::Complete),
            LogWaitEnd::Ended if drain.has_begun() => return Ok(StreamEnd::Draining),
            LogWaitEnd::Ended | LogWaitEnd::HungUp if sink.is_closed() => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // An end was observed elsewhere: look at once, and then as often as before.
            LogWaitEnd::HungUp => peer = None,
            LogWaitEnd::Ended => {
                each(sink, Piece::Silence)?;
                due = next_silence();
            }
        }
    }
}

/// Returns the next entry, and the offset at which the entry after it begins.
pub fn next_entry(reader: &mut LogReader) -> io::Result<Option<(LogEntry<'_>, u64)>> {
    let before = reader.offset();
    let Some(entry) = reader.next_entry().map_err(io::Error::other)? else { return Ok(None) };
    let next = match &entry {
        LogEntry::Data { offset, bytes, .. } => offset + entry_length(bytes),
        LogEntry::Missed { bytes } => before.saturating_add(*bytes),
        LogEntry::Damaged { offset, bytes } => offset + bytes,
        LogEntry::Lost { .. } => before,
    };
    Ok(Some((entry, next)))
}

/// The number of bytes.
pub fn entry_length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use penfold_state::log::{LogPosition, LogWriter, USUAL_LIMIT};

    use super::*;
    use crate::sent_body;

    /// spec: 15.4.1
    #[test]
    fn a_writer_that_was_woken_ends_when_its_reader_goes_later() {
        let dir = tempfile::tempdir().unwrap();
        let record: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let _writer = LogWriter::create(record.as_fd(), USUAL_LIMIT).unwrap();
        let mut log = LogReader::open(record.as_fd(), LogPosition::Start).unwrap();
        let (looks, looked) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let (body, handle) = sent_body::woken_body(move |sink| {
            let has_ended = || {
                // Nobody reads them at the end.
                let _ = looks.send(());
                false
            };
            let followed = follow_log(sink, &mut log, &Drain::default(), None, (has_ended, |_, _| Ok(())));
            done.send(followed.is_err()).map_err(io::Error::other)
        })
        .unwrap();
        handle.shutdown(Shutdown::Both).unwrap();
        // Two looks after the wake: the writer waits again.
        for _ in 0..3 {
            looked.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        drop(body);
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(true));
    }
}
