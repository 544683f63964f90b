//! Ends a leak.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use penfold_cgroup::Leaf;
use penfold_process::ProcFs;
use penfold_teardown::{Findings, Ladder, Resource, Scope, Search, Selector, Teardown};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Leak, Thing};
use crate::record::Registry;
use crate::recovery;
use crate::scratch::Scratch;

/// Ends and removes what a survey found, and looks that it is gone. What went by itself meanwhile counts as gone.
///
/// # Errors
/// When it could not even be tried; it is left as it was.
pub fn collect(leak: &Leak, state_root: &Path, patience: Duration) -> io::Result<Findings> {
    let gone = || Ok(Findings { verified: true, ..Findings::default() });
    match &leak.thing {
        Thing::Record { begun: true, .. } => {
            let registry = Registry::open_existing(state_root).map_err(io::Error::other)?;
            let record = registry.map(|registry| registry.take_orphan(&leak.id)).transpose();
            match record.map_err(io::Error::other)?.flatten() {
                Some(record) => recovery::recover(record, patience),
                None => gone(),
            }
        }
        Thing::Record { path, .. } => {
            if is_unfinished(path) {
                match rustix::fs::rmdir(path) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            gone()
        }
        Thing::Processes => recovery::recover_unrecorded(&leak.id, patience),
        Thing::Cgroup { path } => {
            let Some(cgroup) = Leaf::open(path).map_err(io::Error::other)? else { return gone() };
            // A lock of its own, for there is no record to lock: two of us would report each other's deeds.
            let lock =
                rustix::fs::openat(cgroup.dir(), c".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            end(&leak.id, Some(cgroup), Vec::new(), patience)
        }
        Thing::Directory { path } => {
            let Some(scratch) = Scratch::existing(path.clone()) else { return gone() };
            let lock = directory(path)?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            end(&leak.id, None, vec![Box::new(scratch)], patience)
        }
    }
}

fn end(
    id: &str,
    leaf: Option<Leaf>,
    mut resources: Vec<Box<dyn Resource>>,
    patience: Duration,
) -> io::Result<Findings> {
    let mut proc = ProcFs::open()?;
    let search = Search::new(Selector::Marker { sandbox: id.to_owned() }, &mut proc)?;
    let mut teardown = Teardown::new(proc, leaf, Scope::Host(Box::new(search)));
    let ladder = Ladder { grace: Duration::ZERO, patience, ..Ladder::default() };
    Ok(penfold_teardown::end(&mut teardown, &ladder, &mut resources))
}

fn directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Whether nobody holds the lock of a directory. One that cannot be opened counts as held.
pub(super) fn is_free(path: &Path) -> bool {
    directory(path).is_ok_and(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// Whether a record is an empty directory that nobody holds: its maker died between the first two steps.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let Ok(dir) = directory(path) else { return false };
    let intent = || rustix::fs::statat(dir.as_fd(), c"intent.json", AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        && matches!(intent(), Err(Errno::NOENT))
}
