//! Waits for more output in a log.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;

use super::LogError;
use super::reader::LogReader;
use crate::change_watch::ChangeWatch;

/// The interval at which a reader without a watch looks for output, from the first to the longest.
const FIRST: Duration = Duration::from_millis(2);
const LAST: Duration = Duration::from_millis(50);
/// The interval at which a reader with a watch checks whether the writer lives. The watch also reports the writer's
/// death, a moment before its lock is free.
const LAST_WITH_WATCH: Duration = Duration::from_millis(500);

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWaitEnd {
    /// There is more to read.
    More,
    /// There is nothing more to read and no writer.
    Ended,
    /// The reader's peer has closed its end.
    HungUp,
}

enum WakeReason {
    Changed,
    HungUp,
    Late,
}

/// Watches an open file; `None` if /proc is not mounted or the user has too many watches.
fn watch(file: BorrowedFd<'_>) -> Option<ChangeWatch> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    ChangeWatch::on(Path::new(&path), WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE)
}

impl LogReader {
    /// Waits until there is more to read, or no more will come.
    ///
    /// `ended` returns whether the writer is gone; it is called at least twice a second. With `peer`, the call also
    /// returns when the other end of `peer` closes.
    ///
    /// # Errors
    /// When the file cannot be read, or those of poll(2).
    pub fn wait(
        &mut self,
        mut ended: impl FnMut() -> bool,
        peer: Option<BorrowedFd<'_>>,
    ) -> Result<LogWaitEnd, LogError> {
        if self.watch.is_none() {
            self.watch = watch(self.file.as_fd());
        }
        let mut pause = FIRST;
        loop {
            if let Some(watch) = &self.watch {
                watch.clear();
            }
            // Call `ended` before reading the mark, so that output written before the end is not missed.
            let over = ended();
            let mark = self.file.mark()?;
            if mark.end > self.position() {
                return Ok(LogWaitEnd::More);
            }
            self.mark = mark;
            if over {
                return Ok(LogWaitEnd::Ended);
            }
            pause = match self.pause(pause, peer)? {
                WakeReason::HungUp => return Ok(LogWaitEnd::HungUp),
                // A data write is followed by the mark, and closing the file by the release of the lock: look again
                // soon.
                WakeReason::Changed => FIRST,
                WakeReason::Late if self.watch.is_some() => (pause * 2).min(LAST_WITH_WATCH),
                WakeReason::Late => (pause * 2).min(LAST),
            };
        }
    }

    fn pause(&self, pause: Duration, peer: Option<BorrowedFd<'_>>) -> Result<WakeReason, LogError> {
        let mut fds = Vec::with_capacity(2);
        // poll(2) reports an error and a hangup even without requested events.
        fds.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::empty())));
        fds.extend(self.watch.iter().map(|watch| PollFd::new(watch, PollFlags::IN)));
        let timeout = Timespec::try_from(pause).map_err(|_| LogError::io("wait for")(Errno::INVAL))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LogError::io("wait for")(errno)),
        }
        let woke = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok(match peer {
            Some(_) if woke(fds.first()) => WakeReason::HungUp,
            _ if self.watch.is_some() && woke(fds.last()) => WakeReason::Changed,
            _ => WakeReason::Late,
        })
    }
}
