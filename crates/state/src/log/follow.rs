//! Waits for more output in a log.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::inotify::WatchFlags;

use super::LogError;
use super::reader::LogReader;
use crate::change_watch::{ChangeWatch, WakeReason, await_change};

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
            let peer = peer.map(|peer| (peer, PollFlags::empty()));
            pause = match await_change(self.watch.as_ref(), peer, pause).map_err(LogError::io("wait for"))? {
                WakeReason::Other => return Ok(LogWaitEnd::HungUp),
                WakeReason::Changed => FIRST,
                WakeReason::Late => self.longer(pause),
            };
        }
    }

    /// Begins a look of a reader that serves several followers: discards the news of earlier changes. What is read from now on,
    /// and what is learned of the writer, is not older.
    pub fn begin_look(&mut self) {
        match &self.watch {
            Some(watch) => watch.clear(),
            None => self.watch = watch(self.file.as_fd()),
        }
    }

    /// Waits for a change since [`LogReader::begin_look`], until `wake` is readable, and no longer than `longest`. `pause` is the time
    /// until the next look for which nothing gives a sign: `None` at first.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn await_change(
        &self,
        wake: BorrowedFd<'_>,
        longest: Duration,
        pause: &mut Option<Duration>,
    ) -> Result<(), LogError> {
        let usual = pause.unwrap_or(FIRST);
        let reason = await_change(self.watch.as_ref(), Some((wake, PollFlags::IN)), usual.min(longest));
        *pause = match reason.map_err(LogError::io("wait for"))? {
            WakeReason::Changed => Some(FIRST),
            WakeReason::Other => Some(usual),
            WakeReason::Late => Some(self.longer(usual)),
        };
        Ok(())
    }

    /// A data write is followed by the mark, and closing the file by the release of the lock: after a change, look again soon, and
    /// then less and less often.
    fn longer(&self, pause: Duration) -> Duration {
        (pause * 2).min(if self.watch.is_some() { LAST_WITH_WATCH } else { LAST })
    }
}
