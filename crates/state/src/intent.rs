//! What a record says was meant to be: the first that is written of a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;

use penfold_process::{ProcessId, StartTime};
use serde::{Deserialize, Serialize};

use crate::id::Id;

/// The file of a record that holds it.
pub const INTENT: &str = "intent.json";

/// What the record says was meant to be, before it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The version of this format.
    pub schema: u32,
    /// The whole id.
    pub id: Id,
    /// The name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command, for people: what is not UTF-8 is replaced.
    pub command: Vec<String>,
    /// The boot that it belongs to.
    pub boot: String,
    /// The sandboxes that it is nested in, from the outermost, as its marker has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// The leaf, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<PathBuf>,
    /// The scratch directory, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// When it was made, in milliseconds since 1970.
    #[serde(default)]
    pub made_at_ms: u64,
    /// The number of the signal by which its members are asked to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How long they may take then, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The cgroup that `penfold run` was started in: the text that follows `0::` in `/proc/<pid>/cgroup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The session that its first process shares with its caller; none where it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<i32>,
    /// Who was above `penfold run`, the nearest first: one of them takes in its orphans. Only where there is no leaf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<ProcessId>,
    /// When `penfold run` started: no member is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<StartTime>,
    /// How long a kill may take until what is left is reported, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// What only a sandbox has that goes on without who started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<Detached>,
}

/// What is to be known of a sandbox that goes on without who started it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// The root below which its record is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// Who started it: the parent of `penfold run -d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessId>,
    /// It is not ended when its supervisors are killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// Its record goes when it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// It has a terminal of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
}

/// What a record keeps of a command line: enough to know it by, and no more than is read again.
pub fn shortened(words: Vec<String>) -> Vec<String> {
    shortened_to(words, RECORDED)
}

/// At most so many bytes of a command line, each word counted as one more.
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

/// How many bytes of a command line a record keeps.
const RECORDED: usize = 4096;
