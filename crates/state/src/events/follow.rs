//! Waits for more events.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::reader::EventReader;
use super::root_watch::RootWatch;
use crate::change_watch::{WakeReason, await_change};
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
        let peer = peer.map(|peer| (peer, PollFlags::empty()));
        Ok(match self.await_news(peer, WITH_WATCH)? {
            WakeReason::Other => EventWaitEnd::HungUp,
            WakeReason::Changed | WakeReason::Late => EventWaitEnd::More,
        })
    }

    /// Waits until there may be more to read at the end, until `wake` is readable, and no longer than `longest`.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn await_change(&mut self, wake: BorrowedFd<'_>, longest: Duration) -> Result<(), StateError> {
        self.await_news(Some((wake, PollFlags::IN)), longest).map(drop)
    }

    fn await_news(
        &mut self,
        other: Option<(BorrowedFd<'_>, PollFlags)>,
        longest: Duration,
    ) -> Result<WakeReason, StateError> {
        self.watch = self.watch.take().filter(|watch| watch.is_on(&self.root));
        if self.watch.is_none() {
            self.watch = RootWatch::on(&self.root);
            if self.watch.is_some() {
                // The new watch did not report earlier writes.
                return Ok(WakeReason::Changed);
            }
        }
        let usual = if self.watch.is_some() { WITH_WATCH } else { USUAL };
        let watch = self.watch.as_ref().map(|root| &root.watch);
        let reason = await_change(watch, other, usual.min(longest)).map_err(|errno| {
            let path = self.root.clone();
            StateError::Io { act: "wait for", path, source: errno.into() }
        })?;
        if let Some(watch) = watch.filter(|_| reason == WakeReason::Changed) {
            watch.clear();
        }
        Ok(reason)
    }
}
