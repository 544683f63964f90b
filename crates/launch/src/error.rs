//! [`LaunchError`]: why a sandbox does not start, or is not ready.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use penfold_process::quote_words;
use penfold_request::RefusalKind;
use penfold_state::{Outcome, StartFailure};
use penfold_teardown::Survivor;
use rustix::io::Errno;

/// The kind of a [`LaunchError`]. The command line has an exit code for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchErrorKind {
    /// The command did not start, or was ended before the sandbox was ready.
    NotStarted,
    /// The command cannot be executed.
    NotExecutable,
    /// The command does not exist.
    NotFound,
    /// The command did not start, and something of the sandbox may be left.
    Unverified,
}

impl From<&StartFailure> for LaunchErrorKind {
    fn from(failure: &StartFailure) -> LaunchErrorKind {
        match failure {
            StartFailure::NotFound => LaunchErrorKind::NotFound,
            StartFailure::NotExecutable(_) => LaunchErrorKind::NotExecutable,
            StartFailure::Directory(_) | StartFailure::Other(_) => LaunchErrorKind::NotStarted,
        }
    }
}

/// A sandbox that does not run.
#[derive(Debug)]
pub struct LaunchError {
    /// The kind.
    pub kind: LaunchErrorKind,
    /// What failed, in lower case and without a full stop.
    pub sentence: String,
    /// The cause, which the sentence does not repeat.
    pub cause: Option<Box<dyn Error + Send + Sync>>,
    /// What a person can do.
    pub hint: Option<String>,
    /// What programs get instead of the kind, if that is too wide.
    pub refusal: Option<RefusalKind>,
    /// The living sandbox that has the name, if it is known.
    pub holder: Option<String>,
    /// What a person needs to see before the sentence.
    pub remains: Option<Box<Remains>>,
}

/// What is left of a sandbox that was ended because its start failed.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an error has it in a box")]
pub enum Remains {
    /// The command did not run, or was ended before the caller had its id: the outcome names the survivors.
    OfStart(Outcome),
    /// The sandbox was ended because it was not ready.
    OfUnready {
        /// The id of the sandbox.
        id: String,
        /// The end of its log.
        output: Vec<u8>,
        /// What could not be ended.
        survivors: Vec<Survivor>,
    },
}

impl LaunchError {
    /// Creates an error of the kind [`LaunchErrorKind::NotStarted`].
    pub fn new(sentence: impl Into<String>) -> LaunchError {
        LaunchError {
            kind: LaunchErrorKind::NotStarted,
            sentence: sentence.into(),
            cause: None,
            hint: None,
            refusal: None,
            holder: None,
            remains: None,
        }
    }

    /// Creates the error of a command that was not executed. `command` is its first word, `directory` the directory that was asked for.
    pub fn of_start_failure(
        failure: &StartFailure,
        command: &str,
        directory: Option<PathBuf>,
    ) -> LaunchError {
        let directory = directory.unwrap_or_default();
        let cannot_run = || LaunchError::new(format!("cannot run `{command}`"));
        let cannot_run_since = |why: &str| LaunchError::new(format!("cannot run `{command}`: {why}"));
        let system = |errno: i32| io::Error::from_raw_os_error(errno);
        let error = match failure {
            StartFailure::NotFound if command.contains('/') => {
                // execve(2) also returns ENOENT if the interpreter of a script, or the loader of a program, is missing.
                let exists = directory.join(command).is_file();
                cannot_run_since(if exists {
                    "the file exists, but its interpreter does not"
                } else {
                    "no such file"
                })
            }
            StartFailure::NotFound => {
                let error = cannot_run_since("not found in PATH");
                match hint_for_unknown(command) {
                    Some(hint) => error.hint(hint),
                    None => error,
                }
            }
            StartFailure::NotExecutable(_) if directory.join(command).is_dir() => {
                cannot_run_since("the path is a directory")
            }
            StartFailure::NotExecutable(errno) => cannot_run().because(system(*errno)),
            StartFailure::Directory(errno) => {
                // Without a directory in the request it is that of the caller.
                let name = Some(directory).filter(|path| !path.as_os_str().is_empty());
                let name = name.map_or_else(String::new, |path| format!(" `{}`", path.display()));
                LaunchError::new(format!("cannot enter the working directory{name}")).because(system(*errno))
            }
            StartFailure::Other(reason) => cannot_run().because(reason.clone()),
        };
        error.with_kind(failure.into())
    }

    /// Changes the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: LaunchErrorKind) -> LaunchError {
        self.kind = kind;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> LaunchError {
        self.cause = Some(cause.into());
        self
    }

    /// Adds a hint: preferably a command that helps, in backticks.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> LaunchError {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what is left of the sandbox.
    #[must_use]
    pub(crate) fn with_remains(mut self, remains: Remains) -> LaunchError {
        self.remains = Some(Box::new(remains));
        self
    }

    /// Notes what programs get of a command that was not started, besides the kind.
    #[must_use]
    pub(crate) fn refused_by(mut self, outcome: &Outcome) -> LaunchError {
        if let Some(holder) = &outcome.name_holder {
            self.refusal = Some(RefusalKind::NameTaken);
            self.hint = Some(format!("`--replace` stops it first; `penfold stop {holder}` ends it"));
            // The id may not be readable.
            self.holder = outcome.name_holder.clone().filter(|holder| holder != "?");
        }
        if outcome.report.failure == Some(StartFailure::NotExecutable(Errno::TOOBIG.raw_os_error())) {
            self.refusal = Some(RefusalKind::TooLarge);
        }
        self
    }
}

/// What helps if a program of this name is not found.
fn hint_for_unknown(command: &str) -> Option<String> {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if command.split_once('=').is_some_and(|(name, _)| is_name(name)) {
        return Some(format!("`-e {}` before the command sets a variable", quote_words([command])));
    }
    let is_line = command.contains([' ', '|', '&', ';', '>', '<', '$']);
    is_line.then(|| format!("`penfold sh {}` runs a line of a shell", quote_words([command])))
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Error for LaunchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Some(cause) => Some(&**cause),
            None => None,
        }
    }
}

/// Adds to an error the operation that failed.
pub(crate) trait OrFail<T> {
    /// Makes the error the cause of a [`LaunchError`]; the sentence names the operation and its object.
    fn or_fail(self, sentence: &str) -> Result<T, LaunchError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrFail<T> for Result<T, E> {
    fn or_fail(self, sentence: &str) -> Result<T, LaunchError> {
        self.map_err(|error| LaunchError::new(sentence).because(error))
    }
}
