//! The lines for bash, for the targets of `fuzz/`.

use std::path::Path;

use crate::protocol::ShellCommand;
use crate::script::{CommandParts, SessionPaths};

/// Returns all that bash reads for one command of a session in this directory, but the command itself.
pub fn command_lines(session: &Path, run: &ShellCommand) -> Vec<u8> {
    let line = CommandParts { number: 1, is_wrapped: true, last: 0, out: "out.1", err: "err.1" };
    let words = SessionPaths::new(session);
    let mut text = words.start(Some((0, session)));
    text.extend_from_slice(&SessionPaths::before(run.cwd.as_deref(), &run.env));
    text.extend_from_slice(&words.command(line));
    text.extend_from_slice(&SessionPaths::after(run.cwd.is_some(), &run.env));
    text
}
