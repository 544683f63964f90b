//! What can go wrong in a benchmark.

use std::io;
use std::path::Path;
use std::process::ExitStatus;

/// Why a benchmark gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The host did not give something.
    #[error("{what}")]
    Io {
        /// What was tried, with its object.
        what: String,
        /// What the host said.
        source: io::Error,
    },
    /// A program did not do what it was started for.
    #[error("`{program}` ended with {status}: {said}")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last words.
        said: String,
    },
    /// Something took longer than anything here may.
    #[error("{what} took more than {seconds} s")]
    Late {
        /// What it was.
        what: String,
        /// The limit.
        seconds: u64,
    },
    /// An answer without the expected content.
    #[error("{what}")]
    Odd {
        /// What was expected, and of whom.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }

    /// For `map_err`: the operation and its path.
    pub(crate) fn at<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        let what = format!("cannot {operation} `{}`", path.display());
        move |source| Error::Io { what, source: source.into() }
    }

    pub(crate) fn odd(what: impl Into<String>) -> Error {
        Error::Odd { what: what.into() }
    }
}
