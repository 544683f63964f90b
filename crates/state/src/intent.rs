//! The intent: the first file of a record, written before anything of the sandbox exists.

use std::collections::BTreeMap;
use std::path::PathBuf;

use penfold_cgroup::Limits;
use penfold_process::{ProcessId, StartTime};
use penfold_resource::{PlannedResource, ResourceOwner};
use serde::{Deserialize, Serialize};

use crate::confinement::{Identity, Profile};
use crate::event_log::EventLog;
use crate::id::Id;
use crate::life::{Life, OnFailure};
use crate::name_text;
use crate::spare_plan::SparePlan;

/// The name of the intent's file in a record.
pub const INTENT: &str = "intent.json";

/// The plan for a sandbox and its resources, written before they exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The version of this format.
    pub schema: u32,
    /// The full id.
    pub id: Id,
    /// The name, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command, for people: bytes that are not UTF-8 are replaced.
    pub command: Vec<String>,
    /// The id of the boot in which the sandbox was made.
    pub boot: String,
    /// The ids of the enclosing sandboxes, outermost first, as in the marker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// The leaf, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub leaf: Option<PathBuf>,
    /// The limits of the leaf. Those of the caller count where they are stricter.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// The cgroup of the scope that a service manager made for the sandbox. The leaf and the supervisors are below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub scope: Option<PathBuf>,
    /// The scratch directory, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub scratch: Option<PathBuf>,
    /// The resources, in the order in which they are made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<PlannedResource>,
    /// The directory in which the command of a detached sandbox starts; `None` if it has no path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub workspace: Option<PathBuf>,
    /// The time of creation, in milliseconds since 1970.
    #[serde(default)]
    pub made_at_ms: u64,
    /// The number of the polite signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The grace, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The cgroup in which `penfold run` was started: the text that follows `0::` in `/proc/<pid>/cgroup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The session that the leader shares with the caller of penfold; `None` if the leader has its own session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<i32>,
    /// The ancestors of `penfold run`, the nearest first: one of them adopts its orphans. Only recorded without a leaf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<ProcessId>,
    /// The start time of `penfold run`: no member is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<StartTime>,
    /// The patience: the time that a kill may take until the survivors are reported, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The event log, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log: Option<EventLog>,
    /// The members that the end leaves alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<SparePlan>,
    /// The user as whom the commands run; `None` for the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The profile, if the sandbox has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The id of the sandbox from which this one was started, and of which it is no part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
    /// The details of a detached sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<DetachedIntent>,
}

impl Intent {
    /// Returns the owner of the resources.
    #[must_use]
    pub fn owner(&self) -> ResourceOwner {
        ResourceOwner { id: self.id.short(), boot: self.boot.clone() }
    }

    /// Returns the tenant to whom the sandbox belongs, if one does.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        name_text::tenant_of(&self.labels)
    }

    /// Returns the name that the sandbox holds below its state root, if it has one.
    #[must_use]
    pub fn held_name(&self) -> Option<String> {
        self.name.as_ref().map(|name| name_text::held_name(self.tenant(), name))
    }

    /// Returns the place in a row of restarts; `None` for a first life.
    #[must_use]
    pub fn life(&self) -> Option<&Life> {
        self.detached.as_ref()?.life.as_ref()
    }
}

/// The details that only a detached sandbox has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedIntent {
    /// The state root with the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub root: Option<PathBuf>,
    /// The owner: the parent of `penfold run -d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessId>,
    /// Whether the sandbox continues when its supervisors are killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// Whether the record is removed when the sandbox ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// Whether the sandbox has a terminal of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// The probe that shows whether the sandbox is ready, as the user wrote it. [`Files::ready_at`](crate::Files::ready_at)
    /// tells whether it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Whether the sandbox is started again when its command fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<OnFailure>,
    /// The place in a row of restarts; `None` for a sandbox that is no restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<Life>,
}

/// Shortens a command line for a record: enough to recognise the command, and within the limit of the reader.
pub fn shorten_command(words: Vec<String>) -> Vec<String> {
    shortened_to(words, RECORDED)
}

/// Shortens a command line to at most `most` bytes, where each word counts one byte more than its length.
pub(crate) fn shortened_to(mut words: Vec<String>, most: usize) -> Vec<String> {
    let mut left = most;
    words.retain_mut(|word| {
        let end = (0..=left.min(word.len())).rev().find(|&index| word.is_char_boundary(index)).unwrap_or(0);
        let kept = left > 0;
        word.truncate(end);
        left = left.saturating_sub(end + 1);
        kept
    });
    words
}

/// The number of bytes of a command line that a record keeps.
const RECORDED: usize = 4096;
