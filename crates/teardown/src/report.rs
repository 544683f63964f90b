//! The findings of a teardown. The JSON format is versioned by [`SCHEMA`]; fields are only ever added.

use std::path::PathBuf;
use std::time::Duration;

use penfold_process::{Pid, ProcessId};
use serde::{Deserialize, Serialize};

use crate::spare::{OutsideSandbox, SparedProcess};

/// The version of the report's format.
pub const SCHEMA: u32 = 1;

/// Why a sandbox ended: the first cause of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The leader exited by itself.
    Exit,
    /// A signal that penfold did not send ended the leader.
    Signal,
    /// The leader's program could not be run.
    StartFailed,
    /// The time limit was reached.
    Timeout,
    /// The lease ran out and was not renewed.
    Ttl,
    /// The sandbox was idle for too long.
    Idle,
    /// The kernel ended the leader because the sandbox reached its own memory limit.
    Memory,
    /// The kernel ended the leader for lack of memory outside of the sandbox, such as that of a service or of the host.
    Oom,
    /// The sandbox was stopped on request.
    Stop,
    /// The sandbox was killed on request.
    Kill,
    /// The owner died.
    Owner,
    /// The standard input hung up.
    Stdin,
    /// A penfold process of the sandbox died.
    Supervisor,
    /// The sandbox was found without a supervisor.
    Lost,
}

/// How membership was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// By a cgroup of the sandbox's own.
    Cgroup,
    /// By a pid namespace of the sandbox's own.
    Pidns,
    /// As the descendants of a subreaper of penfold.
    Subreaper,
    /// As the descendants of a process that penfold did not start.
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

/// How the teardown ended a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedBy {
    /// By the polite signal.
    Term,
    /// By SIGKILL.
    Kill,
}

/// A member that the teardown ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedMember {
    /// The pid, in penfold's pid namespace.
    pub pid: i32,
    /// The start time in clock ticks since boot (`starttime` of `proc_pid_stat(5)`); 0 unless details were requested.
    pub start_time: u64,
    /// The name (`comm`); empty when the member was gone before its name was read, or unless details were requested.
    pub name: String,
    /// The command line, shortened, for strays that are named for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How the teardown ended the member.
    pub how: EndedBy,
    /// The number of the signal that ended the member; `None` in a report of an older penfold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the member had left the tree, or outlived the leader.
    pub stray: bool,
    /// What made the member a stray: `setsid`, `daemon`, `left behind`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A process or resource of the sandbox that still exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Survivor {
    /// A process.
    Process {
        /// The pid, in penfold's pid namespace.
        pid: i32,
        /// The start time in clock ticks since boot; 0 if `/proc` hides the process, which then has no name.
        start_time: u64,
        /// The name (`comm`).
        name: String,
        /// The state, the letter of `proc_pid_stat(5)`.
        state: char,
        /// The kernel function in which the process waits, if readable.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_channel: Option<String>,
        /// Why the process still exists.
        reason: String,
    },
    /// A resource: cgroup, directory, mount.
    Resource {
        /// The kind of resource, with its path.
        what: String,
        /// Why the resource still exists.
        reason: String,
    },
    /// Something that could not be read, so that its absence is not proved.
    Unknown {
        /// The object that was to be read, and the obstacle.
        reason: String,
    },
}

impl Survivor {
    /// A process that `/proc` does not show: nothing but its pid is known. With `blind`, there is no `/proc` at all.
    #[must_use]
    pub fn hidden(pid: Pid, blind: bool) -> Survivor {
        let reason = if blind {
            "has not ended, and there is no `/proc` that tells more of it"
        } else {
            "has not ended, and `/proc` does not show it (hidepid)"
        };
        Survivor::Process {
            pid: raw_pid(pid),
            start_time: 0,
            name: String::new(),
            state: '?',
            wait_channel: None,
            reason: reason.to_owned(),
        }
    }
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Survivor::Process { pid, start_time: 0, reason, .. } => write!(f, "process {pid}: {reason}"),
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

/// The name of the step that leaves members alone by rule.
pub const SPARE: &str = "spare";

/// One action of the teardown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeardownStep {
    /// The action: `ask`, `kill`, `verify`, `release cgroup …`.
    pub what: String,
    /// The start of the action, in microseconds since the teardown began.
    pub at_us: u64,
    /// The duration of the action, in microseconds.
    pub took_us: u64,
    /// The error, if the action failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The findings of a teardown: what it found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Every member that the teardown ended. Most lack start time and name unless details are requested: see
    /// [`Teardown::want_details`](crate::Teardown::want_details).
    pub ended: Vec<EndedMember>,
    /// The processes that were left alone by rule, as far as they live. They are no members any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<SparedProcess>,
    /// The sandboxes that members have started outside, as far as they live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideSandbox>,
    /// The processes and resources that still exist; empty when verified.
    pub survivors: Vec<Survivor>,
    /// All actions, in order.
    pub steps: Vec<TeardownStep>,
    /// The kernel refused to remove the cgroup although it seemed to be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<RmdirBusy>,
    /// Whether an observation showed that nothing is left.
    pub verified: bool,
    /// The duration of the teardown, in microseconds.
    pub took_us: u64,
    /// User and system time of all members that were reaped, in microseconds.
    pub cpu_us: u64,
    /// Largest resident set of a single member, or the peak of the whole leaf if the host accounts for it, in bytes.
    pub peak_memory_bytes: u64,
}

/// Refusals of the kernel to remove the cgroup of a sandbox, rmdir(2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmdirBusy {
    /// The directory.
    #[serde(with = "penfold_process::path_text")]
    pub path: PathBuf,
    /// The error number, `EBUSY`.
    pub errno: i32,
    /// The first processes that were found inside after a refusal.
    pub pids: Vec<i32>,
    /// The number of refusals.
    pub tries: u32,
    /// The time from the first refusal to the removal, or to this report, in microseconds.
    pub took_us: u64,
}

impl Findings {
    /// Returns the members that had left the tree or outlived the leader.
    pub fn strays(&self) -> impl Iterator<Item = &EndedMember> {
        self.ended.iter().filter(|ended| ended.stray)
    }

    /// Tells whether processes are left, or may be: where nothing can be seen, some may live.
    pub fn may_have_processes(&self) -> bool {
        self.survivors.iter().any(|survivor| !matches!(survivor, Survivor::Resource { .. }))
    }
}

/// Makes a ledger entry for a member.
pub(crate) fn ended_member(id: ProcessId, name: String, how: EndedBy) -> EndedMember {
    EndedMember {
        pid: raw_pid(id.pid),
        start_time: id.start.0,
        name,
        command: None,
        how,
        signal: None,
        stray: false,
        why: None,
    }
}

/// Makes an entry for a member that was left behind, without details.
pub(crate) fn left_behind(pid: Pid) -> EndedMember {
    EndedMember {
        pid: raw_pid(pid),
        start_time: 0,
        name: String::new(),
        command: None,
        how: EndedBy::Kill,
        signal: None,
        stray: true,
        why: Some("left behind".to_owned()),
    }
}

pub(crate) fn raw_pid(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

pub(crate) fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Findings, Survivor};

    #[test]
    fn only_resources_are_certainly_no_processes() {
        let reason = || "why".to_owned();
        let resource = Survivor::Resource { what: "directory `/x`".to_owned(), reason: reason() };
        let mut findings = Findings { survivors: vec![resource], ..Findings::default() };
        assert!(!findings.may_have_processes());
        findings.survivors.push(Survivor::Unknown { reason: reason() });
        assert!(findings.may_have_processes());
        assert!(!Findings::default().may_have_processes());
    }
}
