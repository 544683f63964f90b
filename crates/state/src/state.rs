//! What a supervisor says of its sandbox while it runs, and what is known once it has ended.

use penfold_process::ProcessId;
use penfold_teardown::{Cause, Level};
use serde::{Deserialize, Serialize};

use crate::intent::shortened_to;
use crate::outcome::Status;

/// For the supervisor, until it names `time` itself.
pub use crate::time::now_ms;

/// `state.json`: written by the supervisor only, for people and programs that look. What is there for certain is told
/// by the lock, the leaf and the marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The version of this format.
    pub schema: u32,
    /// `created`, `running`, `stopping` or `unkillable`.
    pub word: Word,
    /// The processes that look after it, the supervisor last.
    pub supervisors: Vec<ProcessId>,
    /// The first process of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<ProcessId>,
    /// How membership is known.
    pub level: Level,
    /// When the command began, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// When its lease ends, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Commands that were put into it later and run still.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub execs: Vec<Exec>,
    /// What the host did not give, and what follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A command that was put into a running sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its number in the sandbox, from 1.
    pub number: u32,
    /// The beginning of the command, for people.
    pub command: Vec<String>,
    /// The process of ours that looks after it; its descendants are the exec's.
    pub keeper: ProcessId,
    /// When it began, in milliseconds since 1970.
    pub started_at_ms: u64,
}

/// How many bytes of its command line `state.json` keeps of each exec.
const BRIEF: usize = 256;

/// As much of a command as is kept of an exec: there may be thousands in one file.
pub fn brief(command: Vec<String>) -> Vec<String> {
    shortened_to(command, BRIEF)
}

/// In which state a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// Its command does not run yet.
    Created,
    /// Its command runs.
    Running,
    /// It is being ended.
    Stopping,
    /// Something in it would not die in the time given; it is still looked after.
    Unkillable,
    /// Its command ended by itself.
    Exited,
    /// Its command could not be run.
    Failed,
    /// It was ended: on request, by a limit, for its owner.
    Killed,
    /// Nobody looks after it and something of it is alive.
    Orphaned,
    /// Nobody looked after its end, and nothing of it was found.
    Lost,
}

impl Word {
    /// Whether something of it may be alive.
    pub fn is_living(self) -> bool {
        matches!(self, Word::Created | Word::Running | Word::Stopping | Word::Unkillable | Word::Orphaned)
    }

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Word::Created => "created",
            Word::Running => "running",
            Word::Stopping => "stopping",
            Word::Unkillable => "unkillable",
            Word::Exited => "exited",
            Word::Failed => "failed",
            Word::Killed => "killed",
            Word::Orphaned => "orphaned",
            Word::Lost => "lost",
        }
    }
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// `exit.json`: how the command ended. Written once, by whoever knows first; nothing ever replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// The version of this format.
    pub schema: u32,
    /// How the leader ended; nothing when that could not be seen. Never invented.
    pub exit: Option<Status>,
    /// Why.
    pub cause: Cause,
    /// When that was known, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Exited {
    /// The state of a sandbox that ended like this.
    pub fn word(&self) -> Word {
        match self.cause {
            Cause::Exit | Cause::Signal => Word::Exited,
            Cause::StartFailed => Word::Failed,
            Cause::Lost if self.exit.is_none() => Word::Lost,
            _ => Word::Killed,
        }
    }
}
