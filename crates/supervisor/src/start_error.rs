//! Why a sandbox could not even be tried.

use std::io;

/// Why a sandbox could not even be tried.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A word of the command line or the environment cannot be passed on.
    #[error("{what} holds a NUL byte")]
    Nul {
        /// Where.
        what: &'static str,
    },
    /// The processes of ours could not be set up.
    #[error("cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// What stood in the way.
        source: io::Error,
    },
}
