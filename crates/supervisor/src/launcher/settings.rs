//! What the launcher knows of its sandbox and of its caller.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use super::SavedModes;

/// What the launcher keeps of the spec.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) id: String,
    pub(crate) state_root: PathBuf,
    pub(crate) patience: Duration,
    /// The terminal of the caller, if it has one.
    pub(crate) terminal: Option<OwnedFd>,
    /// The modes of that terminal before the command, where they are to be put back.
    pub(crate) modes: Option<Box<SavedModes>>,
    /// What a signal that asks for an end, or that a terminal sent, means.
    pub(crate) keys: Keys,
}

/// What the launcher makes of INT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// That of a terminal is the command's first, and the policy decides; other INT stops.
    Command,
    /// The first stops, with INT as the polite signal, and the second kills.
    Stop,
    /// As `Stop`, and a signal that asks for an end is passed on as the polite signal: that of an `exec`.
    Client,
}

/// The terminal that this process has, if any.
pub(crate) fn terminal() -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}
