//! What the processes of one sandbox are given.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use penfold_process::ProcessId;
use penfold_state::Spec;
use penfold_sys::launch::Program;

/// All that the processes of one sandbox are given.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) spec: Spec,
    pub(crate) program: Program,
    /// The supervisor's end of the channel to the launcher.
    pub(crate) channel: OwnedFd,
    /// The process that called [`start()`](crate::start()); without it the end of the channel tells that it is gone.
    pub(crate) launcher: Option<OwnedFd>,
    /// The parent of that process, if it is in sight.
    pub(crate) owner: Option<OwnedFd>,
    /// Who that is, where it is to be written down.
    pub(crate) owner_id: Option<ProcessId>,
    /// The leader has a session of its own, and the launcher is told when it runs.
    pub(crate) apart: bool,
    /// The session of the launcher, which the leader shares unless it is apart.
    pub(crate) session: i32,
    /// The process group of the launcher.
    pub(crate) group: i32,
    /// A terminal sends its keys' signals to the launcher and the command, and the launcher tells of its own.
    pub(crate) keys: bool,
    /// Where the scratch directory is to be.
    pub(crate) scratch: Option<PathBuf>,
    /// The caller is given time only when nobody else wants it (`SCHED_IDLE`), and so is the command; our own processes
    /// leave that policy where they may.
    pub(crate) idle: bool,
    /// When it all began.
    pub(crate) began: Instant,
}
