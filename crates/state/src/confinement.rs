//! As whom and in what the commands of a sandbox run: what an exec has in common with the command.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The name of the directory in a scratch directory that belongs to the user of `run --user`. The scratch directory itself stays
/// penfold's: only its owner finds it after a crash.
pub const USER_SCRATCH: &str = "user";

/// The path of penfold's own program in a jail.
pub const JAIL_PROGRAM: &str = "/run/penfold-jail";

/// The user as whom the commands of a sandbox run. The kernel takes away all capabilities, unless the user is root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// All groups, `gid` included.
    pub groups: Vec<u32>,
}

/// What the command of a sandbox is put into: the value of `--profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A jail of bubblewrap.
    Jail,
    /// Nothing: the command is a virtual machine monitor.
    Vmm,
}

impl Profile {
    /// Returns the word of the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Profile::Jail => "jail",
            Profile::Vmm => "vmm",
        }
    }
}

/// With whom the members share System V and POSIX IPC, and `/dev/shm`: the value of `--ipc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ipc {
    /// With the host.
    #[default]
    Host,
    /// With nobody else: the namespaces, and all that is in them, end with their last process.
    Private,
}

/// What an exec needs to enter the jail of its sandbox, besides the namespaces of the jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jail {
    /// The filter of system calls: `struct sock_filter` of `linux/filter.h`, one after the other. `None` without a filter.
    pub filter: Option<Vec<u8>>,
    /// The value of TMPDIR without a scratch directory, and where the scratch directory is a home.
    pub temporary: PathBuf,
    /// Whether the jail has a user of its own, whose home is the scratch directory.
    pub has_user: bool,
}
