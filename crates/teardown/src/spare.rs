//! Members that the end of a sandbox leaves alone: by rule, never by default.

mod mark;
mod outside;
mod rule;

use std::io;

use penfold_process::{ProcessId, StartTime};
use serde::{Deserialize, Serialize};

pub use self::mark::{SparedMark, binding_ids};
pub use self::outside::{OutsideFinder, OutsideSandbox};
pub(crate) use self::rule::Verdict;
pub use self::rule::{RuleError, SpareRule, absolute_rule};

/// A process that the end of its sandbox has left alone. It is no member any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparedProcess {
    /// The pid, in penfold's pid namespace.
    pub pid: i32,
    /// The start time in clock ticks since boot.
    pub start_time: u64,
    /// The name (`comm`).
    pub name: String,
    /// The command line, shortened.
    pub command: String,
    /// The rule that the process matched.
    pub rule: String,
    /// The cgroup to which the process was moved, if it was in the leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl SparedProcess {
    /// Returns the identity; `None` if the pid is none.
    pub fn id(&self) -> Option<ProcessId> {
        let pid = penfold_process::pid_from_raw(self.pid)?;
        Some(ProcessId { pid, start: StartTime(self.start_time) })
    }
}

/// What was noted of a sandbox before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EarlierNotes {
    /// The leader, which is never spared.
    pub leader: Option<ProcessId>,
    /// The processes that an earlier teardown has spared.
    pub spared: Vec<SparedProcess>,
}

/// Remembers the spared processes of one sandbox for later commands, beyond the life of its record.
pub trait SparedNotes: std::fmt::Debug + Send {
    /// Returns what an earlier process of penfold has noted of this sandbox.
    fn earlier(&mut self) -> EarlierNotes;

    /// Notes the processes. `is_over` says that nothing else of the sandbox is left.
    ///
    /// # Errors
    /// When they could not be noted. A later command takes them for members that were left.
    fn write(&mut self, spared: &[SparedProcess], is_over: bool) -> io::Result<()>;
}

/// What a teardown needs to spare members.
#[derive(Debug)]
pub struct SparePolicy {
    /// The rules.
    pub rules: Vec<SpareRule>,
    /// The cgroup of the caller, as `/proc/<pid>/cgroup` shows it: spared processes are moved there from the leaf.
    pub home: Option<String>,
    /// Whether the teardown ends a part of the sandbox only: then its end is not that of the sandbox.
    pub is_partial: bool,
    /// Where spared processes are noted.
    pub notes: Box<dyn SparedNotes>,
    /// The sandboxes that members have started outside of this one; `None` if the sandbox does not allow this.
    pub outside: Option<Box<dyn OutsideFinder>>,
}
