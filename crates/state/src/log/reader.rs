//! Reads a log.

use std::os::fd::{AsFd, BorrowedFd};

use super::LogError;
use super::format::{FrameHead, FrameKind, HEAD, HEAD_LEN, LONGEST, LogAccess, LogFile, LogMark, Stream};
use crate::change_watch::ChangeWatch;

/// The place where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPosition {
    /// At the oldest output that is kept.
    Start,
    /// At this offset, which may be inside a frame.
    Offset(u64),
    /// This many lines before the end; a last line without a line feed counts.
    Last {
        /// The number of lines.
        lines: u64,
        /// Only lines of this stream count.
        of: Option<Stream>,
    },
    /// At the first frame that is not older than this time, in nanoseconds since 1970.
    Since(u64),
}

/// An item that a reader returns.
#[derive(Debug, PartialEq, Eq)]
pub enum LogEntry<'a> {
    /// Output of the sandbox.
    Data {
        /// The stream.
        stream: Stream,
        /// The time at which the supervisor read the bytes, in nanoseconds since 1970.
        time: u64,
        /// The offset of the first byte; the next byte is at the next offset.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Output that was lost because the disk was full.
    Lost {
        /// The time at which the disk had room again, in nanoseconds since 1970.
        time: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A part of the log that was overwritten before it was read.
    Missed {
        /// The length, including the heads of frames.
        bytes: u64,
    },
    /// A part of the log that no writer has written.
    Damaged {
        /// The offset of the part.
        offset: u64,
        /// The length of the part.
        bytes: u64,
    },
}

/// The place of a reader in a log: what the next entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    position: u64,
    skip_to: u64,
    not_before: u64,
}

/// A reader of a log: holds one buffer, takes no lock.
#[derive(Debug)]
pub struct LogReader {
    pub(super) file: LogFile,
    pub(super) watch: Option<ChangeWatch>,
    pub(super) mark: LogMark,
    /// The offset of the next frame, and its index in the buffer.
    position: u64,
    parsed: usize,
    /// The number of bytes in the buffer that were read from the file.
    filled: usize,
    buffer: Vec<u8>,
    /// Output before these limits is skipped.
    skip_to: u64,
    not_before: u64,
}

impl LogReader {
    /// Opens the log of a record.
    ///
    /// # Errors
    /// [`LogError::Missing`] without a log; otherwise when the log is damaged as a whole, another user's, or of a newer
    /// version.
    pub fn open(record: BorrowedFd<'_>, from: LogPosition) -> Result<LogReader, LogError> {
        let file = LogFile::open(record, LogAccess::Read)?;
        let mark = file.mark()?;
        let mut reader = LogReader {
            mark,
            position: file.shape.oldest(mark.end),
            file,
            watch: None,
            parsed: 0,
            filled: 0,
            buffer: vec![0; LONGEST],
            skip_to: 0,
            not_before: 0,
        };
        match from {
            LogPosition::Start => {}
            LogPosition::Offset(offset) => {
                reader.skip_to = offset.min(mark.end);
                // If that block is gone, the first entry says how much was missed.
                reader.go_to(reader.file.shape.start_of_block(reader.skip_to));
            }
            LogPosition::Last { lines, of } => reader.go_to_last(lines, of)?,
            LogPosition::Since(time) => reader.go_to_time(time)?,
        }
        Ok(reader)
    }

