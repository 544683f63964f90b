//! Waiting for more.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;

use super::LogError;
use super::reader::Reader;
use crate::change_watch::ChangeWatch;

/// How often a reader looks without being told that something was written.
const FIRST: Duration = Duration::from_millis(2);
const LAST: Duration = Duration::from_millis(50);
/// How often one that is told asks whether the writer is gone: its death says so too, a moment before it shows.
const LAST_WITH_WATCH: Duration = Duration::from_millis(500);

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// There is more to read.
    More,
    /// There is nothing more and will not be.
    Ended,
    /// Whoever what is read was meant for has gone.
    HungUp,
}

enum Woken {
    Changed,
    HungUp,
    Late,
}

/// Watches an open file. None where /proc is not mounted or the user has too many watches.
fn watch(file: BorrowedFd<'_>) -> Option<ChangeWatch> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    ChangeWatch::on(Path::new(&path), WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE)
}

impl Reader {
    /// Waits until there is more, or nothing more will come: `ended` says that nobody writes any more. It is asked
    /// at least twice a second. If `peer` is given, the far side of it is watched as well.
    ///
    /// # Errors
    /// When the file cannot be read, or those of poll(2).
    pub fn wait(
        &mut self,
        mut ended: impl FnMut() -> bool,
        peer: Option<BorrowedFd<'_>>,
    ) -> Result<Waited, LogError> {
        if self.watch.is_none() {
            self.watch = watch(self.file.as_fd());
        }
        let mut pause = FIRST;
        loop {
            if let Some(watch) = &self.watch {
                watch.clear();
            }
            // Asked before the look: what was written before the end is seen.
            let over = ended();
            let mark = self.file.mark()?;
            if mark.end > self.position() {
                return Ok(Waited::More);
            }
            self.mark = mark;
            if over {
                return Ok(Waited::Ended);
            }
            pause = match self.pause(pause, peer)? {
                Woken::HungUp => return Ok(Waited::HungUp),
                // The mark follows what it marks, and the free lock the closed file.
                Woken::Changed => FIRST,
                Woken::Late if self.watch.is_some() => (pause * 2).min(LAST_WITH_WATCH),
                Woken::Late => (pause * 2).min(LAST),
            };
        }
    }

    fn pause(&self, pause: Duration, peer: Option<BorrowedFd<'_>>) -> Result<Woken, LogError> {
        let mut fds = Vec::with_capacity(2);
        // Nothing is asked of it: an error and a hangup are told all the same.
        fds.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::empty())));
        fds.extend(self.watch.iter().map(|watch| PollFd::new(watch, PollFlags::IN)));
        let timeout = Timespec::try_from(pause).map_err(|_| LogError::io("wait for")(Errno::INVAL))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LogError::io("wait for")(errno)),
        }
        let woke = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok(match peer {
            Some(_) if woke(fds.first()) => Woken::HungUp,
            _ if self.watch.is_some() && woke(fds.last()) => Woken::Changed,
            _ => Woken::Late,
        })
    }
}
