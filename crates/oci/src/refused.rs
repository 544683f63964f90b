//! Why a verb fails.

use std::io;
use std::path::PathBuf;

/// Why the verb failed; nothing else was changed than the message says.
#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    /// The note could not be written, so the container was not created.
    #[error("cannot write the note of container `{id}`: {source}")]
    Note {
        /// The container.
        id: String,
        /// The cause.
        source: io::Error,
    },
    /// The command was not started, for it would not have been contained.
    #[error("cannot contain a command in container `{id}`: {source}")]
    Exec {
        /// The container.
        id: String,
        /// The cause.
        source: io::Error,
    },
    /// The container could not be looked at.
    #[error("cannot tell whether container `{id}` is gone: {source}")]
    Look {
        /// The container.
        id: String,
        /// The cause.
        source: io::Error,
    },
    /// Something of the container is left.
    #[error("container `{id}` is not gone: {left}")]
    Left {
        /// The container.
        id: String,
        /// The processes and cgroups.
        left: String,
        /// Whether all processes were killed already.
        forced: bool,
    },
    /// The delegate did not answer.
    #[error("`{}` did not answer for container `{id}` in time, and was killed", delegate.display())]
    Slow {
        /// The container.
        id: String,
        /// Its program.
        delegate: PathBuf,
    },
    /// The delegate could not be started.
    #[error("cannot run `{}`: {source}", delegate.display())]
    Start {
        /// Its program.
        delegate: PathBuf,
        /// The cause.
        source: io::Error,
    },
}
