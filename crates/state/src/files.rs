//! The files of one record: the intent, the state, the exit and the report.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::evidence::LockState;
use crate::intent::{INTENT, Intent};
use crate::json::{self, REPORT, SCHEMA, STATE};
use crate::outcome::Report;
use crate::requester::Requester;
use crate::state::{CommandExit, State};
use crate::survivors;

pub(crate) const EXIT: &str = "exit.json";
/// A file of a record whose probe has succeeded.
pub(crate) const READY: &str = "ready.json";
/// A file of a record whose end is in the counters, although something survives.
pub(crate) const COUNTED: &str = "counted";
/// Who ends the sandbox without its supervisor, which has not answered in time.
pub(crate) const ASKED: &str = "asked.json";

/// The bit in the mode of a record whose supervisor has survivors.
const UNKILLABLE: Mode = Mode::SVTX;
/// The bit in the mode of a record whose survivors could not be written. On a directory it means nothing else.
const UNWRITTEN: Mode = Mode::SUID;

/// `asked.json`: an end that goes on without the supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndNote {
    schema: u32,
    /// Who ends the sandbox.
    pub by: Requester,
    /// Whether it is a kill, else a stop.
    pub kills: bool,
}

/// `ready.json`: written once, by the client whose probe has succeeded.
#[derive(Serialize, Deserialize)]
struct ReadyNote {
    schema: u32,
    ready_at_ms: u64,
}

/// The files of one record, which anybody may read and only the sandbox's supervisor writes.
///
/// A clone is another handle to the same directory, and to its lock if this value holds the lock.
#[derive(Debug, Clone)]
pub struct Files {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Files {
    /// Returns the short id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the record.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Tells whether a process holds the lock: then the sandbox has a supervisor.
    pub fn lock(&self) -> LockState {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let probe = match rustix::fs::openat(&self.dir, c".", flags, Mode::empty()) {
            Ok(probe) => probe,
            Err(errno) => return LockState::Unknown(errno),
        };
        // A shared lock: two readers that probe at once do not take each other for a supervisor.
        match rustix::fs::flock(&probe, FlockOperation::NonBlockingLockShared) {
            Ok(()) => LockState::Free,
            Err(Errno::WOULDBLOCK) => LockState::Held,
            Err(errno) => LockState::Unknown(errno),
        }
    }

