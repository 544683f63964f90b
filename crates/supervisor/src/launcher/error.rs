//! The errors of a launcher that does not know the outcome of its sandbox.

use std::io;

/// Why the outcome of a sandbox is not known.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// Launcher-side recovery failed after supervisor and standby were killed.
    #[error("the supervisors of {id} were killed and what is left of it could not be ended")]
    Lost {
        /// The id of the sandbox.
        id: String,
        /// The cause.
        source: io::Error,
    },
    /// The sandbox continues without its launcher, so its end is not observed here.
    #[error("{id} is detached")]
    Detached {
        /// The id of the sandbox.
        id: String,
    },
    /// The supervisor refused to start the command in its sandbox.
    #[error("sandbox {id} refuses: {reason}")]
    Refused {
        /// The id of the sandbox.
        id: String,
        /// The reason that the supervisor gave.
        reason: String,
    },
    /// The kernel refused a wait.
    #[error("cannot wait for {id}")]
    Wait {
        /// The id of the sandbox.
        id: String,
        /// The cause.
        source: io::Error,
    },
}
