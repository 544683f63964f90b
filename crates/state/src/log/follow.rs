//! Waiting for more.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::LogError;
use super::reader::Reader;

/// How often a reader looks without being told that something was written.
const FIRST: Duration = Duration::from_millis(2);
const LAST: Duration = Duration::from_millis(50);
/// How often one that is told asks whether the writer is gone: its death says so too, a moment before it shows.
const LAST_WITH_BELL: Duration = Duration::from_millis(500);

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
    Rung,
    HungUp,
    Late,
}

/// Tells that somebody wrote to a file, or closed it.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    /// None where /proc is not mounted or the user has too many of them.
    fn on(file: BorrowedFd<'_>) -> Option<Bell> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify::add_watch(&inotify, path, WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE).ok()?;
        Some(Bell(inotify))
    }

    /// Forgets what it has told.
    fn clear(&self) {
        let mut events = [0_u8; 1024];
        while matches!(rustix::io::read(&self.0, &mut events), Ok(1..) | Err(Errno::INTR)) {}
    }
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
        if self.bell.is_none() {
            self.bell = Bell::on(self.file.as_fd());
        }
        let mut pause = FIRST;
        loop {
            if let Some(bell) = &self.bell {
                bell.clear();
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
                Woken::Rung => FIRST,
                Woken::Late if self.bell.is_some() => (pause * 2).min(LAST_WITH_BELL),
                Woken::Late => (pause * 2).min(LAST),
            };
        }
    }

    fn pause(&self, pause: Duration, peer: Option<BorrowedFd<'_>>) -> Result<Woken, LogError> {
        let mut fds = Vec::with_capacity(2);
        // Nothing is asked of it: an error and a hangup are told all the same.
        fds.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::empty())));
        fds.extend(self.bell.iter().map(|bell| PollFd::new(&bell.0, PollFlags::IN)));
        let timeout = Timespec::try_from(pause).map_err(|_| LogError::io("wait for")(Errno::INVAL))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LogError::io("wait for")(errno)),
        }
        let woke = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok(match peer {
            Some(_) if woke(fds.first()) => Woken::HungUp,
            _ if self.bell.is_some() && woke(fds.last()) => Woken::Rung,
            _ => Woken::Late,
        })
    }
}
