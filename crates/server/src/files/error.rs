//! Why an operation on a file of a workspace failed.

use std::io;

use penfold_control::ResolveError;
use rustix::io::Errno;

/// Why an operation on a file of a workspace failed. Nothing has changed then, unless an operation says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such sandbox, or the word is ambiguous.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The sandbox has no workspace.
    #[error("sandbox {id} is not detached, or its record names no workspace")]
    NoWorkspace {
        /// The id of the sandbox.
        id: String,
    },
    /// The jail of the sandbox is not there, or cannot be reached.
    #[error("cannot reach the files of the sandbox")]
    NoJail(#[source] io::Error),
    /// The path is none of a workspace.
    #[error("{0}")]
    Path(&'static str),
    /// The file is a FIFO, a socket or a device.
    #[error("`{path}`: not a plain file")]
    NotPlain {
        /// The path.
        path: String,
    },
    /// A system call about a path failed.
    #[error("`{path}`: {}", io::Error::from(*errno))]
    System {
        /// The path.
        path: String,
        /// The error of the call; `EXDEV` for a path that leads out of the workspace.
        errno: Errno,
    },
}

impl FileError {
    /// Makes the error of a system call about a path.
    pub(crate) fn system(path: &str, errno: Errno) -> FileError {
        FileError::System { path: path.to_owned(), errno }
    }
}
