//! What somebody wants to be run, and how it is to end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::id::Id;
use crate::names::Name;

/// The containment that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Contain {
    /// The strongest that the host offers without changing what the command sees.
    #[default]
    Auto,
    /// A cgroup of its own, or an error.
    Cgroup,
    /// A pid namespace of its own, or an error.
    Pidns,
    /// The descendants of a subreaper only.
    Subreaper,
}

/// What becomes of a sandbox whose owner dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnerExit {
    /// It is killed.
    #[default]
    Kill,
    /// It is stopped, with its grace.
    Stop,
    /// It goes on until it ends by itself.
    Keep,
}

/// A sandbox to be.
#[derive(Debug)]
pub struct Spec {
    /// Its id.
    pub id: Id,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The name, if it was taken already.
    pub claim: Option<Name>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The environment that the command gets, but for what the sandbox adds.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory that the command starts in, if not the caller's.
    pub directory: Option<PathBuf>,
    /// Where to make a scratch directory, if one is wanted.
    pub scratch_in: Option<PathBuf>,
    /// The containment.
    pub contain: Contain,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// The polite signal.
    pub signal: Signal,
    /// How long it may take to end after the polite signal.
    pub grace: Duration,
    /// How long a kill may take until what is left is reported.
    pub patience: Duration,
    /// What its owner's death means.
    pub on_owner_exit: OwnerExit,
    /// Where records are kept.
    pub state_root: PathBuf,
    /// The file that gets the report, opened already.
    pub report: Option<std::fs::File>,
    /// Whether the first INT of its terminal stops it and the second kills it, whatever the command does with INT.
    pub stop_on_interrupt: bool,
    /// Whether the report is added to what stands in that file already, as it is the standard output of the command as well.
    pub report_is_shared: bool,
    /// What it needs to go on without who starts it.
    pub detach: Option<Detach>,
}

/// How a sandbox lives that goes on without who started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detach {
    /// How long its lease is; it can be renewed.
    pub ttl: Option<Duration>,
    /// How long it may be without output, input or a command put into it.
    pub idle: Option<Duration>,
    /// Whether it goes on when its supervisor is killed.
    pub keep: bool,
    /// Whether its record goes when it ends.
    pub remove: bool,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// How much of its output is kept, in bytes.
    pub log_limit: u64,
}

/// A command that is to be put into a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The version of this format.
    pub schema: u32,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Settings on top of the environment that the sandbox was made with; without a value, to be taken out.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// The directory that it starts in, if not the sandbox's.
    pub directory: Option<PathBuf>,
    /// How long it may run, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The polite signal.
    pub signal: i32,
    /// Whether that is only for a supervisor that knows no better, and the sandbox's holds.
    #[serde(default)]
    pub as_sandbox: bool,
    /// How long it may take to end after the polite signal, in milliseconds.
    pub grace_ms: u64,
    /// Whether its standard input is a terminal that becomes its own.
    pub terminal: bool,
    /// Whether it goes on when who asked for it is gone.
    pub detached: bool,
}
