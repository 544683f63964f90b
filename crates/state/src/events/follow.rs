//! Waits for more events.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::reader::EventReader;
use super::root_watch::RootWatch;
use crate::record::StateError;

/// The interval at which a reader without a watch looks for events.
const USUAL: Duration = Duration::from_millis(50);
/// The interval at which a reader with a watch looks nevertheless: another directory may have become the root.
const WITH_WATCH: Duration = Duration::from_millis(500);

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventWaitEnd {
    /// There may be more to read.
    More,
    /// The reader's peer has closed its end.
    HungUp,
}

impl EventReader {
    /// Waits until there may be more to read. With `peer`, the call also returns when the other end of `peer` closes.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&mut self, peer: Option<BorrowedFd<'_>>) -> Result<EventWaitEnd, StateError> {
        self.watch = self.watch.take().filter(|watch| watch.is_on(&self.root));
        if self.watch.is_none() {
            self.watch = RootWatch::on(&self.root);
            if self.watch.is_some() {
                // The new watch did not report earlier writes.
                return Ok(EventWaitEnd::More);
            }
        }
        let mut fds = Vec::with_capacity(2);
        // poll(2) reports an error and a hangup even without requested events.
        fds.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::empty())));
        fds.extend(self.watch.iter().map(|root| PollFd::new(&root.watch, PollFlags::IN)));
        let pause = if self.watch.is_some() { WITH_WATCH } else { USUAL };
        let waited = Timespec::try_from(pause).map_err(|_| Errno::INVAL);
        match waited.and_then(|timeout| poll(&mut fds, Some(&timeout))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                let path = self.root.clone();
                return Err(StateError::Io { act: "wait for", path, source: errno.into() });
            }
        }
        if peer.is_some() && fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
            return Ok(EventWaitEnd::HungUp);
        }
        if let Some(root) = &self.watch {
            root.watch.clear();
        }
        Ok(EventWaitEnd::More)
    }
}
