//! The labels of an exec that is a process, beside that with its id.

/// The command, cut off if it is long.
pub(super) const COMMAND: &str = "command";
/// The words of a command that no shell reads, as JSON; the last ones may be missing.
pub(super) const WORDS: &str = "words";
/// The directory that the client chose.
pub(super) const CWD: &str = "cwd";
