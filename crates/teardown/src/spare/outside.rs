//! Sandboxes that members have started outside of their own one, or that were made of members.

use std::path::PathBuf;

use penfold_process::ProcessId;
use serde::{Deserialize, Serialize};

/// A sandbox outside of the one from which it was started. Its processes are no members of that one, although they descend from
/// a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideSandbox {
    /// The short id.
    pub id: String,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its standby and its supervisor.
    pub supervisors: Vec<ProcessId>,
    /// Its leaf, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub leaf: Option<PathBuf>,
}

/// Knows the sandboxes that were started outside of one sandbox.
pub trait OutsideFinder: std::fmt::Debug + Send {
    /// Returns those that were noted and not removed. Their supervisors may have ended.
    fn noted(&mut self) -> Vec<OutsideSandbox>;
}
