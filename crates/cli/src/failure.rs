//! [`Failure`]: the kind, which determines the exit code, a sentence, the causes, a hint.
//!
//! Only this file, and `serve` for the errors of the server, converts errors of the libraries into failures.

#[cfg(feature = "full")]
mod serve;

use std::error::Error;
use std::fmt::Write as _;
use std::io;

use penfold_client::{Error as ClientError, Problem};
use penfold_control::{ForgetError, ResolveError};
use penfold_launch::{LaunchError, LaunchErrorKind};
use penfold_request::{Refusal, RefusalKind};
use penfold_state::log::LogError;
use penfold_state::{StateError, error_chain, sentence_chain};

use crate::exit_codes;
use crate::output::{self, WriteError};
use crate::text::lines;
use crate::value::{Invalid, ReservedSignal};

/// The kind of a failure: one for each exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// No other kind fits.
    Other,
    /// The command line is wrong, or penfold refused to act.
    Usage,
    /// No sandbox has this id or name, or no process has this pid.
    NoSuchId,
    /// The prefix of an id matches several sandboxes.
    Ambiguous,
    /// Part of a target is still there.
    StillThere,
    /// The kernel refused a system call for lack of a privilege.
    NotPermitted,
    /// `doctor` could not examine the host.
    ChecksFailed,
    /// The end of all members was not verified.
    Unverified,
    /// A time limit passed.
    TimedOut,
    /// The command did not start.
    NotStarted,
    /// The command cannot be executed.
    NotExecutable,
    /// The command does not exist.
    NotFound,
}

impl FailureKind {
    /// The exit code of this kind.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            FailureKind::Other => exit_codes::FAILURE,
            FailureKind::Usage => exit_codes::USAGE,
            FailureKind::NoSuchId => exit_codes::NO_SUCH_ID,
            FailureKind::Ambiguous => exit_codes::AMBIGUOUS,
            FailureKind::StillThere => exit_codes::STILL_THERE,
            FailureKind::NotPermitted => exit_codes::NOT_PERMITTED,
            FailureKind::ChecksFailed => exit_codes::DOCTOR_CHECKS_FAILED,
            FailureKind::Unverified => exit_codes::UNVERIFIED,
            FailureKind::TimedOut => exit_codes::TIMED_OUT,
            FailureKind::NotStarted => exit_codes::NOT_STARTED,
            FailureKind::NotExecutable => exit_codes::NOT_EXECUTABLE,
            FailureKind::NotFound => exit_codes::NOT_FOUND,
        }
    }
}

impl From<&io::Error> for FailureKind {
    fn from(error: &io::Error) -> FailureKind {
        match error.kind() {
            io::ErrorKind::PermissionDenied => FailureKind::NotPermitted,
            _ => FailureKind::Other,
        }
    }
}

impl From<&StateError> for FailureKind {
    fn from(error: &StateError) -> FailureKind {
        (&io::Error::from(error.kind())).into()
    }
}

impl From<&LogError> for FailureKind {
    fn from(error: &LogError) -> FailureKind {
        match error {
            LogError::Stranger { .. } => FailureKind::NotPermitted,
            _ => FailureKind::Other,
        }
    }
}

impl From<&ForgetError> for FailureKind {
    fn from(error: &ForgetError) -> FailureKind {
        match error {
            ForgetError::Living { .. } => FailureKind::Usage,
            ForgetError::Left { .. } | ForgetError::Busy { .. } => FailureKind::StillThere,
            ForgetError::Closed { .. } | ForgetError::Stuck { .. } => FailureKind::Other,
        }
    }
}

impl From<LaunchErrorKind> for FailureKind {
    fn from(kind: LaunchErrorKind) -> FailureKind {
        match kind {
            LaunchErrorKind::NotStarted => FailureKind::NotStarted,
            LaunchErrorKind::NotExecutable => FailureKind::NotExecutable,
            LaunchErrorKind::NotFound => FailureKind::NotFound,
            LaunchErrorKind::Unverified => FailureKind::Unverified,
        }
    }
}

/// A failed verb, ready to be printed.
///
/// Printed as `penfold: <sentence>: <cause>: <cause>`, then `hint: <text>`, each on one line.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    sentence: String,
    cause: Option<Box<dyn Error>>,
    hint: Option<String>,
    refusal: Option<RefusalKind>,
    holder: Option<String>,
}