    /// Returns the next entry; `None` at the current end.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<LogEntry<'_>>, LogError> {
        loop {
            let at = self.file.shape.next_frame(self.position);
            if at != self.position {
                self.go_to(at);
            }
            if self.parsed + HEAD_LEN > self.filled || self.frame().is_none_or(|(_, _, whole)| !whole) {
                match self.refill()? {
                    RefillResult::Filled => {}
                    RefillResult::AtEnd => return Ok(None),
                    RefillResult::Overtaken(bytes) => return Ok(Some(LogEntry::Missed { bytes })),
                }
            }
            let offset = self.position;
            let Some((head, body, true)) = self.frame() else {
                let next = self.file.shape.end_of_block(offset).min(self.mark.end);
                self.go_to(next);
                return Ok(Some(LogEntry::Damaged { offset, bytes: next - offset }));
            };
            self.position += HEAD + u64::from(head.length);
            self.parsed = body.end;
            let skipped = usize::try_from(self.skip_to.saturating_sub(offset + HEAD)).unwrap_or(usize::MAX);
            if self.position <= self.skip_to || head.time < self.not_before {
                continue;
            }
            self.not_before = 0;
            let bytes = self.buffer.get(body.clone()).unwrap_or_default();
            return Ok(Some(match head.kind {
                FrameKind::Lost => LogEntry::Lost { time: head.time, bytes: count_of(bytes) },
                FrameKind::Data(stream) => LogEntry::Data {
                    stream,
                    time: head.time,
                    offset: offset + HEAD + u64::try_from(skipped).unwrap_or(0),
                    bytes: bytes.get(skipped..).unwrap_or_default(),
                },
            }));
        }
    }

    /// Returns the offset of the next entry, for [`LogPosition::Offset`].
    pub fn offset(&self) -> u64 {
        self.position.max(self.skip_to)
    }

    /// Returns the place of the next entry.
    pub fn place(&self) -> LogPlace {
        // Equal places are equal: what lies before the position is no difference.
        let skip_to = if self.skip_to > self.position { self.skip_to } else { 0 };
        LogPlace { position: self.position, skip_to, not_before: self.not_before }
    }

    /// Goes to a place of this reader, or of another one of the same log.
    pub fn go_to_place(&mut self, place: LogPlace) {
        if place != self.place() {
            self.go_to(place.position);
        }
        (self.skip_to, self.not_before) = (place.skip_to, place.not_before);
    }

    /// Returns the device and inode of the log, which no other log has while this reader is open.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn identity(&self) -> Result<(u64, u64), LogError> {
        let stat = rustix::fs::fstat(&self.file).map_err(LogError::io("look at"))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns the offset at which the log ended when it was last looked at.
    pub fn end(&self) -> u64 {
        self.mark.end
    }

    /// Returns the number of lost bytes after the last entry, as far as known.
    pub fn lost(&self) -> u64 {
        self.mark.lost
    }

    /// Tells whether a frame ends, or the first frame of a block begins, at the end that the mark gives.
    pub(super) fn ends_at(&mut self, end: u64) -> Result<bool, LogError> {
        self.mark.end = end;
        self.go_to(self.file.shape.start_of_block(end));
        while let Some(entry) = self.next_entry()? {
            if matches!(entry, LogEntry::Damaged { .. } | LogEntry::Missed { .. }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the offset of the next frame.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn go_to(&mut self, offset: u64) {
        self.position = offset;
        self.parsed = 0;
        self.filled = 0;
    }

    /// Parses the frame at the start of the unparsed bytes: its head, the range of its bytes, and whether all are
    /// present.
    fn frame(&self) -> Option<(FrameHead, std::ops::Range<usize>, bool)> {
        let rest = self.buffer.get(self.parsed..self.filled)?;
        let head = FrameHead::decode(rest.get(..HEAD_LEN)?, self.position)?;
        let begin = self.parsed + HEAD_LEN;
        let end = begin + usize::try_from(head.length).ok()?;
        Some((head, begin..end, end <= self.filled))
    }

    /// Fills the buffer from the position, up to the end of the block or of the log.
    fn refill(&mut self) -> Result<RefillResult, LogError> {
        if self.position >= self.mark.end {
            self.mark = self.file.mark()?;
            if self.position >= self.mark.end {
                return Ok(RefillResult::AtEnd);
            }
        }
        self.parsed = 0;
        self.filled = 0;
        let oldest = self.file.shape.oldest(self.mark.end);
        if self.position >= oldest {
            let end = self.file.shape.end_of_block(self.position).min(self.mark.end);
            let wanted = usize::try_from(end - self.position).unwrap_or(LONGEST).min(LONGEST);
            let room = self.buffer.get_mut(..wanted).unwrap_or_default();
            self.filled = self.file.read(room, self.position)?;
        }
        // Only the mark, read afterwards, shows whether the bytes were still valid.
        let mark = self.file.mark()?;
        if mark.end >= self.mark.end {
            self.mark = mark;
        }
        let oldest = self.file.shape.oldest(self.mark.end);
        if self.position >= oldest {
            return Ok(RefillResult::Filled);
        }
        let missed = oldest - self.position.max(self.skip_to).min(oldest);
        self.go_to(oldest);
        Ok(RefillResult::Overtaken(missed))
    }

    /// Searches block by block from the end, because a log may be long and the lines few.
    fn go_to_last(&mut self, lines: u64, of: Option<Stream>) -> Result<(), LogError> {
        let shape = self.file.shape;
        let end = self.mark.end;
        let mut limit = end;
        let mut wanted = None;
        let mut found = 0;
        self.skip_to = end;
        while lines > 0 && limit > shape.oldest(self.mark.end) {
            let begin = shape.start_of_block(limit - 1);
            let mut count = 0;
            let mut last = None;
            self.each(begin, limit, of, |_, bytes| {
                count += line_feeds(bytes);
                last = bytes.last().copied().or(last);
                true
            })?;
            // The last line feed ends the last line. Without it, the last line is unfinished and counts too.
            let needed = *wanted.get_or_insert(lines.saturating_add(u64::from(last == Some(b'\n'))));
            if last.is_none() && found == 0 {
                wanted = None;
            }
            if found + count >= needed {
                let mut before = found + count - needed + 1;
                let mut at = begin;
                self.each(begin, limit, of, |offset, bytes| {
                    let here = line_feeds(bytes);
                    if here < before {
                        before -= here;
                        return true;
                    }
                    at = offset + after_line_feed(bytes, before);
                    false
                })?;
                self.skip_to = at;
                self.go_to(begin);
                return Ok(());
            }
            found += count;
            limit = begin;
            self.skip_to = begin;
        }
        self.go_to(limit);
        Ok(())
    }

    /// Calls `seen` with the output between two offsets, until `seen` breaks.
    fn each(
        &mut self,
        begin: u64,
        end: u64,
        of: Option<Stream>,
        mut seen: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), LogError> {
        let skip_to = std::mem::take(&mut self.skip_to);
        self.go_to(begin);
        while self.position < end {
            match self.next_entry()? {
                Some(LogEntry::Data { stream, offset, bytes, .. })
                    if of.is_none_or(|of| of == stream) && offset < end =>
                {
                    if !seen(offset, bytes) {
                        break;
                    }
                }
                Some(_) => {}
                None => break,
            }
        }
        self.skip_to = skip_to;
        Ok(())
    }

    /// Goes back to the first block, counted from the end, that begins before the time.
    fn go_to_time(&mut self, time: u64) -> Result<(), LogError> {
        let shape = self.file.shape;
        let mut begin = shape.start_of_block(self.mark.end);
        while begin > shape.oldest(self.mark.end) {
            let mut head = [0; HEAD_LEN];
            self.file.read(&mut head, begin)?;
            if FrameHead::decode(&head, begin).is_some_and(|head| head.time < time) {
                break;
            }
            begin = shape.start_of_block(begin - 1);
        }
        self.go_to(begin);
        self.not_before = time;
        Ok(())
    }
}

impl AsFd for LogReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

enum RefillResult {
    Filled,
    AtEnd,
    /// This many bytes were overwritten.
    Overtaken(u64),
}

fn count_of(bytes: &[u8]) -> u64 {
    bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn line_feeds(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte == b'\n')).sum()
}

/// Returns the number of bytes up to and including the line feed with this number, counted from 1.
fn after_line_feed(bytes: &[u8], number: u64) -> u64 {
    let mut left = number;
    let at = bytes.iter().position(|&byte| {
        left -= u64::from(byte == b'\n');
        left == 0
    });
    u64::try_from(at.map_or(bytes.len(), |at| at + 1)).unwrap_or(0)
}
