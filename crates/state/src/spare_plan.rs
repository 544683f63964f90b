//! What a sandbox spares at its end; part of the intent, so that every teardown knows it.

use penfold_teardown::SpareRule;
use serde::{Deserialize, Serialize};

/// The members that the end of a sandbox leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparePlan {
    /// The rules.
    pub rules: Vec<SpareRule>,
    /// The cgroup of the caller of penfold: the text that follows `0::` in `/proc/<pid>/cgroup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
}
