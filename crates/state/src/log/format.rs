//! The format of a log file: front page, mark, blocks, frames. All numbers are little-endian.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{LOG, LogError};

/// The length of the front page.
const FRONT: u64 = 4096;
/// The position of the mark on the front page.
const MARK_AT: u64 = 64;
const MARK_RANGE: std::ops::Range<usize> = 64..64 + MARK_LEN;
const MARK_LEN: usize = 24;
const MAGIC: &[u8; 12] = b"penfold log\n";
const VERSION: u32 = 1;
/// Distinguishes a mark from zeros.
const MARK_SALT: u64 = 0x7065_6e66_6f6c_6421;

/// The length of a frame's head.
pub(crate) const HEAD: u64 = 16;
/// The same as `usize`.
pub(crate) const HEAD_LEN: usize = 16;
/// The length of the longest frame with its head, and so the smallest buffer of a reader.
pub(crate) const LONGEST: usize = 64 << 10;

const SMALLEST_BLOCK: u64 = 4 << 10;
const LARGEST_BLOCK: u64 = 1 << 20;
/// A ring with more blocks is rejected as damaged.
const MOST_BLOCKS: u64 = 1 << 24;
/// A larger offset is rejected as damaged: at 10 GB/s a log reaches this one after ten years.
const FAR: u64 = 1 << 62;

/// The stream that output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Bytes of a stream.
    Data(Stream),
    /// The number of lost bytes before this frame.
    Lost,
}

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            FrameKind::Data(Stream::Stdout) => 1,
            FrameKind::Data(Stream::Stderr) => 2,
            FrameKind::Lost => 3,
        }
    }

    fn of(code: u8) -> Option<FrameKind> {
        match code {
            1 => Some(FrameKind::Data(Stream::Stdout)),
            2 => Some(FrameKind::Data(Stream::Stderr)),
            3 => Some(FrameKind::Lost),
            _ => None,
        }
    }
}

/// The head of a frame, before its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// The time, in nanoseconds since 1970.
    pub(crate) time: u64,
    pub(crate) kind: FrameKind,
    /// The number of bytes that follow; at least one.
    pub(crate) length: u32,
}

impl FrameHead {
    /// Encodes the head with the low bytes of the frame's offset, so that remains of the previous round are no valid
    /// frames.
    pub(crate) fn encode(self, offset: u64) -> [u8; HEAD_LEN] {
        let own = offset.to_le_bytes();
        let mut bytes = [0; HEAD_LEN];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&[self.kind.code(), own[0], own[1], own[2]]);
        bytes
    }

    /// Decodes the head of the frame at `offset`; `None` if there is no frame.
    pub(crate) fn decode(bytes: &[u8], offset: u64) -> Option<FrameHead> {
        let time = u64_at(bytes, 0)?;
        let length = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let kind = FrameKind::of(*bytes.get(12)?)?;
        let fits = usize::try_from(length).is_ok_and(|length| (1..=LONGEST - HEAD_LEN).contains(&length));
        (fits && bytes.get(13..16)? == &offset.to_le_bytes()[..3]).then_some(FrameHead { time, kind, length })
    }
}

/// The end of the valid part of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogMark {
    /// The offset up to which frames are whole.
    pub(crate) end: u64,
    /// The number of lost bytes that no frame reports yet.
    pub(crate) lost: u64,
}

/// The result of [`LogMark::decode`].
#[derive(Debug, PartialEq, Eq)]
enum DecodeResult {
    Mark(LogMark),
    /// Perhaps half of a mark that is being written: the next read may be whole.
    Half,
    /// No writer writes this.
    Foreign,
}

impl LogMark {
    fn encode(self) -> [u8; MARK_LEN] {
        let check = self.end ^ self.lost.rotate_left(32) ^ MARK_SALT;
        let mut bytes = [0; MARK_LEN];
        bytes[..8].copy_from_slice(&self.end.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lost.to_le_bytes());
        bytes[16..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> DecodeResult {
        let (Some(end), Some(lost), Some(check)) = (u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16))
        else {
            // The front page is written as a whole, and never becomes shorter.
            return DecodeResult::Foreign;
        };
        if check != end ^ lost.rotate_left(32) ^ MARK_SALT {
            return DecodeResult::Half;
        }
        if end < FAR { DecodeResult::Mark(LogMark { end, lost }) } else { DecodeResult::Foreign }
    }
}

/// The size and the number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogShape {
    block: u64,
    blocks: u64,
}

