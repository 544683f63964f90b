//! Pauses and continues sandboxes, with the freezer of their leaves.
//!
//! The kernel alone knows whether a sandbox is paused: a process may also freeze or thaw the leaf by itself. The supervisors are
//! outside of the leaf and go on: time limits and leases hold for a paused sandbox, too.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penfold_cgroup::{CgroupError, Leaf};
use penfold_process::ProcFs;
use penfold_state::execs::number_of_leaf;
use penfold_state::state::Status;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};

use crate::client::has_just_ended;
use crate::end::EndLimits;
use crate::resolve::{Resolver, SandboxRef};
use crate::timeout::poll_timeout;
use crate::view::observe_sandbox;

/// The interval of looks, as the kernel may hold back a notification.
const LOOK: Duration = Duration::from_millis(20);
/// The kernel thaws a cgroup at once, unless one above is frozen.
const THAW: Duration = Duration::from_secs(1);

/// Why a sandbox was not paused or continued. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// The sandbox has no leaf.
    #[error("it has no cgroup of its own")]
    NoLeaf,
    /// The sandbox has this status.
    #[error("it is {0}")]
    Status(Status),
    /// Nothing of the sandbox is there.
    #[error("it is gone")]
    Gone,
    /// Members live, and the record is lost.
    #[error("its record is lost")]
    NoRecord,
    /// The caller is a member: it would freeze itself.
    #[error("this penfold is a member of it")]
    Inside,
    /// Some member did not freeze in time.
    #[error("not all members were frozen within {} ms, and all go on", limit.as_millis())]
    Late {
        /// The time.
        limit: Duration,
    },
    /// The leaf is thawed, and its members do not run.
    #[error("a cgroup above its own is frozen")]
    Above,
    /// An operation on the leaf failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Freezes all members of a sandbox. Returns once none of them runs. A paused sandbox stays paused.
///
/// # Errors
/// When the sandbox does not run or has no leaf, and when a member cannot be frozen in time: the leaf is thawed again then.
pub fn pause_sandbox(resolver: &Resolver, known: &SandboxRef) -> Result<(), PauseError> {
    freeze(resolver, known).map_err(|error| over_or(resolver, known, error))
}

fn freeze(resolver: &Resolver, known: &SandboxRef) -> Result<(), PauseError> {
    let leaf = leaf(resolver, known)?;
    penfold_sys::crash_point!("leaf-opened-to-pause");
    let own = ProcFs::open().and_then(|mut proc| proc.cgroups(rustix::process::getpid()));
    if own.ok().flatten().is_some_and(|text| leaf.holds(&text)) {
        return Err(PauseError::Inside);
    }
    let execs = leaves_of_execs(&leaf);
    let is_frozen = |leaf: &Leaf| matches!(leaf.frozen(), Ok(true));
    if leaf.is_own_freeze() && is_frozen(&leaf) && leaf.populated()? && execs.iter().all(is_frozen) {
        // Nothing runs meanwhile, and a client that died in the middle has left them frozen by themselves.
        thaw_each(&execs);
        return Ok(());
    }
    leaf.freeze()?;
    penfold_sys::crash_point!("leaf-frozen-to-pause");
    let limit = EndLimits::default().patience(known.intent.as_ref());
    let until = Instant::now() + limit;
    let mut frozen = freeze_first(&leaf, &execs, until);
    // They stay frozen by the leaf.
    thaw_each(&execs);
    if matches!(frozen, Ok(true)) {
        frozen = await_frozen(&leaf, true, until);
    }
    if !matches!(frozen, Ok(true) | Err(PauseError::Gone)) {
        leaf.thaw()?;
    }
    if !frozen? {
        return Err(PauseError::Late { limit });
    }
    // A leaf without members counts as frozen: those of a sandbox that has been killed just now.
    if leaf.populated()? { Ok(()) } else { status(&resolver.again(), known).map(drop) }
}

/// Lets all members of a paused sandbox go on. A sandbox that runs is left as it is.
///
/// # Errors
/// When the sandbox does not run or has no leaf, and when a cgroup above is frozen.
pub fn unpause_sandbox(resolver: &Resolver, known: &SandboxRef) -> Result<(), PauseError> {
    let thawed = || {
        let leaf = leaf(resolver, known)?;
        penfold_sys::crash_point!("leaf-opened-to-unpause");
        leaf.thaw()?;
        // A client that died while it paused the sandbox may have left them frozen by themselves.
        thaw_each(&leaves_of_execs(&leaf));
        if await_frozen(&leaf, false, Instant::now() + THAW)? { Ok(()) } else { Err(PauseError::Above) }
    };
    thawed().map_err(|error| over_or(resolver, known, error))
}

