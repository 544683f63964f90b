//! Writes a log.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::format::{FrameHead, FrameKind, HEAD, HEAD_LEN, LONGEST, LogAccess, LogFile, LogMark, Stream};
use super::reader::LogReader;
use super::{LOG, LogError};

/// The most bytes that [`LogWriter::drain`] moves in one call, except for the rest of its last read.
const AT_ONCE: u64 = 1 << 20;
/// The size of the buffer for a pipe until a read fills it: many commands write little, or nothing before their end.
const FIRST_BUFFER: usize = 2048;
/// The number of bytes in a frame that reports lost bytes.
const COUNT_LEN: usize = 8;

/// The writer of a log: made for a loop over poll(2), it never waits.
///
/// Its buffer uses memory only as far as output needs it. The process must block or ignore SIGXFSZ: a file size limit
/// then acts like a full disk, and otherwise kills the process.
#[derive(Debug)]
pub struct LogWriter {
    file: LogFile,
    /// The mark in the file.
    mark: LogMark,
    /// The next mark.
    next: LogMark,
    buffer: Vec<u8>,
}

/// The result of [`LogWriter::drain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainResult {
    /// The number of bytes that were read from the pipe.
    pub bytes: u64,
    /// What the pipe holds now.
    pub state: PipeState,
}

/// What a pipe holds after a call of [`LogWriter::drain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipeState {
    /// There may be more: the call reached its limit.
    Open,
    /// The pipe is empty.
    Empty,
    /// The pipe is at EOF: no process can write to it any more.
    End,
}

impl LogWriter {
    /// Creates the log in a record; its file stays within `limit` bytes, or 12 KiB if that is more.
    ///
    /// # Errors
    /// When a log exists, or the file cannot be created; a new file is removed again then.
    pub fn create(record: BorrowedFd<'_>, limit: u64) -> Result<LogWriter, LogError> {
        Ok(LogWriter::of(LogFile::create(record, limit)?, LogMark { end: 0, lost: 0 }))
    }

