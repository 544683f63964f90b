//! From a spec to a running sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, ProcessId};
use penfold_sandbox::{Scratch, Spec};
use penfold_sys::child::{self, Peek};
use penfold_sys::launch::Program;
use penfold_sys::signal::{self, SignalSet};
use penfold_sys::{Forked, fork};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, getpid, getppid, pidfd_open};

use crate::environment::{self, Inherited};
use crate::front::{Front, Keeper};
use crate::held::Held;
use crate::{inner, outer};

/// Why a sandbox could not even be tried.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A word of the command line or the environment cannot be passed on.
    #[error("{what} holds a NUL byte")]
    Nul {
        /// Where.
        what: &'static str,
    },
    /// The processes of ours could not be set up.
    #[error("cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// What stood in the way.
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::System { act, source: source.into() }
}

/// All that the processes of one sandbox are given.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) spec: Spec,
    pub(crate) program: Program,
    /// The supervisor's end of the channel to the front.
    pub(crate) channel: OwnedFd,
    /// The process that called [`start`]; without it the end of the channel tells that it is gone.
    pub(crate) front: Option<OwnedFd>,
    /// The parent of that process, if it is in sight.
    pub(crate) owner: Option<OwnedFd>,
    /// Who that is, where it is to be written down.
    pub(crate) owner_id: Option<ProcessId>,
    /// The leader has a session of its own, and the front is told when it runs.
    pub(crate) apart: bool,
    /// The session of the front, which the leader shares unless it is apart.
    pub(crate) session: i32,
    /// Where the scratch directory is to be.
    pub(crate) scratch: Option<PathBuf>,
    /// When it all began.
    pub(crate) began: Instant,
}

/// What the front keeps of the spec.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) state_root: PathBuf,
    pub(crate) patience: Duration,
}

/// Starts a sandbox. From here on this process is a subreaper and blocks the signals that [`Front::wait`] handles.
///
/// # Errors
/// When nothing was started. What fails later, the command missing for one, is in the outcome.
pub fn start(spec: Spec) -> Result<Front, StartError> {
    let began = Instant::now();
    let child_ignored = signal::is_ignored(environment::CHILD);
    if child_ignored {
        signal::set_default(environment::CHILD);
    }
    // Nothing may reach the copies of this process: they share its group until each has a session of its own.
    let mask = signal::block(&SignalSet::of(1..=64)).map_err(system("block signals"))?;
    let inherited = Inherited { mask, child_ignored };
    let scratch = spec.scratch_in.as_deref().map(|base| Scratch::path_for(base, &spec.id.short()));
    let program = environment::program(&spec, scratch.as_deref(), &inherited)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(system("make a socket pair"))?;
    let front = pidfd_open(getpid(), PidfdFlags::empty()).map_err(system("open a pidfd"))?;
    let session = penfold_sys::fork::session();
    let detached = spec.detach.is_some();
    let seen = Seen { id: spec.id.short(), state_root: spec.state_root.clone(), patience: spec.patience };
    let owner_id = if detached { parent_id() } else { None };
    let owner = owner();
    let setup = Setup {
        spec,
        program,
        channel: theirs,
        front: Some(front),
        owner,
        owner_id,
        apart: detached,
        session,
        scratch,
        began,
    };
    // Before the fork: members that lose their supervisors come to us.
    let alone = !detached && !getpid().is_init() && matches!(child::peek(), Ok(Peek::NoChild));
    rustix::process::set_child_subreaper(Some(getpid())).map_err(system("become a subreaper"))?;
    let (keeper, ours) = if alone { start_inner(setup, ours)? } else { start_outer(setup, ours)? };
    Front::new(keeper, ours, seen).map_err(system("watch the supervisor"))
}

/// Every child of this process will be the sandbox's: it can be the outer subreaper itself.
fn start_inner(setup: Setup, ours: OwnedFd) -> Result<(Keeper, OwnedFd), StartError> {
    let held = match Held::prepare(setup) {
        Ok(held) => held,
        Err(outcome) => return Ok((Keeper::Refused(outcome), ours)),
    };
    match fork() {
        Ok(Forked::Child) => {
            drop(ours);
            inner::run(held, None)
        }
        Ok(Forked::Parent(inner)) => {
            penfold_sys::crash_point!("front-forked");
            let keeper = Keeper::Inner { pid: inner, pidfd: watch(inner)?, held: Some(Box::new(held)) };
            Ok((keeper, ours))
        }
        Err(error) => {
            let outcome = held.give_up(format!("cannot fork: {error}"));
            Ok((Keeper::Refused(Box::new(outcome)), ours))
        }
    }
}

fn start_outer(setup: Setup, ours: OwnedFd) -> Result<(Keeper, OwnedFd), StartError> {
    match fork().map_err(system("fork"))? {
        Forked::Child => {
            drop(ours);
            outer::run(setup)
        }
        Forked::Parent(outer) => Ok((Keeper::Outer { pid: outer, pidfd: watch(outer)? }, ours)),
    }
}

fn watch(pid: Pid) -> Result<OwnedFd, StartError> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(system("open a pidfd"))
}

/// Who started this process, to be written down.
fn parent_id() -> Option<ProcessId> {
    let mut proc = ProcFs::open().ok()?;
    Some(proc.stat(getppid()?).ok()??.id())
}

/// Who started this process. One that is outside of this pid namespace cannot be seen to die.
fn owner() -> Option<OwnedFd> {
    let parent = getppid()?;
    let owner = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    // If it died in between, the number may be another's; then there is a new parent, which did not start us.
    (getppid() == Some(parent)).then_some(owner)
}
