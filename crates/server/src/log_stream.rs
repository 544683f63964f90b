//! Follows a log for one reader, on a thread of its own.
//!
//! The queue to the reader is bounded. A slow reader delays only its own thread: the log stays on disk, and a part that
//! is overwritten meanwhile is reported as missed.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use penfold_state::log::{Entry, Reader, Waited};

use crate::drain::Drain;
use crate::sent_body::Sink;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// Everything was sent, and no more will come.
    Complete,
    /// The server ends.
    Draining,
}

/// What a follower gets.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// Output, or a gap in it; the next piece begins at the offset.
    Entry(Entry<'a>, u64),
    /// Nothing came for a while.
    Silence,
}

/// Sends a log to a reader until no more will come. `has_ended` is called at least twice a second.
///
/// # Errors
/// When the log cannot be read, or the reader is gone.
pub(crate) fn follow(
    sink: &mut Sink,
    reader: &mut Reader,
    drain: &Drain,
    silence: Duration,
    (mut has_ended, mut each): (impl FnMut() -> bool, impl FnMut(&mut Sink, Piece<'_>) -> io::Result<()>),
) -> io::Result<StreamEnd> {
    let ended = Cell::new(false);
    let mut due = Instant::now() + silence;
    loop {
        while let Some((entry, next)) = next(reader)? {
            each(sink, Piece::Entry(entry, next))?;
            due = Instant::now() + silence;
        }
        sink.flush()?;
        let stop = || {
            ended.set(has_ended());
            ended.get() || drain.has_begun() || Instant::now() >= due
        };
        let peer = sink.wake.as_ref().map(|wake| wake.as_fd());
        match reader.wait(stop, peer).map_err(io::Error::other)? {
            Waited::More => {}
            Waited::HungUp => return Err(io::ErrorKind::BrokenPipe.into()),
            Waited::Ended if ended.get() => return Ok(StreamEnd::Complete),
            Waited::Ended if drain.has_begun() => return Ok(StreamEnd::Draining),
            Waited::Ended => {
                each(sink, Piece::Silence)?;
                due = Instant::now() + silence;
            }
        }
    }
}

/// Returns the next entry, and the offset at which the entry after it begins.
pub(crate) fn next(reader: &mut Reader) -> io::Result<Option<(Entry<'_>, u64)>> {
    let before = reader.offset();
    let Some(entry) = reader.next_entry().map_err(io::Error::other)? else { return Ok(None) };
    let next = match &entry {
        Entry::Data { offset, bytes, .. } => offset + length(bytes),
        Entry::Missed { bytes } => before.saturating_add(*bytes),
        Entry::Damaged { offset, bytes } => offset + bytes,
        Entry::Lost { .. } => before,
    };
    Ok(Some((entry, next)))
}

/// The number of bytes.
pub(crate) fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