    /// Continues a log whose writer is dead, or creates a log.
    ///
    /// A log with invalid content is replaced; `limit` applies only to a new log.
    ///
    /// # Errors
    /// When the log is another user's or of a newer version, or cannot be opened or created.
    pub fn reopen(record: BorrowedFd<'_>, limit: u64) -> Result<LogWriter, LogError> {
        let opened =
            LogFile::open(record, LogAccess::Write).and_then(|file| file.mark().map(|mark| (file, mark)));
        match opened {
            Ok((file, mut mark)) => {
                // Output that the dead writer has not marked yet is overwritten. A mark inside a frame was written by
                // another process.
                if !LogReader::open(record, super::LogPosition::Start)?.ends_at(mark.end)? {
                    mark.end = file.shape.end_of_block(mark.end);
                }
                Ok(LogWriter::of(file, mark))
            }
            Err(LogError::Missing | LogError::Damaged(_)) => {
                // Also an empty file: its writer died before it wrote.
                match rustix::fs::unlinkat(record, LOG, rustix::fs::AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => LogWriter::create(record, limit),
                    Err(errno) => Err(LogError::io("replace")(errno)),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn of(file: LogFile, mark: LogMark) -> LogWriter {
        LogWriter { file, mark, next: mark, buffer: Vec::new() }
    }

    /// Returns the number of lost bytes that the log does not report yet.
    pub fn lost(&self) -> u64 {
        self.next.lost
    }

    /// Tells whether what comes next begins a line.
    pub fn is_at_line_start(&self) -> bool {
        let mut byte = [0];
        match self.next.end.checked_sub(1) {
            None => true,
            Some(last) => matches!(self.file.read(&mut byte, last), Ok(1)) && byte == *b"\n",
        }
    }

    /// Adds bytes. Bytes that do not fit are counted, and reported in the log once there is room again.
    pub fn append(&mut self, stream: Stream, mut bytes: &[u8]) {
        self.enlarge((HEAD_LEN + bytes.len()).min(LONGEST));
        while !bytes.is_empty() {
            let room = self.settle().unwrap_or(LONGEST).min(LONGEST) - HEAD_LEN;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(place) = self.buffer.get_mut(HEAD_LEN..HEAD_LEN + now.len()) {
                place.copy_from_slice(now);
            }
            self.keep(stream, now.len());
            bytes = later;
        }
        self.publish();
    }

    /// Moves the content of a nonblocking pipe into the log, up to about 1 MiB.
    ///
    /// # Errors
    /// Those of read(2), except those that mean "empty" or EOF. Bytes read before the error are in the log.
    pub fn drain(&mut self, stream: Stream, pipe: BorrowedFd<'_>) -> io::Result<DrainResult> {
        self.enlarge(FIRST_BUFFER);
        let mut bytes = 0;
        let state = loop {
            if bytes >= AT_ONCE {
                break Ok(PipeState::Open);
            }
            let room = self.settle().unwrap_or(LONGEST).min(self.buffer.len());
            // Each read is a frame. Filling the buffer first would cost an empty read for each read with data.
            match rustix::io::read(pipe, self.buffer.get_mut(HEAD_LEN..room).unwrap_or_default()) {
                // A terminal whose other side is closed returns EIO.
                Ok(0) | Err(Errno::IO) => break Ok(PipeState::End),
                Ok(filled) => {
                    self.keep(stream, filled);
                    if HEAD_LEN + filled == self.buffer.len() {
                        self.enlarge(LONGEST);
                    }
                    bytes += u64::try_from(filled).unwrap_or(0);
                }
                Err(Errno::AGAIN) => break Ok(PipeState::Empty),
                Err(Errno::INTR) => {}
                Err(errno) => break Err(io::Error::from(errno)),
            }
        };
        self.publish();
        Ok(DrainResult { bytes, state: state? })
    }

    /// Makes the buffer at least this large. Its content is lost.
    fn enlarge(&mut self, room: usize) {
        if self.buffer.len() < room {
            self.buffer = vec![0; room];
        }
    }

    /// Prepares for a frame and returns the room for it, including its head. `None` when nothing can be written.
    fn settle(&mut self) -> Option<usize> {
        self.enter_block()?;
        if self.next.lost > 0 {
            self.write_loss()?;
            self.enter_block()?;
        }
        usize::try_from(self.rest_of_block()).ok()
    }

    fn rest_of_block(&self) -> u64 {
        self.file.shape.end_of_block(self.next.end) - self.next.end
    }

    /// Leaves a block in which no frame fits. The mark moves to a block before the block is written to.
    fn enter_block(&mut self) -> Option<()> {
        let shape = self.file.shape;
        self.next.end = shape.next_frame(self.next.end);
        if shape.block_of(self.next.end) != shape.block_of(self.mark.end) {
            self.publish();
        }
        // If the mark could not be written, readers would accept overwritten bytes as valid.
        (shape.block_of(self.next.end) == shape.block_of(self.mark.end)).then_some(())
    }

    fn write_loss(&mut self) -> Option<()> {
        let head = FrameHead { time: now(), kind: FrameKind::Lost, length: 8 };
        let mut frame = [0; HEAD_LEN + COUNT_LEN];
        frame[..HEAD_LEN].copy_from_slice(&head.encode(self.next.end));
        frame[HEAD_LEN..].copy_from_slice(&self.next.lost.to_le_bytes());
        self.file.write(&frame, self.next.end).ok()?;
        self.next.end += HEAD + 8;
        self.next.lost = 0;
        Some(())
    }

    /// Writes the frame whose bytes are in the buffer, or counts the bytes as lost.
    fn keep(&mut self, stream: Stream, filled: usize) {
        let length = u32::try_from(filled).unwrap_or(0);
        if self.next.lost == 0 && self.may_write(filled) {
            let head = FrameHead { time: now(), kind: FrameKind::Data(stream), length };
            if let Some(place) = self.buffer.get_mut(..HEAD_LEN) {
                place.copy_from_slice(&head.encode(self.next.end));
            }
            let frame = self.buffer.get(..HEAD_LEN + filled).unwrap_or_default();
            if self.file.write(frame, self.next.end).is_ok() {
                self.next.end += HEAD + u64::from(length);
                return;
            }
        }
        self.next.lost = self.next.lost.saturating_add(u64::from(length));
    }

    /// Wakes those that wait for more: the mark is written again.
    pub fn wake_followers(&mut self) {
        let _ = self.file.write_mark(self.mark);
    }

    fn may_write(&self, filled: usize) -> bool {
        let shape = self.file.shape;
        shape.block_of(self.next.end) == shape.block_of(self.mark.end)
            && u64::try_from(filled).is_ok_and(|filled| HEAD + filled <= self.rest_of_block())
    }

    /// Publishes the mark, so that readers see the new frames.
    fn publish(&mut self) {
        if self.next != self.mark && self.file.write_mark(self.next).is_ok() {
            self.mark = self.next;
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
