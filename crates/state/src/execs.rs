//! The directories of recorded execs in a sandbox's record: `execs/<number>/`.
//!
//! An exec supervisor writes them, and the sandbox's supervisor writes the end of an exec whose supervisor was killed.
//! Any member may write there too. Nothing in them is therefore proof, and no process is signalled by a number from
//! them.

mod input;

use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penfold_cgroup::Limits;
use penfold_process::ProcessId;
use penfold_teardown::{Cause, Findings, Level, Survivor};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clear::{clear_directory, list_entries};
use crate::files::Files;
use crate::json::{self, REPORT, SCHEMA};
use crate::outcome::{ExitStatus, Report};
use crate::record::{StateError, open_or_make, open_private};
use crate::state::CommandExit;
use crate::time::now_ms;

pub use input::ExecInput;

const EXECS: &str = "execs";
const EXEC: &str = "exec.json";
const REMAINING: &str = "remaining.json";
/// The largest number of an exec.
pub const MAX_NUMBER: u32 = 1 << 30;
/// The bit in the mode of an exec's directory: the end could not be written.
const UNWRITTEN: Mode = Mode::SVTX;
/// The most survivors in `remaining.json`.
const MAX_SURVIVORS: usize = 256;

/// `exec.json`: what a recorded exec runs. For people and programs that look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedExec {
    /// The version of this format.
    pub schema: u32,
    /// The number of the exec in its sandbox, from 1.
    pub number: u32,
    /// The beginning of the command.
    pub command: Vec<String>,
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The start time, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The exec supervisor.
    pub supervisor: ProcessId,
    /// The pid of the command, once it runs.
    pub leader: Option<i32>,
    /// The pid of the command in the jail of the sandbox, once it runs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_inside: Option<i32>,
    /// The size limit of the log, in bytes.
    pub log_limit: u64,
    /// Whether the command has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Whether what the command leaves goes on after its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lingers: bool,
}

/// `remaining.json`: the members of an exec that still exist although the patience is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingMembers {
    /// The version of this format.
    pub schema: u32,
    /// The first survivors.
    pub survivors: Vec<Survivor>,
    /// The time of the look, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The directory of one recorded exec, opened without following a link.
#[derive(Debug, Clone)]
pub struct ExecFiles {
    number: u32,
    files: Files,
}

impl ExecFiles {
    /// Creates the directory of a new exec.
    ///
    /// # Errors
    /// `AlreadyExists` when the number is taken. Otherwise when the directory cannot be made, or `execs` is a link or
    /// belongs to another user.
    pub fn create(record: &Files, number: u32) -> io::Result<ExecFiles> {
        let execs = open_or_make(record.dir(), Path::new(EXECS)).map_err(io_error)?;
        let name = number.to_string();
        rustix::fs::mkdirat(&execs, &name, Mode::RWXU)?;
        ExecFiles::of(record, number, open_private(execs.as_fd(), Path::new(&name)))
    }