impl Failure {
    /// Creates a failure with a lower-case sentence without a full stop.
    pub(crate) fn new(kind: FailureKind, sentence: impl Into<String>) -> Failure {
        Failure { kind, sentence: sentence.into(), cause: None, hint: None, refusal: None, holder: None }
    }

    /// Changes the kind to [`FailureKind::NotStarted`].
    ///
    /// Verbs that return the exit code of a command use this: the low codes belong to the command.
    pub(crate) fn not_started(failure: impl Into<Failure>) -> Failure {
        failure.into().with_kind(FailureKind::NotStarted)
    }

    /// Changes the kind.
    #[must_use]
    pub(crate) fn with_kind(mut self, kind: FailureKind) -> Failure {
        self.kind = kind;
        self
    }

    /// The kind.
    pub(crate) fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Adds the cause; the message shows the sources of the cause after it.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error>>) -> Failure {
        self.cause = Some(cause.into());
        self
    }

    /// Adds a hint: preferably a command that helps, in backticks.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint unless there is one.
    pub(crate) fn or_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// This failure as a program is told of it.
    pub(crate) fn refusal(&self) -> Refusal {
        let kind = match self.kind {
            FailureKind::Unverified => RefusalKind::Unverified,
            FailureKind::NotFound => RefusalKind::CommandNotFound,
            FailureKind::NotExecutable => self.refusal.unwrap_or(RefusalKind::CommandNotExecutable),
            _ => self.refusal.unwrap_or(RefusalKind::NotStarted),
        };
        Refusal { kind, sentence: self.sentence(), holder: self.holder.clone(), exit_code: self.exit_code() }
    }

    /// The exit code of this failure.
    pub(crate) fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }

    /// Writes the failure to standard error and returns its exit code.
    ///
    /// If standard error cannot be written, the caller still gets the exit code.
    pub(crate) fn report(&self, coloured: bool) -> u8 {
        output::message(&self.render(coloured));
        self.exit_code()
    }

    /// The sentence with its causes, in one printable line.
    pub(crate) fn sentence(&self) -> String {
        let mut text = String::new();
        push_printable(&mut text, &sentence_chain(self.sentence.clone(), self.cause.as_deref()));
        text
    }

    fn render(&self, coloured: bool) -> String {
        let mut text = String::from("penfold: ");
        text.push_str(&self.sentence());
        text.push('\n');
        if let Some(hint) = &self.hint {
            text.push_str(if coloured { "\u{1b}[36mhint:\u{1b}[0m " } else { "hint: " });
            push_printable(&mut text, hint);
            text.push('\n');
        }
        text
    }
}

/// Adds to an error the operation that failed.
pub(crate) trait OrFail<T> {
    /// Makes the error the cause of a failure; the sentence names the operation and its object.
    fn or_fail(self, kind: FailureKind, sentence: &str) -> Result<T, Failure>;
}

impl<T, E: Into<Box<dyn Error>>> OrFail<T> for Result<T, E> {
    fn or_fail(self, kind: FailureKind, sentence: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(kind, sentence).because(error))
    }
}

