//! The log of a sandbox that goes on without who started it: what it wrote to its standard output and error.
//!
//! One file, `log`, in the record: a front page and a ring of blocks. An *offset* is a place in the endless stream of
//! blocks; where it lies in the file follows from it, and it means the same for as long as it is kept. A *frame* is
//! what was taken from one stream at one time; it does not cross the end of its block, so that a reader who has lost
//! its way goes on with the next block.
//!
//! - [`Writer`] — one at a time, the supervisor: never waits, never fails, overwrites the oldest.
//! - [`Reader`] — any number: reads without a lock, follows, and says what it missed.
//!
//! Invariants: the writer knows of no reader, so none can hold it up. The *mark* on the front page says how far frames
//! are whole; it is moved before a block is written to that was used before, so that a reader can tell afterwards
//! whether what it has read was still there.

mod follow;
mod format;
mod reader;
mod writer;

use std::io;

pub use follow::Waited;
pub use format::Stream;
pub use reader::{Entry, From, Reader};
pub use writer::{Drained, PipeState, Writer};

/// How much of a log is kept if nothing else is said.
pub const USUAL_LIMIT: u64 = 64 << 20;

pub(crate) const LOG: &str = "log";

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The sandbox has none.
    #[error("there is no log")]
    Missing,
    /// The file cannot be worked with.
    #[error("cannot {act} the log")]
    Io {
        /// What was tried.
        act: &'static str,
        /// What stood in the way.
        source: io::Error,
    },
    /// The file is another user's.
    #[error("the log belongs to user {owner}, not to {user}")]
    Stranger {
        /// Whose it is.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// The file is not what a writer makes.
    #[error("the log is damaged: {0}")]
    Damaged(&'static str),
    /// The file is of a version that is not known here.
    #[error("the log is of a newer format than this penfold knows")]
    Newer,
}

impl LogError {
    fn io<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> LogError {
        move |source| LogError::Io { act, source: source.into() }
    }
}
