//! The lives of a sandbox that is restarted.

use serde::{Deserialize, Serialize};

/// When a sandbox is restarted without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnFailure {
    /// The most restarts in a row; `None` means any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
}

/// The place of a sandbox in a row of restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// The short id of the former life.
    pub restart_of: String,
    /// The number of restarts since the first life.
    pub restarts: u32,
    /// The number of lives in a row that failed soon, before this one.
    #[serde(default)]
    pub failures: u32,
}