/// Returns this error, or the status of the sandbox if it has ended meanwhile.
fn over_or(resolver: &Resolver, known: &SandboxRef, error: PauseError) -> PauseError {
    if matches!(error, PauseError::Status(_) | PauseError::Inside)
        || !known.record.as_ref().is_some_and(has_just_ended)
    {
        return error;
    }
    status(&resolver.again(), known).err().unwrap_or(PauseError::Gone)
}

/// Returns the status of a sandbox that runs or is paused.
fn status(resolver: &Resolver, known: &SandboxRef) -> Result<Status, PauseError> {
    let seen = observe_sandbox(resolver, known).ok_or(PauseError::Gone)?;
    let runs = matches!(seen.status, Status::Created | Status::Running | Status::Paused) && !seen.elsewhere;
    if runs {
        return Ok(seen.status);
    }
    // The supervisors may live: only the record leads to them.
    let is_unrecorded = known.record.is_none() && seen.status == Status::Orphaned;
    Err(if is_unrecorded { PauseError::NoRecord } else { PauseError::Status(seen.status) })
}

/// Opens the leaf of a sandbox that runs or is paused.
fn leaf(resolver: &Resolver, known: &SandboxRef) -> Result<Leaf, PauseError> {
    status(resolver, known)?;
    let path = known.leaf.as_deref().ok_or(PauseError::NoLeaf)?;
    Leaf::open(path)?.ok_or(PauseError::NoLeaf)
}

/// Freezes what runs in the leaves of execs, which are below the frozen leaf. False at the deadline.
///
/// The kernel (6.18) says that a cgroup is frozen as soon as either its own members are or the cgroups below are. What it says of a leaf is
/// correct if the cgroups below were frozen first.
fn freeze_first(leaf: &Leaf, execs: &[Leaf], until: Instant) -> Result<bool, PauseError> {
    for exec in execs {
        let frozen = exec.freeze().map_err(PauseError::from).and_then(|()| await_frozen(exec, true, until));
        // One that has ended meanwhile has no members.
        if !matches!(frozen, Ok(true)) && !exec.is_gone()? {
            return frozen;
        }
    }
    if !execs.is_empty() {
        penfold_sys::crash_point!("execs-frozen-to-pause");
        leaf.thaw()?;
        leaf.freeze()?;
    }
    Ok(true)
}

/// Thaws leaves of execs. One that has ended meanwhile has none.
fn thaw_each(execs: &[Leaf]) {
    for exec in execs {
        let _ = exec.thaw();
    }
}

/// Opens the leaves of execs below the leaf of their sandbox.
fn leaves_of_execs(leaf: &Leaf) -> Vec<Leaf> {
    let Ok(entries) = std::fs::read_dir(leaf.path()) else { return Vec::new() };
    let is_one = |name: &OsStr| name.to_str().is_some_and(|name| number_of_leaf(name).is_some());
    let paths = entries.filter_map(Result::ok).filter(|entry| is_one(&entry.file_name()));
    paths.filter_map(|entry| Leaf::open(&entry.path()).ok().flatten()).collect()
}

/// Waits until all members are frozen, or no longer are. False at the deadline.
///
/// # Errors
/// [`PauseError::Gone`] when the leaf is removed: its events file is then ready at each poll(2), and never changes.
fn await_frozen(leaf: &Leaf, frozen: bool, until: Instant) -> Result<bool, PauseError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let events: Option<OwnedFd> = rustix::fs::openat(leaf.dir(), c"cgroup.events", flags, Mode::empty()).ok();
    loop {
        // The kernel notifies of changes after a read.
        if let Some(events) = &events {
            let _ = rustix::io::pread(events, &mut [0; 128], 0);
        }
        let is_reached = leaf.frozen()? == frozen;
        if leaf.is_gone()? {
            return Err(PauseError::Gone);
        }
        if is_reached {
            return Ok(true);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut fds: Vec<PollFd<'_>> =
            events.iter().map(|events| PollFd::new(events, PollFlags::PRI)).collect();
        let _ = rustix::event::poll(&mut fds, poll_timeout(left.min(LOOK)).as_ref());
    }
}
