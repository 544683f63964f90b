//! Why the outcome of a sandbox is not known.

use std::io;

/// Why the outcome of a sandbox is not known.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// Both supervisors were killed and what they looked after could not be recovered.
    #[error("the supervisors of {id} were killed and what is left of it could not be ended")]
    Lost {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        source: io::Error,
    },
    /// It goes on without who started it, so that its end is not seen here.
    #[error("{id} is detached")]
    Detached {
        /// The sandbox.
        id: String,
    },
    /// The supervisor does not put the command into its sandbox.
    #[error("sandbox {id} refuses: {reason}")]
    Refused {
        /// The sandbox.
        id: String,
        /// Its words.
        reason: String,
    },
    /// The kernel refused to let us wait.
    #[error("cannot wait for {id}")]
    Wait {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        source: io::Error,
    },
}
