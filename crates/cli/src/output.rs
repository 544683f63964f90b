//! Writes data to standard output and messages to standard error, and decides about colour.

use std::io::{self, BufRead as _, ErrorKind, IsTerminal, Write};

use serde::Serialize;

/// Data did not reach standard output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Stdout(#[source] io::Error),
    /// The data cannot be serialized as JSON.
    #[error("cannot write the result as JSON")]
    Json(#[source] serde_json::Error),
}

/// The value of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// Decides by `NO_COLOR`, `CLICOLOR_FORCE` and the terminal, in this order.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Writes data to standard output at once.
///
/// EPIPE is success: the reader is gone, but the exit code of the verb's work must not change.
///
/// # Errors
/// If standard output cannot be written for another reason.
pub(crate) fn data(text: &[u8]) -> Result<(), WriteError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(WriteError::Stdout(error)),
    }
}

/// Writes one JSON value and a line feed to standard output; on a terminal in lines that a person can read.
///
/// # Errors
/// If the value cannot be serialized, or as [`data`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), WriteError> {
    let is_read = io::stdout().is_terminal();
    let text = if is_read { serde_json::to_vec_pretty(value) } else { serde_json::to_vec(value) };
    let mut text = text.map_err(WriteError::Json)?;
    text.push(b'\n');
    data(&text)
}

/// Writes a message to standard error with one write(2), so that the lines of two processes do not mix.
pub(crate) fn message(text: &str) {
    // An error here cannot be reported: standard error is the place for reports.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The columns of standard error, if it is a terminal that tells them.
pub(crate) fn message_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// The columns of standard output, if it is a terminal that tells them.
pub(crate) fn data_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Whether standard input and standard error are terminals, so that a person can answer a question.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Prints a question and reads a line; only `y`, `Y` and `yes` mean yes.
pub(crate) fn ask(question: &str) -> bool {
    message(question);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

impl Colour {
    /// Whether output to this stream is coloured.
    #[expect(clippy::disallowed_methods, reason = "the binary reads the environment, the libraries do not")]
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