    /// Opens the directory of an exec; `None` when there is none.
    ///
    /// # Errors
    /// When a directory is a link, belongs to another user, or cannot be opened.
    pub fn open(record: &Files, number: u32) -> io::Result<Option<ExecFiles>> {
        let opened = open_private(record.dir(), Path::new(EXECS))
            .and_then(|execs| open_private(execs.as_fd(), Path::new(&number.to_string())));
        match ExecFiles::of(record, number, opened) {
            Ok(files) => Ok(Some(files)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(record: &Files, number: u32, opened: Result<OwnedFd, StateError>) -> io::Result<ExecFiles> {
        let path = path_of(record, number);
        let files = Files { dir: Arc::new(opened.map_err(io_error)?), name: record.name.clone(), path };
        Ok(ExecFiles { number, files })
    }

    /// Returns the numbers of all directories, sorted. Other entries are ignored.
    ///
    /// # Errors
    /// When `execs` is a link, belongs to another user, or cannot be read.
    pub fn numbers(record: &Files) -> io::Result<Vec<u32>> {
        let execs = match open_private(record.dir(), Path::new(EXECS)).map_err(io_error) {
            Ok(execs) => execs,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names = list_entries(execs.as_fd())?;
        let number = |name: &std::ffi::CStr| {
            let text = name.to_str().ok()?;
            text.parse::<u32>().ok().filter(|number| number.to_string() == text && *number <= MAX_NUMBER)
        };
        let directories = names.iter().filter(|(_, kind)| *kind == rustix::fs::FileType::Directory);
        let mut numbers: Vec<u32> = directories.filter_map(|(name, _)| number(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Sorts numbers by the last change of their directories, the oldest first: an exec that ended was changed then.
    ///
    /// # Errors
    /// When `execs` is a link, belongs to another user, or cannot be read.
    pub fn sort_by_change(record: &Files, numbers: &mut [u32]) -> io::Result<()> {
        let execs = open_private(record.dir(), Path::new(EXECS)).map_err(io_error)?;
        numbers.sort_by_cached_key(|number| {
            let stat = rustix::fs::statat(&execs, number.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok();
            (stat.map(|stat| (stat.st_mtime, stat.st_mtime_nsec)), *number)
        });
        Ok(())
    }

    /// Tells whether the number is taken by an entry of any kind.
    pub fn is_taken(record: &Files, number: u32) -> bool {
        let path = Path::new(EXECS).join(number.to_string());
        rustix::fs::statat(record.dir(), path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Returns the number of the exec.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads what the exec runs; `None` before it was written.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn exec(&self) -> io::Result<Option<RecordedExec>> {
        json::read_json(self.dir(), EXEC)
    }

    /// Writes what the exec runs.
    ///
    /// # Errors
    /// The old content stays after an error.
    pub fn write_exec(&self, exec: &RecordedExec) -> io::Result<()> {
        json::replace_json(self.dir(), EXEC, exec)
    }

    /// Reads the survivors; `None` when there are none.
    ///
    /// # Errors
    /// When the file is damaged, another user's, a link, or of a newer version.
    pub fn remaining(&self) -> io::Result<Option<RemainingMembers>> {
        json::read_json(self.dir(), REMAINING)
    }

    /// Writes the survivors.
    ///
    /// # Errors
    /// The old content stays after an error.
    pub fn write_remaining(&self, survivors: &[Survivor]) -> io::Result<()> {
        let survivors = survivors.get(..MAX_SURVIVORS).unwrap_or(survivors).to_vec();
        json::replace_json(
            self.dir(),
            REMAINING,
            &RemainingMembers { schema: SCHEMA, survivors, at_ms: now_ms() },
        )
    }

    /// Removes the list of survivors, once they are gone.
    pub fn remove_remaining(&self) {
        let _ = rustix::fs::unlinkat(self.dir(), REMAINING, AtFlags::empty());
    }

    /// Tells whether there is a report. A member may have written it.
    pub fn is_reported(&self) -> bool {
        rustix::fs::statat(self.dir(), REPORT, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Marks the exec: its verified end could not be written, and only the sandbox's supervisor knows it.
    ///
    /// The mark is a bit of the directory's mode, which needs no room. A member may set it too: then the supervisor is
    /// asked in vain.
    pub fn mark_unwritten(&self) {
        let _ = rustix::fs::fchmod(self.dir(), Mode::RWXU | UNWRITTEN);
    }

    /// Tells whether the exec has the mark of [`ExecFiles::mark_unwritten`].
    pub fn is_unwritten(&self) -> bool {
        rustix::fs::fstat(self.dir()).is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).contains(UNWRITTEN))
    }

    /// Makes the report of a verified end that a process other than the exec supervisor has seen.
    pub fn report_of(&self, exit: Option<ExitStatus>, cause: Cause, level: Level, at_ms: u64) -> Report {
        let exec = self.exec().ok().flatten();
        let started_at_ms = exec.as_ref().map_or(at_ms, |exec| exec.started_at_ms);
        let (command, labels) = exec.map(|exec| (exec.command, exec.labels)).unwrap_or_default();
        Report {
            schema: SCHEMA,
            id: self.name().to_owned(),
            name: None,
            labels,
            command,
            level,
            cause,
            exit,
            limits: Limits::default(),
            failure: None,
            life: None,
            started_at_ms,
            duration_ms: at_ms.saturating_sub(started_at_ms),
            missing: Vec::new(),
            weaker: None,
            running: Vec::new(),
            leaks: Vec::new(),
            objects: Vec::new(),
            engine_clients: Vec::new(),
            omitted: None,
            by: None,
            findings: Findings { verified: true, ..Findings::default() },
        }
    }

    /// Replaces the end by a verified one that a process other than the exec supervisor has seen, at this time.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn replace_end(
        &self,
        exit: Option<ExitStatus>,
        cause: Cause,
        level: Level,
        at_ms: u64,
    ) -> io::Result<()> {
        let exited = CommandExit { schema: SCHEMA, exit, cause, at_ms };
        let report = self.report_of(exit, cause, level, at_ms);
        let known = self.exited().ok().flatten();
        if known.is_none_or(|known| (known.exit, known.cause) != (exit, cause)) {
            self.replace_exited(&exited)?;
        }
        self.write_end(&exited, &report)?;
        self.remove_remaining();
        Ok(())
    }

    /// Keeps the directory from [`ExecFiles::remove_unheld`] as long as the returned descriptor is open; `None` while it is
    /// being removed.
    ///
    /// # Errors
    /// When it cannot be opened or locked.
    pub fn hold(&self) -> io::Result<Option<OwnedFd>> {
        self.lock_dir(FlockOperation::NonBlockingLockShared)
    }

    fn lock_dir(&self, operation: FlockOperation) -> io::Result<Option<OwnedFd>> {
        // A lock belongs to an open file, and that of `self` is shared.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.dir(), ".", flags, Mode::empty())?;
        match rustix::fs::flock(&dir, operation) {
            Ok(()) => Ok(Some(dir)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the directory, unless a process holds it. Returns whether it was removed.
    ///
    /// # Errors
    /// When it cannot be locked, or an entry cannot be removed.
    pub fn remove_unheld(&self, record: &Files) -> io::Result<bool> {
        let Some(_lock) = self.lock_dir(FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        self.remove(record).map(|()| true)
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// When an entry cannot be removed.
    pub fn remove(&self, record: &Files) -> io::Result<()> {
        // The exec counts as ended until nothing else is left.
        clear_directory(self.dir(), &[EXEC, REPORT])?;
        let execs = open_private(record.dir(), Path::new(EXECS)).map_err(io_error)?;
        match rustix::fs::unlinkat(&execs, self.number.to_string(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Deref for ExecFiles {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

/// Writes the end of all recorded execs that have none, after the verified end of their sandbox.
///
/// Files that cannot be written are left out: nothing of the execs exists any more.
pub fn conclude_all(record: &Files, cause: Cause, level: Level) {
    for number in ExecFiles::numbers(record).unwrap_or_default() {
        if let Ok(Some(files)) = ExecFiles::open(record, number)
            && !matches!(files.report(), Ok(Some(_)))
        {
            let exit = files.exited().ok().flatten().and_then(|exited| exited.exit);
            let _ = files.replace_end(exit, cause, level, now_ms());
        }
    }
}

/// Returns the name of an exec's leaf, below the leaf of its sandbox.
pub fn leaf_name(number: u32) -> String {
    format!("exec-{number}")
}

/// Returns the number of the exec whose leaf has this name.
pub fn number_of_leaf(name: &str) -> Option<u32> {
    name.strip_prefix("exec-").and_then(|number| number.parse().ok())
}

fn path_of(record: &Files, number: u32) -> PathBuf {
    record.path().join(EXECS).join(number.to_string())
}

fn io_error(error: StateError) -> io::Error {
    match error {
        StateError::Io { source, .. } => source,
        stranger @ StateError::Stranger { .. } => io::Error::new(io::ErrorKind::PermissionDenied, stranger),
    }
}
