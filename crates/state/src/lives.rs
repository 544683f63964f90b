//! The lives of a sandbox in its record. All lives have one id and one record, and the lock of the record passes from life to
//! life. What tells of a former life is in `lives/<number>/`.
//!
//! # Invariants
//! - The files of a life are in `lives/<number>/` before the first of them is replaced in the record.
//! - The report of the former life is the last file that goes. Until then the record is that of an ended sandbox: a process that
//!   is killed on the way leaves the end of the former life, and nothing that runs.
//! - The report says which life has ended. While there is one, the intent may be that of a life that never began.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::clear::{clear_directory, list_entries};
use crate::files::{ASKED, COUNTED, EXIT, Files, READY};
use crate::intent::{INTENT, Intent};
use crate::json::{self, REPORT, STATE};
use crate::launch::has_failed_by_itself;
use crate::life::Life;
use crate::outcome::Report;
use crate::record::{LEAF, Record, open_or_make, open_private};

/// The directory of the former lives in a record.
const LIVES: &str = "lives";
/// The sockets, states and command logs of sessions, which belong to one life.
const SESSIONS: &str = "sessions";
/// The control socket, which supervisors that were killed have left.
const SOCKET: &str = "control.sock";
/// What tells of a life, in the order in which it is kept: the report last.
const KEPT: [&str; 4] = [INTENT, EXIT, READY, REPORT];
/// The number of former lives whose reports are kept, so that a command that always fails fills no disk.
pub const KEPT_LIVES: u32 = 100;
/// The number of former lives whose sessions are kept.
const KEPT_SESSIONS: u32 = 2;

/// How a sandbox whose command has ended goes on without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextLife {
    /// It waits for its next start.
    Awaited,
    /// Its next life is about to begin.
    Begins,
}

/// What `--restart` means after the end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Nothing: the command has not failed by itself, or there is no such flag.
    None,
    /// The limit of restarts in a row is reached.
    Limit(u32),
    /// The next life begins: the restart has this number in its row.
    Next(u32),
}

impl Files {
    /// Returns the number of the life that the record is about, from 1: the life that runs, or the last one that has ended.
    #[must_use]
    pub fn life(&self) -> u32 {
        let intent = self.intent().ok();
        let life = intent.as_ref().and_then(Intent::life);
        match self.report() {
            Ok(Some(report)) => report.life.unwrap_or_else(|| unnumbered(life)),
            _ => life.map_or(1, Life::number),
        }
    }