    /// Tells whether the end of the sandbox was verified. If the leaf still exists, a report is not trusted.
    pub fn has_ended(&self) -> bool {
        let reported = rustix::fs::statat(&self.dir, REPORT, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        reported
            && match self.intent() {
                Ok(Intent { leaf: Some(leaf), .. }) => {
                    rustix::fs::statat(CWD, &leaf, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
                }
                _ => true,
            }
    }

    /// Tells whether the end of the sandbox is in the counters already.
    pub(crate) fn is_counted(&self) -> bool {
        rustix::fs::statat(&self.dir, COUNTED, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Notes that the end of the sandbox is in the counters, if the record is still there.
    pub(crate) fn note_counted(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = rustix::fs::openat(&self.dir, COUNTED, flags, Mode::RUSR | Mode::WUSR);
    }

    /// Notes who ends the members without the supervisor: once that goes on, it tells the cause by this. An end needs no space, so
    /// a note that cannot be written is none.
    pub fn note_asked(&self, by: Requester, kills: bool) {
        let _ = json::replace_json(self.dir.as_fd(), ASKED, &EndNote { schema: SCHEMA, by, kills });
    }

    /// Returns who has ended the members without the supervisor.
    #[must_use]
    pub fn asked(&self) -> Option<EndNote> {
        json::read_json(self.dir.as_fd(), ASKED).ok().flatten()
    }

    /// Marks a record whose supervisor has survivors: a mode needs no room, and says so on a full disk, too.
    pub fn mark_unkillable(&self) {
        self.add_mark(UNKILLABLE);
    }

    /// Marks a record whose survivors could not all be written down.
    pub fn mark_unwritten_survivors(&self) {
        self.add_mark(UNWRITTEN);
    }

    fn add_mark(&self, mark: Mode) {
        let _ = rustix::fs::fchmod(self.dir(), Mode::RWXU | self.marks() | mark);
    }

    /// Removes the marks.
    pub fn unmark_survivors(&self) {
        if !self.marks().is_empty() {
            let _ = rustix::fs::fchmod(self.dir(), Mode::RWXU);
        }
    }

    /// Tells whether the supervisor has survivors, or had some when it was killed.
    pub fn is_unkillable(&self) -> bool {
        self.marks().contains(UNKILLABLE)
    }

    /// Tells whether there are survivors, or were some, that nobody knows by name.
    pub fn has_unwritten_survivors(&self) -> bool {
        let marks = self.marks();
        let is_remembered = || match self.path.ancestors().nth(2) {
            Some(root) => survivors::is_remembered(root, &self.name),
            None => false,
        };
        marks.contains(UNWRITTEN) || (marks.contains(UNKILLABLE) && !is_remembered())
    }

    fn marks(&self) -> Mode {
        // A record that was removed says nothing any more.
        let stat = rustix::fs::fstat(self.dir()).ok().filter(|stat| stat.st_nlink > 0);
        stat.map_or(Mode::empty(), |stat| Mode::from_raw_mode(stat.st_mode) & (UNKILLABLE | UNWRITTEN))
    }

    /// Reads the intent.
    ///
    /// # Errors
    /// When the intent is missing, truncated, or of a newer version.
    pub fn intent(&self) -> io::Result<Intent> {
        json::read_json(self.dir(), INTENT)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Reads the state that the supervisor writes; `None` before its first write.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn state(&self) -> io::Result<Option<State>> {
        json::read_json(self.dir(), STATE)
    }

    /// Reads how the command ended; `None` if it has not ended, or the exit is unknown.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn exited(&self) -> io::Result<Option<CommandExit>> {
        json::read_json(self.dir(), EXIT)
    }

    /// Returns the time at which the probe of the sandbox succeeded, in milliseconds since 1970; `None` before.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn ready_at(&self) -> io::Result<Option<u64>> {
        Ok(json::read_json::<ReadyNote>(self.dir(), READY)?.map(|ready| ready.ready_at_ms))
    }

    /// Notes that the probe of the sandbox has succeeded, at this time in milliseconds since 1970.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_ready(&self, ready_at_ms: u64) -> io::Result<()> {
        json::create_once(self.dir(), READY, &ReadyNote { schema: SCHEMA, ready_at_ms }).map(drop)
    }

    /// Reads the report of the end; `None` before the end.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn report(&self) -> io::Result<Option<Report>> {
        json::read_json(self.dir(), REPORT)
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// The old content stays after an error.
    pub fn write_state(&self, state: &State) -> io::Result<()> {
        json::replace_json(self.dir(), STATE, state)
    }

    /// Writes how the command ended, unless the file exists. True if it was written.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_exited(&self, exited: &CommandExit) -> io::Result<bool> {
        json::create_once(self.dir(), EXIT, exited)
    }

    /// Writes the end: the exit, unless it is already written, and last the report, which marks the sandbox as ended.
    ///
    /// On a full disk the state file is removed to make room.
    ///
    /// # Errors
    /// When there is still no room; the sandbox then counts as lost.
    pub fn write_end(&self, exited: &CommandExit, report: &Report) -> io::Result<()> {
        self.with_room(|| {
            let mut first = self.exited().ok().flatten();
            if first.is_none() {
                self.write_exited(exited)?;
                first = self.exited().ok().flatten();
            }
            let first = first.unwrap_or(*exited);
            self.write_report(&Report { exit: first.exit, cause: first.cause, ..report.clone() })
        })
    }

    /// Writes the report after an exit that is known to be on disk: like [`Files::write_end`], which reads it again.
    ///
    /// # Errors
    /// Those of [`Files::write_end`].
    pub fn write_last(&self, report: &Report) -> io::Result<()> {
        self.with_room(|| self.write_report(report))
    }

    fn with_room(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        write().or_else(|_| {
            let _ = rustix::fs::unlinkat(&self.dir, STATE, AtFlags::empty());
            write()
        })
    }

    /// Replaces the exit that another process has written.
    ///
    /// # Errors
    /// The old content stays after an error.
    pub fn replace_exited(&self, exited: &CommandExit) -> io::Result<()> {
        json::replace_json(self.dir(), EXIT, exited)
    }

    /// Writes the report: from then on the sandbox counts as ended.
    ///
    /// # Errors
    /// The old content stays after an error.
    fn write_report(&self, report: &Report) -> io::Result<()> {
        json::replace_json(self.dir(), REPORT, report)
    }
}
