//! The labels of an exec that is a process.

/// The id of the process.
pub(super) const PROCESS: &str = "process";
/// The command, cut off if it is long.
pub(super) const COMMAND: &str = "command";
