//! The settings of a launcher.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use penfold_state::ScopeDir;

use super::StdinWatch;
use crate::terminal::of_caller::CallerTerminal;

/// The settings that the launcher needs of its sandbox and its caller.
#[derive(Debug)]
pub(crate) struct LauncherSettings {
    pub(crate) id: String,
    pub(crate) state_root: PathBuf,
    pub(crate) patience: Duration,
    /// Whether the record is that of former lives, too.
    pub(crate) has_former: bool,
    /// The scope of the sandbox, if a service manager made one. This process is not in it.
    pub(crate) scope: Option<ScopeDir>,
    /// The caller's terminal, if there is one.
    pub(crate) terminal: Option<OwnedFd>,
    /// Whether the hang-up of that terminal is the death of the owner.
    pub(crate) watches_hangup: bool,
    /// That terminal before the command, if the command may change it.
    pub(crate) before: Option<Box<CallerTerminal>>,
    /// The meaning of INT, TERM and the signals of a terminal's keys.
    pub(crate) keys: InterruptMeaning,
    /// The standard input, if its end ends the sandbox.
    pub(crate) stdin: Option<Box<StdinWatch>>,
}

/// The meaning of INT for a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptMeaning {
    /// INT of a terminal goes to the command first, and the policy decides; other INT stops.
    Command,
    /// The first INT stops, with INT as the polite signal; the second kills.
    Stop,
    /// As `Stop`, and INT or TERM is also the polite signal: for the client of an `exec`.
    Client,
}
