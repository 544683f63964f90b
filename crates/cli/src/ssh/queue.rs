//! Descriptors that never block an end: what is to be written waits in a queue, and what is read comes when it is there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The most bytes that wait before a source is read no further.
pub(super) const FULL: usize = 256 << 10;

/// What a read gave.
pub(super) enum ReadResult {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing for now.
    Nothing,
    /// The other side has closed.
    End,
}

/// Makes reads and writes of a descriptor that only this process uses return at once.
pub(super) fn never_block(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Reads at most `most` bytes. An error counts as the end.
pub(super) fn take(fd: BorrowedFd<'_>, most: usize) -> ReadResult {
    let mut buffer = vec![0; most];
    match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut buffer)) {
        Ok(0) => ReadResult::End,
        Ok(count) => {
            buffer.truncate(count);
            ReadResult::Bytes(buffer)
        }
        Err(Errno::AGAIN) => ReadResult::Nothing,
        Err(_) => ReadResult::End,
    }
}

/// Writes what a descriptor takes of the first `most` bytes; returns their number.
///
/// # Errors
/// Those of write(2), but not `EAGAIN`.
pub(super) fn give(fd: BorrowedFd<'_>, queue: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let part = queue.get(..queue.len().min(most)).unwrap_or_default();
    match rustix::io::retry_on_intr(|| rustix::io::write(fd, part)) {
        Ok(count) => {
            queue.drain(..count);
            Ok(count)
        }
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}
