//! The messages between a client and a session host: JSON, one message a packet (`SOCK_SEQPACKET`).
//!
//! Fields and variants are only ever added.

use std::path::PathBuf;

use penfold_teardown::report::Survivor;
use serde::{Deserialize, Serialize};

/// The version of the protocol. A host sends its own version first, and refuses unknown requests.
pub const PROTOCOL: u32 = 1;

/// The size limit for the output of a command that is kept, unless the command has another.
pub const OUTPUT_LIMIT: u64 = penfold_state::log::USUAL_LIMIT;
/// The grace of an interrupted command, unless the command has another.
pub const GRACE_MS: u64 = 1000;
/// The number of commands that may wait.
pub const LONGEST_QUEUE: usize = 256;
/// The number of ended commands whose output is kept.
pub const KEPT_COMMANDS: usize = 16;
/// The size limit for the description of a command, as JSON.
pub const LARGEST_RUN: u64 = 64 << 20;

/// A request to a session host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionRequest {
    /// Run a command after those that wait. A sealed memory file with a [`ShellCommand`] as JSON comes with the request. The client
    /// also receives the command's begin and end.
    Run,
    /// Send the end of this command, once it has ended.
    Watch {
        /// The number of the command.
        number: u64,
    },
    /// End this command; one that waits is not run. The answer is [`SessionAnswer::Done`]; the end comes later.
    Interrupt {
        /// The number of the command.
        number: u64,
    },
    /// Tell the state of the shell after the last command.
    Snapshot,
    /// Remove the output and the end of this ended command.
    Forget {
        /// The number of the command.
        number: u64,
    },
}

/// A command for the shell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellCommand {
    /// The text, any number of lines.
    pub command: String,
    /// The directory for this command only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables that are exported for this command only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// The time after which the command is ended, from its begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The time between SIGTERM and SIGKILL when the command is ended; default [`GRACE_MS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The size limit of the log; default [`OUTPUT_LIMIT`]. The oldest output beyond it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
}

/// An answer of a session host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAnswer {
    /// The first message on a connection.
    Hello {
        /// The version that this host speaks.
        protocol: u32,
        /// The pid of the shell, in the host's pid namespace; 0 while there is none.
        shell_pid: i32,
    },
    /// The command has this number, and will run.
    Accepted {
        /// The number, counted from 1.
        number: u64,
    },
    /// The command has begun.
    Began {
        /// The number of the command.
        number: u64,
    },
    /// The command has ended.
    Ended(Box<CommandEnd>),
    /// The state of the shell.
    Snapshot(ShellSnapshot),
    /// The request is done.
    Done,
    /// The request is refused; a sentence.
    Refused(String),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// The command was read to its end; the code is its status.
    Exited,
    /// The time limit was reached.
    TimedOut,
    /// A client has interrupted the command.
    Interrupted,
    /// The shell exited: by `exit`, `exec`, `set -e`, or a signal. If `began` is false, the shell was gone before the
    /// command began, and the command did not run.
    ShellExited,
    /// There is no shell, or no room for the command's files.
    StartFailed,
}

/// The end of a command, also in the file `end.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandEnd {
    /// The number of the command.
    pub number: u64,
    /// How the command ended.
    pub how: EndKind,
    /// The status that the shell gave, or the shell's own exit code; 128 and the signal for a signal. Always 124 at the
    /// time limit, and 130 after an interrupt.
    pub code: i32,
    /// Whether the command has begun.
    pub began: bool,
    /// Whether the shell was killed and replaced: variables that are not exported are lost.
    pub replaced: bool,
    /// The number of bytes on standard output, kept or not.
    pub stdout_bytes: u64,
    /// The number of bytes on standard error, kept or not.
    pub stderr_bytes: u64,
    /// The number of bytes that the log does not keep.
    pub truncated_bytes: u64,
    /// The processes of an interrupted command that still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remaining: Vec<Survivor>,
    /// The time of the end, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// Why the command could not start; a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of the shell after the last command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellSnapshot {
    /// The number of the command after which the state was written, the `N` of the file `state.N`; 0 before the first.
    pub number: u64,
    /// The shell's directory.
    #[serde(with = "penfold_process::path_text")]
    pub cwd: PathBuf,
}

/// Tells whether a text can be the name of an environment variable of the shell.
pub fn is_variable(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte == b'_' || byte.is_ascii_alphabetic());
    first && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

impl ShellCommand {
    /// Makes a command that runs in the shell's directory without a time limit.
    pub fn new(command: impl Into<String>) -> ShellCommand {
        ShellCommand { command: command.into(), ..ShellCommand::default() }
    }

    /// Returns why no shell can run this command, as a sentence; `None` if a shell can.
    pub fn flaw(&self) -> Option<String> {
        if self.command.contains('\0') {
            return Some("the command contains a NUL".to_owned());
        }
        if self.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
            return Some("the directory contains a NUL".to_owned());
        }
        if let Some((name, _)) = self.env.iter().find(|(name, _)| !is_variable(name)) {
            return Some(format!("{name:?} is no name of a variable"));
        }
        let (name, _) = self.env.iter().find(|(_, value)| value.contains('\0'))?;
        Some(format!("the value of {name:?} contains a NUL"))
    }
}
