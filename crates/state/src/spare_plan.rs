//! What a sandbox spares at its end; part of the intent, so that every teardown knows it.

use penfold_teardown::SpareRule;
use serde::{Deserialize, Serialize};

/// The members that the end of a sandbox leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparePlan {
    /// The rules; none if the sandbox only lets its members start sandboxes outside.
    pub rules: Vec<SpareRule>,
    /// The cgroup of the caller of penfold: the text that follows `0::` in `/proc/<pid>/cgroup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Whether members may start sandboxes outside of this one, and hand members over to such.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allows_outside: bool,
}
