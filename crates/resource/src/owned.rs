//! A planned resource that a teardown releases.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use penfold_teardown::Resource;

use crate::{PlannedResource, ResourceOwner};

/// The time that the release of all resources of a sandbox may take, from the first release on.
#[derive(Debug, Clone)]
pub struct ReleaseDeadline {
    patience: Duration,
    until: Rc<Cell<Option<Instant>>>,
}

/// What each resource gets after the deadline: enough for one that nobody holds.
const AT_LEAST: Duration = Duration::from_millis(200);

impl ReleaseDeadline {
    /// Begins with the first release.
    #[must_use]
    pub fn after(patience: Duration) -> ReleaseDeadline {
        ReleaseDeadline { patience, until: Rc::default() }
    }

    fn until(&self) -> Instant {
        let now = Instant::now();
        let later = |time| now.checked_add(time).unwrap_or(now);
        let until = self.until.get().unwrap_or_else(|| later(self.patience));
        self.until.set(Some(until));
        until.max(later(AT_LEAST))
    }
}

/// A resource of a sandbox that may exist.
#[derive(Debug)]
pub struct OwnedResource {
    planned: PlannedResource,
    owner: ResourceOwner,
    deadline: ReleaseDeadline,
    /// The directory, held open.
    held: Option<OwnedFd>,
}

impl OwnedResource {
    /// A resource that was made, or may have been. All resources of a sandbox share the deadline.
    #[must_use]
    pub fn new(planned: PlannedResource, owner: ResourceOwner, deadline: &ReleaseDeadline) -> OwnedResource {
        OwnedResource { planned, owner, deadline: deadline.clone(), held: None }
    }

    /// Holds a directory open, so that a command cannot save it from its removal by a rename. A directory in a mount that is
    /// released before it must not be held.
    pub fn hold(&mut self) {
        if let PlannedResource::Directory(directory) = &self.planned {
            self.held = directory.hold(&self.owner);
        }
    }
}

impl Resource for OwnedResource {
    fn describe(&self) -> String {
        self.planned.describe()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        #[cfg(debug_assertions)]
        if penfold_sys::crash::is_left_out("release") {
            return Ok(());
        }
        let until = self.deadline.until();
        match &self.planned {
            PlannedResource::Directory(directory) => {
                directory.release_held(self.held.as_ref().map(AsFd::as_fd), &self.owner, until)?;
            }
            planned => planned.release(&self.owner, until)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_share_one_deadline_and_each_gets_a_little() {
        let deadline = ReleaseDeadline::after(Duration::from_secs(10));
        let first = deadline.until();
        assert_eq!(deadline.clone().until(), first);
        let over = ReleaseDeadline::after(Duration::ZERO);
        assert!(over.until() > Instant::now() && over.until() > Instant::now());
    }
}
