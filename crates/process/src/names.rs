//! What the processes of penfold are called, whatever the file of the program is called.

use crate::stat::Stat;

/// The front, the outer process, and who looks after an exec.
pub const FRONT: &str = "penfold";

/// The supervisor. Another name than [`FRONT`]: `pkill -9 penfold` must not end both processes of a sandbox that
/// watch each other.
pub const SUPERVISOR: &str = "pf-supervisor";

impl Stat {
    /// Whether the process has a name of penfold. Any process can take such a name.
    pub fn has_our_name(&self) -> bool {
        self.comm == FRONT || self.comm == SUPERVISOR
    }
}