    /// Reads the report of a life; `None` if that life has not ended, never began, or is not kept.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn report_of(&self, life: u32) -> io::Result<Option<Report>> {
        if life == self.life() {
            return self.report();
        }
        self.former(life)?.map_or(Ok(None), |dir| json::read_json(dir.as_fd(), REPORT))
    }

    /// Returns the numbers of the former lives that are kept, the first one first.
    #[must_use]
    pub fn former_lives(&self) -> Vec<u32> {
        let Ok(dir) = open_private(self.dir.as_fd(), Path::new(LIVES)) else { return Vec::new() };
        let names = list_entries(dir.as_fd()).unwrap_or_default();
        let numbers = names.into_iter().filter_map(|(name, _)| name.to_str().ok()?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// Tells whether a restart on request began this life; `None` if the life never began, or is not kept.
    #[must_use]
    pub fn is_requested(&self, life: u32) -> Option<bool> {
        let own = self.intent().ok().filter(|intent| intent.life().map_or(1, Life::number) == life);
        let former = || json::read_json(self.former(life).ok()??.as_fd(), INTENT).ok()?;
        let intent: Intent = own.or_else(former)?;
        Some(intent.life().is_none_or(|life| life.failures == 0))
    }

    fn former(&self, life: u32) -> io::Result<Option<OwnedFd>> {
        match open_private(self.dir.as_fd(), &Path::new(LIVES).join(life.to_string())) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Decides whether an ended sandbox is restarted by its policy.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn restart(&self) -> io::Result<Restart> {
        let (Some(report), intent) = (self.report()?, self.intent()?) else { return Ok(Restart::None) };
        let Some(detached) = &intent.detached else { return Ok(Restart::None) };
        let Some(policy) = detached.restart else { return Ok(Restart::None) };
        let failures = detached.life.as_ref().map_or(0, |life| life.failures);
        // Its caller was told that the command failed.
        let is_refused = detached.ready.is_some() && failures == 0 && self.ready_at()?.is_none();
        if !has_failed_by_itself(&report) || is_refused {
            return Ok(Restart::None);
        }
        let next = policy.next_in_row(failures, Duration::from_millis(report.duration_ms));
        Ok(next.map_or_else(Restart::Limit, Restart::Next))
    }

    /// Tells how an ended sandbox goes on; `None` for one that has not ended, or has ended for good.
    #[must_use]
    pub fn next_life(&self) -> Option<NextLife> {
        if !self.has_ended() || !self.lock().may_be_held() {
            return None;
        }
        // The file gets its other name before the next life begins: look in this order.
        if self.is_launch_free() && matches!(self.restart(), Ok(Restart::Next(_))) {
            return Some(NextLife::Awaited);
        }
        self.is_launch_taken().then_some(NextLife::Begins)
    }

    /// Tells whether a sandbox has ended, and no next life begins unless a user requests one now.
    #[must_use]
    pub fn has_ended_for_good(&self) -> bool {
        // The second look: a next life may have begun in between.
        self.has_ended() && self.next_life().is_none() && !self.is_being_restarted() && self.has_ended()
    }

    /// Tells whether no more output will come: there is no supervisor, and no next life.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.has_ended_for_good() || (self.lock().is_free() && !self.is_being_restarted())
    }
}

/// Returns the number of the life that a report without a number is about.
fn unnumbered(life: Option<&Life>) -> u32 {
    // An older penfold numbered the lives in the intent only, each in a record of its own.
    life.filter(|life| !life.restart_of.is_empty()).map_or(1, Life::number)
}

impl Record {
    /// Turns the record of an ended sandbox into that of its next life, and keeps what tells of the former one.
    ///
    /// # Errors
    /// When the files cannot be written; [`io::ErrorKind::NotFound`] when another command has ended the sandbox for good, or has
    /// restarted it. The record is then that of the former life.
    pub fn begin_life(&self, intent: &Intent, is_requested: bool) -> io::Result<()> {
        let files = self.files();
        let former = files.life();
        files.take_launch(is_requested)?;
        let begun = self.keep_life(former).and_then(|()| self.replace_intent(intent));
        if let Err(error) = begun {
            files.return_launch();
            return Err(error);
        }
        penfold_sys::crash_point!("life-replaced");
        for name in [SOCKET, STATE, READY, COUNTED, ASKED, EXIT] {
            gone(rustix::fs::unlinkat(&files.dir, name, AtFlags::empty()))?;
        }
        penfold_sys::crash_point!("life-emptied");
        rustix::fs::unlinkat(&files.dir, REPORT, AtFlags::empty())?;
        files.return_launch();
        // Watchers of the records look at this one again.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let _ = rustix::fs::futimens(&files.dir, &Timestamps { last_access: now, last_modification: now });
        self.forget_lives(former);
        Ok(())
    }

    fn keep_life(&self, former: u32) -> io::Result<()> {
        let files = self.files();
        if let Some(report) = files.report()?.filter(|report| report.life.unwrap_or(1) != former) {
            json::replace_json(files.dir(), REPORT, &Report { life: Some(former), ..report })?;
        }
        let lives = open_or_make(files.dir(), Path::new(LIVES)).map_err(io::Error::other)?;
        let kept = open_or_make(lives.as_fd(), Path::new(&former.to_string())).map_err(io::Error::other)?;
        for name in KEPT {
            match rustix::fs::linkat(&files.dir, name, &kept, name, AtFlags::empty()) {
                // A start that failed, or was killed, has kept it already.
                Ok(()) | Err(Errno::NOENT | Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let _ = rustix::fs::renameat(&files.dir, SESSIONS, &kept, SESSIONS);
        penfold_sys::crash_point!("life-kept");
        Ok(())
    }

    fn replace_intent(&self, intent: &Intent) -> io::Result<()> {
        let files = self.files();
        json::replace_json(files.dir(), INTENT, intent)?;
        let fresh = format!("{LEAF}.new");
        let _ = rustix::fs::unlinkat(&files.dir, fresh.as_str(), AtFlags::empty());
        let leaf = intent.leaf.as_deref().unwrap_or(Path::new("none"));
        rustix::fs::symlinkat(leaf, &files.dir, fresh.as_str())?;
        Ok(rustix::fs::renameat(&files.dir, fresh.as_str(), &files.dir, LEAF)?)
    }

    /// Makes this the record of the former life again: the command of the next one has not run.
    pub fn return_to_former(&self) {
        let files = self.files();
        let Ok(intent) = files.intent() else { return };
        let Some(former) = intent.life().map(|life| life.restarts) else { return };
        let Ok(Some(kept)) = files.former(former) else { return };
        // The report first: from then on this is the record of an ended sandbox again.
        for name in KEPT.into_iter().rev() {
            let _ = rustix::fs::renameat(&kept, name, &files.dir, name);
        }
        let _ = rustix::fs::unlinkat(&files.dir, STATE, AtFlags::empty());
        // Only a request starts it again.
        let _ = files.hold_launch();
        let _ = rustix::fs::renameat(&kept, SESSIONS, &files.dir, SESSIONS);
        if let Ok(lives) = open_private(files.dir(), Path::new(LIVES)) {
            let _ = rustix::fs::unlinkat(&lives, former.to_string(), AtFlags::REMOVEDIR);
        }
    }

    /// Removes what is kept of lives before the last ones. What cannot be removed goes with the record.
    fn forget_lives(&self, former: u32) {
        let files = self.files();
        let Ok(lives) = open_private(files.dir(), Path::new(LIVES)) else { return };
        for life in files.former_lives() {
            let name = life.to_string();
            let Ok(Some(kept)) = files.former(life) else { continue };
            if life.saturating_add(KEPT_LIVES) <= former {
                let _ = clear_directory(kept.as_fd(), &[]);
                let _ = rustix::fs::unlinkat(&lives, name, AtFlags::REMOVEDIR);
            } else if life.saturating_add(KEPT_SESSIONS) <= former
                && let Ok(sessions) = open_private(kept.as_fd(), Path::new(SESSIONS))
            {
                let _ = clear_directory(sessions.as_fd(), &[]);
                let _ = rustix::fs::unlinkat(&kept, SESSIONS, AtFlags::REMOVEDIR);
            }
        }
    }
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
