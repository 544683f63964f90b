//! Where words go: data to standard output, talk to standard error, and colour only where it is welcome.

use std::io::{self, BufRead as _, ErrorKind, IsTerminal, Write};

use serde::Serialize;

/// Why data did not come to standard output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// It cannot be written to.
    #[error("cannot write to standard output")]
    Stdout(#[source] io::Error),
    /// The data has no form as JSON.
    #[error("cannot write the result as JSON")]
    Json(#[source] serde_json::Error),
}

/// When to colour, as asked with `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// As `NO_COLOR`, `CLICOLOR_FORCE` and the terminal say, in this order.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Writes data to standard output at once.
///
/// A reader that went away ends the output, not the verb: what the verb did keeps its exit code.
///
/// # Errors
/// When standard output cannot be written to for another reason.
pub(crate) fn data(text: &[u8]) -> Result<(), WriteError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(WriteError::Stdout(error)),
    }
}

/// Writes one JSON value and a line feed to standard output.
///
/// # Errors
/// When the value cannot be serialized, or as [`data`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), WriteError> {
    let mut text = serde_json::to_vec(value).map_err(WriteError::Json)?;
    text.push(b'\n');
    data(&text)
}

/// Writes talk to standard error in one piece, so that the lines of two processes do not mix.
pub(crate) fn talk(text: &str) {
    // There is no place left to complain to when this fails.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether somebody sits at a terminal who can be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks for a yes; everything else is a no.
pub(crate) fn ask(question: &str) -> bool {
    talk(question);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

impl Colour {
    /// Whether this stream wants colour.
    #[expect(clippy::disallowed_methods, reason = "the binary is who reads the environment")]
    pub(crate) fn wanted(self, stream: &impl IsTerminal) -> bool {
        let set = |key| std::env::var_os(key).filter(|value| !value.is_empty());
        match self {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto if set("NO_COLOR").is_some() => false,
            Colour::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            Colour::Auto => stream.is_terminal() && set("TERM").is_none_or(|term| term != "dumb"),
        }
    }
}
