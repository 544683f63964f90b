//! The state of a sandbox: the supervisor's account while it runs, and the exit once it has ended.

use penfold_process::ProcessId;
use penfold_teardown::{Cause, Level};
use serde::{Deserialize, Serialize};

use crate::intent::shortened_to;
use crate::outcome::ExitStatus;

/// `state.json`: written by the supervisor only, for people and programs that look. Proof is only in the lock, the leaf
/// and the marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The version of this format.
    pub schema: u32,
    /// `created`, `running`, `waiting`, `stopping` or `unkillable`.
    #[serde(rename = "word")]
    pub status: Status,
    /// The supervisor's processes, the supervisor itself last.
    pub supervisors: Vec<ProcessId>,
    /// The first process of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<ProcessId>,
    /// How membership is known.
    pub level: Level,
    /// The start time of the command, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The end of the lease, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// The time at which the next life begins, in milliseconds since 1970, if the sandbox waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_start_at_ms: Option<u64>,
    /// The execs that still run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub execs: Vec<ExecState>,
    /// The features that the host lacks, and the consequences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// An exec: a command that runs in the sandbox besides its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecState {
    /// Its number in the sandbox, from 1.
    pub number: u32,
    /// The beginning of the command, for people.
    pub command: Vec<String>,
    /// The exec supervisor; its descendants are the exec's members.
    #[serde(rename = "keeper")]
    pub supervisor: ProcessId,
    /// The start time, in milliseconds since 1970.
    pub started_at_ms: u64,
}

/// The number of bytes of an exec's command line in `state.json`.
const BRIEF: usize = 256;

/// Shortens the command of an exec: one file may list thousands.
pub fn shorten_exec_command(command: Vec<String>) -> Vec<String> {
    shortened_to(command, BRIEF)
}

/// The status of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The command does not run yet.
    Created,
    /// The command runs.
    Running,
    /// The command runs, and all members are frozen. Only the kernel tells this: no file has it.
    Paused,
    /// The command has failed, nothing of it is left, and the sandbox waits for its next start.
    Waiting,
    /// The sandbox is being ended.
    Stopping,
    /// A member did not die in time; the supervisor continues to kill it.
    Unkillable,
    /// The command ended by itself.
    Exited,
    /// The command could not be run.
    Failed,
    /// The sandbox was ended: on request, by a limit, for its owner.
    Killed,
    /// The sandbox has no supervisor, and a member lives.
    Orphaned,
    /// The sandbox had no supervisor at its end, and nothing of it was found.
    Lost,
}

impl Status {
    /// Tells whether something of the sandbox may be alive, or will be without a request.
    pub fn is_living(self) -> bool {
        matches!(
            self,
            Status::Created
                | Status::Running
                | Status::Paused
                | Status::Waiting
                | Status::Stopping
                | Status::Unkillable
                | Status::Orphaned
        )
    }

    /// Returns the status as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Waiting => "waiting",
            Status::Stopping => "stopping",
            Status::Unkillable => "unkillable",
            Status::Exited => "exited",
            Status::Failed => "failed",
            Status::Killed => "killed",
            Status::Orphaned => "orphaned",
            Status::Lost => "lost",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// `exit.json`: how the command ended. The first process that knows writes it once; nothing ever replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandExit {
    /// The version of this format.
    pub schema: u32,
    /// How the leader ended; `None` if unknown. Never invented.
    pub exit: Option<ExitStatus>,
    /// Why the sandbox ended.
    pub cause: Cause,
    /// The time at which the exit was known, in milliseconds since 1970.
    pub at_ms: u64,
}

impl CommandExit {
    /// Returns the status of a sandbox that ended like this.
    pub fn status(&self) -> Status {
        match self.cause {
            Cause::Exit | Cause::Signal => Status::Exited,
            Cause::StartFailed => Status::Failed,
            Cause::Lost if self.exit.is_none() => Status::Lost,
            _ => Status::Killed,
        }
    }
}
