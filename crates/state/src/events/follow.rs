//! Waiting for more.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::reader::Reader;
use crate::record::StateError;

/// How often a reader looks without being told that something was written.
const USUAL: Duration = Duration::from_millis(50);
/// How often one that is told looks nevertheless: the root may be another directory by now.
const WITH_BELL: Duration = Duration::from_millis(500);

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// There may be more to read.
    More,
    /// Whoever what is read was meant for has gone.
    HungUp,
}

/// Tells that something was written in the state root.
#[derive(Debug)]
pub(super) struct Bell {
    inotify: OwnedFd,
    /// Which directory it hangs in.
    place: (u64, u64),
}

impl Bell {
    /// None where there is no root yet, or the user has too many of them.
    fn on(root: &Path) -> Option<Bell> {
        let place = place(root)?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, root, flags).ok()?;
        Some(Bell { inotify, place })
    }

    /// Forgets what it has told.
    fn clear(&self) {
        let mut events = [0_u8; 1024];
        while matches!(rustix::io::read(&self.inotify, &mut events), Ok(1..) | Err(Errno::INTR)) {}
    }
}

fn place(root: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(root).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Reader {
    /// Waits until there may be more to read. If `peer` is given, the far side of it is watched as well.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&mut self, peer: Option<BorrowedFd<'_>>) -> Result<Waited, StateError> {
        self.bell = self.bell.take().filter(|bell| place(&self.root) == Some(bell.place));
        if self.bell.is_none() {
            self.bell = Bell::on(&self.root);
            if self.bell.is_some() {
                // What was written before it hung there was not told.
                return Ok(Waited::More);
            }
        }
        let mut fds = Vec::with_capacity(2);
        // Nothing is asked of it: an error and a hangup are told all the same.
        fds.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::empty())));
        fds.extend(self.bell.iter().map(|bell| PollFd::new(&bell.inotify, PollFlags::IN)));
        let pause = if self.bell.is_some() { WITH_BELL } else { USUAL };
        let waited = Timespec::try_from(pause).map_err(|_| Errno::INVAL);
        match waited.and_then(|timeout| poll(&mut fds, Some(&timeout))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                let path = self.root.clone();
                return Err(StateError::Io { act: "wait for", path, source: errno.into() });
            }
        }
        if peer.is_some() && fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
            return Ok(Waited::HungUp);
        }
        if let Some(bell) = &self.bell {
            bell.clear();
        }
        Ok(Waited::More)
    }
}