/// Makes a failure of an error: the sentence is the error with the whole chain of its sources.
fn plain(kind: FailureKind, error: &(dyn Error + 'static)) -> Failure {
    Failure::new(kind, error_chain(error))
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        plain(FailureKind::Other, &error)
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Failure {
        plain(FailureKind::Usage, &error)
    }
}

impl From<ReservedSignal> for Failure {
    fn from(error: ReservedSignal) -> Failure {
        plain(FailureKind::Usage, &error)
    }
}

impl From<&StateError> for Failure {
    fn from(error: &StateError) -> Failure {
        plain(error.into(), error)
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Failure {
        Failure::from(&error)
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Failure {
        match error {
            ResolveError::NotFound { .. } => {
                plain(FailureKind::NoSuchId, &error).hint("`penfold ps -a` lists the sandboxes")
            }
            ResolveError::Ambiguous { .. } => {
                plain(FailureKind::Ambiguous, &error).hint("give more characters, or the whole id")
            }
            ResolveError::Unreadable { kind, .. } => plain(FailureKind::from(&io::Error::from(kind)), &error),
        }
    }
}

impl From<ForgetError> for Failure {
    fn from(error: ForgetError) -> Failure {
        let kind = FailureKind::from(&error);
        match &error {
            ForgetError::Living { id, .. } => {
                plain(kind, &error).hint(format!("`penfold rm -f {id}` ends it first"))
            }
            ForgetError::Left { id, survivors } => {
                let named: Vec<String> = survivors.iter().map(ToString::to_string).collect();
                Failure::new(kind, format!("cannot remove sandbox {id}: still there: {}", named.join(", ")))
            }
            _ => plain(kind, &error),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Problem(problem) => of_problem(&problem),
            ClientError::Unreachable { host, source } => {
                Failure::new(FailureKind::Other, format!("cannot connect to the server at `{host}`"))
                    .because(source)
                    .hint("`penfold serve` starts a server")
            }
            error => Failure::new(FailureKind::Other, penfold_state::error_chain(&error)),
        }
    }
}

fn of_problem(problem: &Problem) -> Failure {
    let kind = match problem.kind() {
        "not_found" => FailureKind::NoSuchId,
        "ambiguous" => FailureKind::Ambiguous,
        "unauthorized" | "forbidden" | "not_permitted" => FailureKind::NotPermitted,
        "invalid_field" | "invalid_json" | "bad_request" => FailureKind::Usage,
        "unverified" => FailureKind::StillThere,
        "command_not_found" => FailureKind::NotFound,
        "command_not_executable" => FailureKind::NotExecutable,
        _ => FailureKind::Other,
    };
    let failure = match kind {
        FailureKind::NotPermitted => Failure::new(kind, format!("the server refused the request: {problem}")),
        _ => Failure::new(kind, problem.to_string()),
    };
    match problem.kind() {
        "not_found" => failure.hint("`penfold ps -a` lists the sandboxes"),
        "ambiguous" => failure.hint("give more characters, or the whole id"),
        "unauthorized" => failure.hint("`--token-file FILE`"),
        _ => failure,
    }
}

impl From<LaunchError> for Failure {
    /// What is left of the sandbox is printed before, see [`Remains`](penfold_launch::Remains).
    fn from(error: LaunchError) -> Failure {
        let LaunchError { kind, sentence, cause, hint, refusal, holder, remains: _ } = error;
        let cause = cause.map(|cause| -> Box<dyn Error> { cause });
        Failure { kind: kind.into(), sentence, cause, hint, refusal, holder }
    }
}

/// Appends text with control and format characters escaped.
///
/// Arguments and names come from other programs: they must not move the terminal's cursor or break the line.
fn push_printable(into: &mut String, text: &str) {
    for character in text.chars() {
        if character.is_control() || lines::is_format(character) {
            // Writing to a String cannot fail.
            let _ = write!(into, "{}", character.escape_default());
        } else {
            into.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Wrapped(std::io::Error);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "cannot write `1` to `/x`")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn sentence_causes_and_hint_have_one_line_each() {
        let cause = Wrapped(std::io::Error::from_raw_os_error(13));
        let failure = Failure::new(FailureKind::Other, "cannot end `x`").because(cause).hint("try `y`");
        assert_eq!(
            failure.render(false),
            "penfold: cannot end `x`: cannot write `1` to `/x`: Permission denied (os error 13)\nhint: try `y`\n"
        );
    }

    #[test]
    fn a_cause_that_repeats_its_wrapper_is_said_once() {
        let failure = Failure::new(FailureKind::Other, "same").because("same");
        assert_eq!(failure.render(false), "penfold: same\n");
    }

    #[test]
    fn an_error_of_a_library_shows_its_whole_chain() {
        let source = StateError::Io {
            act: "open",
            path: "/r/sandboxes".into(),
            source: std::io::Error::from_raw_os_error(13),
        };
        let error = ForgetError::Closed { id: "x".to_owned(), source };
        let text = Failure::from(error).render(false);
        assert!(text.starts_with("penfold: the record of sandbox x cannot be opened: "), "{text}");
        assert!(text.contains("`/r/sandboxes`: Permission denied (os error 13)"), "{text}");
    }

    #[test]
    fn control_characters_are_escaped() {
        let failure = Failure::new(FailureKind::Other, "a\n\u{1b}[2Jb\u{202e}c");
        assert_eq!(failure.render(false), "penfold: a\\n\\u{1b}[2Jb\\u{202e}c\n");
    }
}
