//! The input of the processes of one sandbox.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use penfold_process::ProcessId;
use penfold_state::Spec;
use penfold_sys::launch::Program;

/// The input of the processes of one sandbox, made before the first fork.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) spec: Spec,
    pub(crate) program: Program,
    /// The program that asks the members to end before the polite signal does.
    pub(crate) stop_program: Option<Program>,
    /// The supervisor's end of the channel to the launcher.
    pub(crate) channel: OwnedFd,
    /// A pidfd of the process that called [`start_sandbox()`](crate::start_sandbox()). Without it, EOF on the channel shows the
    /// launcher's death.
    pub(crate) launcher: Option<OwnedFd>,
    /// A pidfd of the launcher's parent, if it is in this pid namespace.
    pub(crate) owner: Option<OwnedFd>,
    /// The pid of that parent.
    pub(crate) owner_pid: Option<i32>,
    /// The identity of that parent, if the record needs it.
    pub(crate) owner_id: Option<ProcessId>,
    /// The leader gets a session of its own, and the launcher gets a message when the leader runs.
    pub(crate) own_session: bool,
    /// The session of the launcher. The leader shares it unless `own_session` is set.
    pub(crate) session: i32,
    /// The process group of the launcher.
    pub(crate) group: i32,
    /// A terminal sends the signals of its keys to the launcher and the command, and the launcher reports its own to
    /// the supervisor.
    pub(crate) keys: bool,
    /// The cgroup of the scope in which this process is, if a service manager made one.
    pub(crate) scope: Option<PathBuf>,
    /// The text of `/proc/<pid>/cgroup` of the caller, for a sandbox in a scope with limits: those of the caller hold too.
    pub(crate) caller_cgroup: Vec<u8>,
    /// The path of the scratch directory.
    pub(crate) scratch: Option<PathBuf>,
    /// The caller runs under `SCHED_IDLE`, and so does the command. penfold's own processes leave that policy if
    /// permitted.
    pub(crate) idle: bool,
    /// The time at which [`start_sandbox()`](crate::start_sandbox()) was called.
    pub(crate) began: Instant,
}
