//! The errors of a benchmark.

use std::io;
use std::path::Path;
use std::process::ExitStatus;

/// Why a benchmark gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An operation on the host failed.
    #[error("{what}")]
    Io {
        /// The attempt, with its object.
        what: String,
        /// The error of the host.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{program}` ended with {status}: {said}")]
    Failed {
        /// The name of the program.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// The last line of its output.
        said: String,
    },
    /// An operation took longer than any may.
    #[error("{what} took more than {seconds} s")]
    Late {
        /// The operation.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// An answer without the expected content.
    #[error("{what}")]
    Odd {
        /// The expected content, and its source.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }

    /// For `map_err`: adds the operation and the path.
    pub(crate) fn at<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        let what = format!("cannot {operation} `{}`", path.display());
        move |source| Error::Io { what, source: source.into() }
    }

    pub(crate) fn odd(what: impl Into<String>) -> Error {
        Error::Odd { what: what.into() }
    }
}
