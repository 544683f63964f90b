//! The files of one record: what was meant to be, what is, how it ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::evidence::LockState;
use crate::intent::{INTENT, Intent};
use crate::json::{self, REPORT, STATE};
use crate::outcome::Report;
use crate::state::{Exited, State};

const EXIT: &str = "exit.json";

/// The files of one record, to be read by anybody and written by who looks after the sandbox.
///
/// A clone is another handle to the same directory, and to its lock if this one holds it.
#[derive(Debug, Clone)]
pub struct Files {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Files {
    /// The id, as shown.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether a process holds the lock: the sandbox has a supervisor.
    pub fn lock(&self) -> LockState {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let probe = match rustix::fs::openat(&self.dir, c".", flags, Mode::empty()) {
            Ok(probe) => probe,
            Err(errno) => return LockState::Unknown(errno),
        };
        // Shared: two that look at once do not take each other for a supervisor.
        match rustix::fs::flock(&probe, FlockOperation::NonBlockingLockShared) {
            Ok(()) => LockState::Free,
            Err(Errno::WOULDBLOCK) => LockState::Held,
            Err(errno) => LockState::Unknown(errno),
        }
    }

    /// Whether it was seen that nothing is left. A report beside a cgroup that exists is none of ours.
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

    /// Reads what was meant to be.
    ///
    /// # Errors
    /// When it is missing, cut short, or of a newer version.
    pub fn intent(&self) -> io::Result<Intent> {
        json::read(self.dir(), INTENT)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Reads what the supervisor says; none when it never did.
    ///
    /// # Errors
    /// When it is damaged, another user's, a link, or of a newer version.
    pub fn state(&self) -> io::Result<Option<State>> {
        json::read(self.dir(), STATE)
    }

    /// Reads how the command ended; none when it has not, or that is not known.
    ///
    /// # Errors
    /// When it is damaged, another user's, a link, or of a newer version.
    pub fn exited(&self) -> io::Result<Option<Exited>> {
        json::read(self.dir(), EXIT)
    }

    /// Reads the report of the end; none when there was none yet.
    ///
    /// # Errors
    /// When it is damaged, another user's, a link, or of a newer version.
    pub fn report(&self) -> io::Result<Option<Report>> {
        json::read(self.dir(), REPORT)
    }

    /// Replaces what the supervisor says.
    ///
    /// # Errors
    /// The old content stays then.
    pub fn write_state(&self, state: &State) -> io::Result<()> {
        json::replace(self.dir(), STATE, state)
    }

    /// Writes how the command ended, unless that is written already. True if it was not.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_exited(&self, exited: &Exited) -> io::Result<bool> {
        json::create_once(self.dir(), EXIT, exited)
    }

    /// Writes down the end: how the command ended, unless that is written already, and last the report, by which the
    /// sandbox has ended. On a full disk what the supervisor said gives its place.
    ///
    /// # Errors
    /// When there is no room even so; the sandbox then counts as lost.
    pub fn write_end(&self, exited: &Exited, report: &Report) -> io::Result<()> {
        let write = || {
            self.write_exited(exited)?;
            let first = self.exited().ok().flatten().unwrap_or(*exited);
            self.write_report(&Report { exit: first.exit, cause: first.cause, ..report.clone() })
        };
        write().or_else(|_| {
            let _ = rustix::fs::unlinkat(&self.dir, STATE, AtFlags::empty());
            write()
        })
    }

    /// Replaces what somebody else has written of how the command ended.
    ///
    /// # Errors
    /// The old content stays then.
    pub fn replace_exited(&self, exited: &Exited) -> io::Result<()> {
        json::replace(self.dir(), EXIT, exited)
    }

    /// Writes the report: from then on the sandbox counts as ended.
    ///
    /// # Errors
    /// The old content stays then.
    fn write_report(&self, report: &Report) -> io::Result<()> {
        json::replace(self.dir(), REPORT, report)
    }
}
