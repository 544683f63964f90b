//! The process names of penfold, whatever the name of the program's file.

use crate::stat::Stat;

/// The name of the launcher, the standby and the exec supervisor.
pub const LAUNCHER: &str = "penfold";

/// The name of the supervisor. With the same name as [`LAUNCHER`], `pkill -9 penfold` would end both processes of a
/// sandbox that watch each other.
pub const SUPERVISOR: &str = "pf-supervisor";

impl Stat {
    /// Tells whether the process has a name of penfold. Any process can take such a name.
    pub fn has_our_name(&self) -> bool {
        self.comm == LAUNCHER || self.comm == SUPERVISOR
    }
}