impl LogShape {
    /// Returns the ring for a file of at most `limit` bytes, or the smallest possible ring.
    pub(crate) fn of(limit: u64) -> LogShape {
        let wanted = (limit / 64).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
        let block = 1 << wanted.ilog2();
        LogShape { block, blocks: (limit.saturating_sub(FRONT) / block).clamp(2, MOST_BLOCKS) }
    }

    /// Returns the place in the file for an offset.
    pub(crate) fn place(self, offset: u64) -> u64 {
        FRONT + (offset / self.block % self.blocks) * self.block + offset % self.block
    }

    /// Returns the number of the block with an offset, counted from the first block ever written.
    pub(crate) fn block_of(self, offset: u64) -> u64 {
        offset / self.block
    }

    /// Returns the offset at which this block begins.
    pub(crate) fn start_of_block(self, offset: u64) -> u64 {
        offset - offset % self.block
    }

    /// Returns the offset at which the next block begins.
    pub(crate) fn end_of_block(self, offset: u64) -> u64 {
        self.start_of_block(offset) + self.block
    }

    /// Returns where the next frame begins after a frame that ends here.
    ///
    /// The end of a block is skipped if the shortest frame of a writer does not fit.
    pub(crate) fn next_frame(self, offset: u64) -> u64 {
        let next = self.end_of_block(offset);
        if next - offset < HEAD + 8 { next } else { offset }
    }

    /// Returns the oldest offset that is still valid when frames are whole up to `end`.
    ///
    /// Only the block with `end` is written to, so only that block has replaced the oldest one.
    pub(crate) fn oldest(self, end: u64) -> u64 {
        (self.block_of(end) + 1).saturating_sub(self.blocks) * self.block
    }
}

/// The purpose for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogAccess {
    Read,
    Write,
}

/// The open file of a log.
#[derive(Debug)]
pub(crate) struct LogFile {
    fd: OwnedFd,
    pub(crate) shape: LogShape,
}

impl LogFile {
    /// Creates an empty log file; removes it again if a step fails.
    pub(crate) fn create(record: BorrowedFd<'_>, limit: u64) -> Result<LogFile, LogError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(record, LOG, flags, Mode::RUSR | Mode::WUSR).map_err(LogError::io("make"))?;
        let file = LogFile { fd, shape: LogShape::of(limit) };
        // The whole page is written: on a full disk it can then still be rewritten.
        let mut front = [0_u8; 4096];
        front[..12].copy_from_slice(MAGIC);
        front[12..16].copy_from_slice(&VERSION.to_le_bytes());
        front[16..24].copy_from_slice(&file.shape.block.to_le_bytes());
        front[24..32].copy_from_slice(&file.shape.blocks.to_le_bytes());
        front[MARK_RANGE].copy_from_slice(&LogMark { end: 0, lost: 0 }.encode());
        // One write: a reader finds the whole page or an empty file.
        if let Err(errno) = file.write_all(&front, 0) {
            let _ = rustix::fs::unlinkat(record, LOG, rustix::fs::AtFlags::empty());
            return Err(LogError::io("write")(errno));
        }
        Ok(file)
    }

