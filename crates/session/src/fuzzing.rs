//! The lines for bash, for the targets of `fuzz/`.

use std::path::Path;

use crate::protocol::Run;
use crate::script::{Line, Words};

/// Returns all that bash reads for one command of a session in this directory, but the command itself.
pub fn lines(session: &Path, run: &Run) -> Vec<u8> {
    let line = Line { number: 1, is_wrapped: true, last: 0, out: "out.1", err: "err.1" };
    let words = Words::new(session);
    let mut text = words.start(Some((0, session)));
    text.extend_from_slice(&Words::before(run.cwd.as_deref(), &run.env));
    text.extend_from_slice(&words.command(line));
    text.extend_from_slice(&Words::after(run.cwd.is_some(), &run.env));
    text
}
