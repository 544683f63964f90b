//! What a teardown found and did. The JSON form is versioned by [`SCHEMA`]; fields are only ever added.

use std::time::Duration;

use penfold_process::{Pid, ProcessId};
use serde::{Deserialize, Serialize};

/// The version of the report's format.
pub const SCHEMA: u32 = 1;

/// Why a sandbox ended: the first of the reasons there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The leader exited by itself.
    Exit,
    /// A signal that was not ours ended the leader.
    Signal,
    /// The leader's program could not be run.
    StartFailed,
    /// Its time ran out.
    Timeout,
    /// Its lease ran out and was not renewed.
    Ttl,
    /// Nothing happened in it for too long.
    Idle,
    /// The kernel ended the leader because the sandbox had no memory left.
    Oom,
    /// It was stopped on request.
    Stop,
    /// It was killed on request.
    Kill,
    /// Its owner died.
    Owner,
    /// A penfold process that looked after it died.
    Supervisor,
    /// It was found without anybody looking after it.
    Lost,
}

/// How membership was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A cgroup of its own.
    Cgroup,
    /// A pid namespace of its own.
    Pidns,
    /// The descendants of a subreaper of ours.
    Subreaper,
    /// The descendants of a process that penfold did not start.
    Tree,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Level::Cgroup => "cgroup",
            Level::Pidns => "pidns",
            Level::Subreaper => "subreaper",
            Level::Tree => "tree",
        })
    }
}

/// By what a member ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// After the polite signal.
    Term,
    /// By SIGKILL.
    Kill,
}

/// A member that the teardown ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its pid, as seen by penfold.
    pub pid: i32,
    /// When it started, in clock ticks since boot (`starttime` of `proc_pid_stat(5)`); 0 when nobody wanted details.
    pub start_time: u64,
    /// Its name (`comm`); empty when it was gone before it could be read, or when nobody wanted details.
    pub name: String,
    /// Its command line, shortened, for strays that are shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// By what it ended.
    pub how: How,
    /// The number of the signal by which it ended; nothing in a report of an older penfold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it had left the tree, or outlived the leader.
    pub stray: bool,
    /// What made it a stray: `setsid`, `daemon`, `left behind`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Something owned that is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Survivor {
    /// A process.
    Process {
        /// Its pid, as seen by penfold.
        pid: i32,
        /// When it started, in clock ticks since boot.
        start_time: u64,
        /// Its name (`comm`).
        name: String,
        /// Its state, the letter of `proc_pid_stat(5)`.
        state: char,
        /// The kernel function that it waits in, where that can be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_channel: Option<String>,
        /// Why it is still there.
        reason: String,
    },
    /// A resource: cgroup, directory, mount.
    Resource {
        /// What it is, with its place.
        what: String,
        /// Why it is still there.
        reason: String,
    },
    /// Something that could not be read, so that its absence is not proved.
    Unknown {
        /// What was looked at, and what stood in the way.
        reason: String,
    },
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Survivor::Process { pid, name, state, wait_channel, reason, .. } => {
                write!(f, "pid {pid} ({name}) state {state}")?;
                if let Some(channel) = wait_channel {
                    write!(f, " in {channel}")?;
                }
                write!(f, ": {reason}")
            }
            Survivor::Resource { what, reason } => write!(f, "{what}: {reason}"),
            Survivor::Unknown { reason } => f.write_str(reason),
        }
    }
}

/// One thing that the teardown did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What: `ask`, `kill`, `verify`, `release cgroup …`.
    pub what: String,
    /// When it began, in microseconds since the teardown began.
    pub at_us: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// What went wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What teardown found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Every member that the teardown ended. Start time and name are missing from the many that nobody asked for: see
    /// [`Teardown::want_details`](crate::Teardown::want_details).
    pub ended: Vec<Ended>,
    /// What is still there; empty when verified.
    pub survivors: Vec<Survivor>,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// Whether it was *seen* that nothing is left.
    pub verified: bool,
    /// How long the teardown took, in microseconds.
    pub took_us: u64,
    /// User and system time of all members that were reaped, in microseconds.
    pub cpu_us: u64,
    /// Largest resident set of a single member, or of the whole leaf where the host counts it, in bytes.
    pub peak_memory_bytes: u64,
}

impl Findings {
    /// The members that had left the tree or outlived the leader.
    pub fn strays(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().filter(|ended| ended.stray)
    }
}

/// A member, as the ledger of a teardown keeps it.
pub(crate) fn ended(id: ProcessId, name: String, how: How) -> Ended {
    Ended {
        pid: raw(id.pid),
        start_time: id.start.0,
        name,
        command: None,
        how,
        signal: None,
        stray: false,
        why: None,
    }
}

/// A member that was left behind, and of which nobody wants to know more.
pub(crate) fn left_behind(pid: Pid) -> Ended {
    Ended {
        pid: raw(pid),
        start_time: 0,
        name: String::new(),
        command: None,
        how: How::Kill,
        signal: None,
        stray: true,
        why: Some("left behind".to_owned()),
    }
}

pub(crate) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
