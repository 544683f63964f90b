//! The log of a detached sandbox: everything that it wrote to its standard output and error.
//!
//! The log is one file, `log`, in the record: a front page and a ring of blocks. An *offset* is a place in the endless
//! stream of blocks. The offset determines the place in the file, and stays valid for as long as its block is kept. A
//! *frame* holds the bytes read from one stream at one time. A frame does not cross the end of its block: a reader that
//! finds damage continues with the next block.
//!
//! - [`LogWriter`] — a single one, in the supervisor: never waits, never fails, overwrites the oldest block.
//! - [`LogReader`] — any number: reads without a lock, follows the log, and reports the parts that it missed.
//!
//! Invariants: the writer knows no reader, so no reader can delay it. The *mark* on the front page is the offset up to
//! which frames are whole. The mark moves before a used block is overwritten. By the mark, a reader can check
//! afterwards that the bytes it has read were still valid.

mod follow;
mod format;
mod reader;
mod writer;

use std::io;

pub use follow::LogWaitEnd;
pub use format::Stream;
pub use reader::{LogEntry, LogPlace, LogPosition, LogReader};
pub use writer::{DrainResult, LogWriter, PipeState};

/// The default size limit of a log.
pub const USUAL_LIMIT: u64 = 64 << 20;

pub(crate) const LOG: &str = "log";

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The sandbox has no log.
    #[error("there is no log")]
    Missing,
    /// An operation on the file failed.
    #[error("cannot {act} the log")]
    Io {
        /// The operation.
        act: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file belongs to another user.
    #[error("the log belongs to user {owner}, not to {user}")]
    Stranger {
        /// The owner of the file.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The file has a format that no writer makes.
    #[error("the log is damaged: {0}")]
    Damaged(&'static str),
    /// The file is of a newer version than this one.
    #[error("the log is of a newer format than this penfold knows")]
    Newer,
}

impl LogError {
    fn io<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> LogError {
        move |source| LogError::Io { act, source: source.into() }
    }
}
