//! How a service ends its processes.

use serde::{Deserialize, Serialize};

/// The settings of a service that decide on the life of its processes, systemd.service(5) and systemd.kill(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSettings {
    /// `Type=oneshot`: the service ends with its first process.
    pub is_oneshot: bool,
    /// `RemainAfterExit=`: the service, once its processes have exited, ends only when it is stopped.
    pub remains: bool,
    /// `KillMode=` is `control-group` or `mixed`: the end of the service ends all its processes.
    pub kills_members: bool,
}