    /// Opens the file without following a link, and only if it belongs to this user, or to the owner of its directory: the user
    /// whom the sandbox has. An empty file is a log that is being
    /// made, so it is missing.
    pub(crate) fn open(record: BorrowedFd<'_>, access: LogAccess) -> Result<LogFile, LogError> {
        let way = if access == LogAccess::Write { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = way | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(record, LOG, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => LogError::Missing,
            Errno::LOOP => LogError::Damaged("it is a symbolic link"),
            Errno::ISDIR | Errno::NXIO => LogError::Damaged("it is no plain file"),
            errno => LogError::io("open")(errno),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(LogError::io("look at"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(LogError::Damaged("it is no plain file"));
        }
        let user = rustix::process::geteuid().as_raw();
        let owner = || rustix::fs::fstat(record).map(|stat| stat.st_uid);
        if stat.st_uid != user && owner() != Ok(stat.st_uid) {
            return Err(LogError::Stranger { owner: stat.st_uid, user });
        }
        let mut front = [0; 32];
        let read = read_at(fd.as_fd(), &mut front, 0).map_err(LogError::io("read"))?;
        if read == 0 {
            return Err(LogError::Missing);
        }
        Ok(LogFile { shape: shape_of(&front[..read])?, fd })
    }

    /// Reads the mark. All output that was written before the mark is then visible.
    pub(crate) fn mark(&self) -> Result<LogMark, LogError> {
        // A read during a write may return half of each: the third number shows that, and the next read is whole.
        const TRIES: u32 = 1000;
        // With busy processes on its processor, a thread that yields waits for a time slice of each.
        const PATIENCE: Duration = Duration::from_millis(100);
        let mut begun = None;
        for _ in 0..TRIES {
            let mut bytes = [0; MARK_LEN];
            let read = read_at(self.fd.as_fd(), &mut bytes, MARK_AT).map_err(LogError::io("read"))?;
            fence(Ordering::SeqCst);
            match LogMark::decode(bytes.get(..read).unwrap_or_default()) {
                DecodeResult::Mark(mark) => return Ok(mark),
                DecodeResult::Half if begun.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {}
                DecodeResult::Half | DecodeResult::Foreign => break,
            }
            rustix::thread::sched_yield();
        }
        Err(LogError::Damaged("its front page makes no sense"))
    }

    pub(crate) fn write_mark(&self, mark: LogMark) -> Result<(), Errno> {
        let bytes = mark.encode();
        fence(Ordering::SeqCst);
        self.write_all(&bytes, MARK_AT)
    }

    /// Reads from an offset to the end of its block at most; stops at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let read = read_at(self.fd.as_fd(), buffer, self.shape.place(offset));
        fence(Ordering::SeqCst);
        read.map_err(LogError::io("read"))
    }

    /// Writes at an offset; the bytes must not cross the end of the block.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        self.write_all(bytes, self.shape.place(offset))
    }

    fn write_all(&self, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.fd, bytes, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    at += u64::try_from(written).unwrap_or(0);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl AsFd for LogFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn shape_of(front: &[u8]) -> Result<LogShape, LogError> {
    const BAD: LogError = LogError::Damaged("its front page makes no sense");
    let version = front.get(12..16).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let (Some(block), Some(blocks)) = (u64_at(front, 16), u64_at(front, 24)) else { return Err(BAD) };
    if !front.starts_with(MAGIC) {
        return Err(BAD);
    }
    match version {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => return Err(LogError::Newer),
        _ => return Err(BAD),
    }
    let fits = block.is_power_of_two()
        && (SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&block)
        && (2..=MOST_BLOCKS).contains(&blocks);
    if fits { Ok(LogShape { block, blocks }) } else { Err(BAD) }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut read = 0;
    while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, at + u64::try_from(read).unwrap_or(0)) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_stays_within_its_limit_and_uses_most_of_it() {
        for limit in [12 << 10, 64 << 10, 100_000, 1 << 20, 64 << 20, 10 << 30] {
            let shape = LogShape::of(limit);
            let whole = FRONT + shape.block * shape.blocks;
            assert!(whole <= limit && whole >= limit / 10 * 9 - 2 * SMALLEST_BLOCK, "{limit}: {shape:?}");
        }
    }

    #[test]
    fn a_ring_has_two_blocks_even_without_a_limit_to_speak_of() {
        assert_eq!(LogShape::of(0), LogShape { block: SMALLEST_BLOCK, blocks: 2 });
    }

    #[test]
    fn the_oldest_offset_never_shares_its_place_with_what_is_written() {
        let shape = LogShape { block: 4096, blocks: 3 };
        for end in (0..100_000).step_by(7) {
            let oldest = shape.oldest(end);
            assert!(oldest <= end && end - oldest < 3 * 4096);
            assert!(oldest == 0 || shape.block_of(end) - shape.block_of(oldest) == 2, "{end}");
        }
    }

    /// spec: 9.5
    #[test]
    fn only_a_half_written_mark_is_read_again() {
        let [one, two] = [5, 700].map(|end| LogMark { end, lost: 3 });
        let (old, new) = (one.encode(), two.encode());
        assert_eq!(LogMark::decode(&old), DecodeResult::Mark(one));
        for at in [8, 16] {
            assert_eq!(LogMark::decode(&[&new[..at], &old[at..]].concat()), DecodeResult::Half);
        }
        assert_eq!(LogMark::decode(&LogMark { end: FAR, lost: 0 }.encode()), DecodeResult::Foreign);
        assert_eq!(LogMark::decode(&old[..MARK_LEN - 1]), DecodeResult::Foreign);
    }

    #[test]
    fn a_head_of_another_place_is_none() {
        let head = FrameHead { time: 5, kind: FrameKind::Data(Stream::Stderr), length: 9 };
        assert_eq!(FrameHead::decode(&head.encode(4096), 4096), Some(head));
        assert_eq!(FrameHead::decode(&head.encode(4096), 4097), None);
        assert_eq!(FrameHead::decode(&[0; HEAD_LEN], 0), None);
        assert_eq!(FrameHead::decode(&FrameHead { length: 0, ..head }.encode(0), 0), None);
        assert_eq!(FrameHead::decode(&FrameHead { length: u32::MAX, ..head }.encode(0), 0), None);
    }
}
