//! The errors of a start that created nothing.

use std::io;

/// Why a sandbox could not be started at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An argument or environment variable contains a NUL byte.
    #[error("{what} holds a NUL byte")]
    Nul {
        /// The place of the NUL byte.
        what: &'static str,
    },
    /// A system call that sets up launcher or standby failed.
    #[error("cannot {act}")]
    System {
        /// The operation, as a verb phrase.
        act: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The owner that was named is not the parent of this process: it has died.
    #[error("its owner, process {pid}, is gone")]
    OwnerGone {
        /// The pid of the owner.
        pid: i32,
    },
    /// The command cannot have its user.
    #[error("{0}")]
    NoUser(String),
    /// The sandbox was to run in a scope of its own, and got none.
    #[error("there is no scope for it")]
    NoScope,
}
