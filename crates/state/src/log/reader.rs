//! Those who read a log.

use std::os::fd::{AsFd, BorrowedFd};

use super::LogError;
use super::format::{Access, HEAD, HEAD_LEN, Head, Kind, LONGEST, LogFile, Mark, Stream};
use crate::change_watch::ChangeWatch;

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At the oldest that is kept.
    Start,
    /// At this offset, be it in the middle of a frame.
    Offset(u64),
    /// As many lines before the end; a last one without a line feed counts.
    Last {
        /// How many.
        lines: u64,
        /// Only those of this stream count.
        of: Option<Stream>,
    },
    /// At the first frame that is not older, in nanoseconds since 1970.
    Since(u64),
}

/// What a reader comes upon.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// What was written to a stream.
    Data {
        /// To which.
        stream: Stream,
        /// When the supervisor took it, in nanoseconds since 1970.
        time: u64,
        /// Where the first of the bytes is; the next one is at the next offset.
        offset: u64,
        /// As they were written.
        bytes: &'a [u8],
    },
    /// Bytes that could not be kept, for want of room on the disk.
    Lost {
        /// When there was room again, in nanoseconds since 1970.
        time: u64,
        /// How many.
        bytes: u64,
    },
    /// A part of the log that was overwritten before it was read.
    Missed {
        /// Its length; the heads of frames count.
        bytes: u64,
    },
    /// A part of the log that is not what the writer wrote.
    Damaged {
        /// Where it begins.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
}

/// One who reads a log: holds one buffer, and takes no lock.
#[derive(Debug)]
pub struct Reader {
    pub(super) file: LogFile,
    pub(super) watch: Option<ChangeWatch>,
    pub(super) mark: Mark,
    /// The next frame, and where it begins in the buffer.
    position: u64,
    parsed: usize,
    /// How much of the buffer holds what is in the file.
    filled: usize,
    buffer: Vec<u8>,
    /// What is before is not shown.
    skip_to: u64,
    not_before: u64,
}

impl Reader {
    /// Opens the log of a record.
    ///
    /// # Errors
    /// [`LogError::Missing`] when there is none; when it is damaged as a whole, another user's, or of a newer version.
    pub fn open(record: BorrowedFd<'_>, from: From) -> Result<Reader, LogError> {
        let file = LogFile::open(record, Access::Read)?;
        let mark = file.mark()?;
        let mut reader = Reader {
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
            From::Start => {}
            From::Offset(offset) => {
                reader.skip_to = offset.min(mark.end);
                // Where that is gone, the first entry says how much was missed.
                reader.go_to(reader.file.shape.start_of_block(reader.skip_to));
            }
            From::Last { lines, of } => reader.go_to_last(lines, of)?,
            From::Since(time) => reader.go_to_time(time)?,
        }
        Ok(reader)
    }

    /// The next entry; none at what is the end for now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, LogError> {
        loop {
            let at = self.file.shape.next_frame(self.position);
            if at != self.position {
                self.go_to(at);
            }
            if self.parsed + HEAD_LEN > self.filled || self.frame().is_none_or(|(_, _, whole)| !whole) {
                match self.refill()? {
                    Refill::Filled => {}
                    Refill::AtEnd => return Ok(None),
                    Refill::Overtaken(bytes) => return Ok(Some(Entry::Missed { bytes })),
                }
            }
            let offset = self.position;
            let Some((head, body, true)) = self.frame() else {
                let next = self.file.shape.end_of_block(offset).min(self.mark.end);
                self.go_to(next);
                return Ok(Some(Entry::Damaged { offset, bytes: next - offset }));
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
                Kind::Lost => Entry::Lost { time: head.time, bytes: count_of(bytes) },
                Kind::Data(stream) => Entry::Data {
                    stream,
                    time: head.time,
                    offset: offset + HEAD + u64::try_from(skipped).unwrap_or(0),
                    bytes: bytes.get(skipped..).unwrap_or_default(),
                },
            }));
        }
    }

    /// Where the next entry begins, as [`From::Offset`] takes it.
    pub fn offset(&self) -> u64 {
        self.position.max(self.skip_to)
    }

    /// How many bytes could not be kept after the last entry, as far as is known.
    pub fn lost(&self) -> u64 {
        self.mark.lost
    }

    /// Whether a frame ends, or the first of a block begins, where the mark says that the log ends.
    pub(super) fn ends_at(&mut self, end: u64) -> Result<bool, LogError> {
        self.mark.end = end;
        self.go_to(self.file.shape.start_of_block(end));
        while let Some(entry) = self.next_entry()? {
            if matches!(entry, Entry::Damaged { .. } | Entry::Missed { .. }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next frame.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn go_to(&mut self, offset: u64) {
        self.position = offset;
        self.parsed = 0;
        self.filled = 0;
    }

    /// The frame at the beginning of what is not parsed: its head, where its bytes are, and whether all are there.
    fn frame(&self) -> Option<(Head, std::ops::Range<usize>, bool)> {
        let rest = self.buffer.get(self.parsed..self.filled)?;
        let head = Head::decode(rest.get(..HEAD_LEN)?, self.position)?;
        let begin = self.parsed + HEAD_LEN;
        let end = begin + usize::try_from(head.length).ok()?;
        Some((head, begin..end, end <= self.filled))
    }

    /// Reads from the position on, as much as the buffer, the block and the log have.
    fn refill(&mut self) -> Result<Refill, LogError> {
        if self.position >= self.mark.end {
            self.mark = self.file.mark()?;
            if self.position >= self.mark.end {
                return Ok(Refill::AtEnd);
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
        // Only now it is known whether that was still what had been there.
        let mark = self.file.mark()?;
        if mark.end >= self.mark.end {
            self.mark = mark;
        }
        let oldest = self.file.shape.oldest(self.mark.end);
        if self.position >= oldest {
            return Ok(Refill::Filled);
        }
        let missed = oldest - self.position.max(self.skip_to).min(oldest);
        self.go_to(oldest);
        Ok(Refill::Overtaken(missed))
    }

    /// Block by block from the end, for a log may be long and the lines few.
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
            // The last line feed ends the last line; without one the last line is not ended.
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

    /// Calls `seen` with what was written between two offsets, until it says that it has seen enough.
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
                Some(Entry::Data { stream, offset, bytes, .. })
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
            if Head::decode(&head, begin).is_some_and(|head| head.time < time) {
                break;
            }
            begin = shape.start_of_block(begin - 1);
        }
        self.go_to(begin);
        self.not_before = time;
        Ok(())
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

enum Refill {
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

/// How many bytes there are up to and with the line feed of this number, counted from 1.
fn after_line_feed(bytes: &[u8], number: u64) -> u64 {
    let mut left = number;
    let at = bytes.iter().position(|&byte| {
        left -= u64::from(byte == b'\n');
        left == 0
    });
    u64::try_from(at.map_or(bytes.len(), |at| at + 1)).unwrap_or(0)
}
