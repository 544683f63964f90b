//! Processes that sandboxes have spared: a note in the state root for as long as they live, since they keep the marker of a
//! sandbox that is gone.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_teardown::spare::{Earlier, SparedNotes};
use penfold_teardown::{Spared, SparedMark, Sparing};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::id::Id;
use crate::intent::Intent;
use crate::json::{self, SCHEMA};
use crate::spare_plan::SparePlan;

/// The directory below the state root.
const DIRECTORY: &str = "spared";

/// The variable with the state root of a sandbox that spares processes: it leads from a spared process to its note, also for those
/// who look from another state root.
pub const ROOT_VARIABLE: &str = "PENFOLD_SPARED";

/// Returns what a teardown of a sandbox with this plan needs.
#[must_use]
pub fn sparing(plan: &SparePlan, root: &Path, id: &str) -> Sparing {
    let notes = Box::new(SparedFile { root: root.to_owned(), id: id.to_owned(), leader: None });
    Sparing { rules: plan.rules.clone(), home: plan.home.clone(), is_partial: false, notes }
}

/// Returns what a teardown of a sandbox with this intent needs; `None` if the sandbox spares nothing.
#[must_use]
pub fn sparing_of(intent: Option<&Intent>, root: Option<&Path>) -> Option<Sparing> {
    let intent = intent?;
    Some(sparing(intent.spare.as_ref()?, root?, &intent.id.short()))
}

/// The note of one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    schema: u32,
    /// The boot in which the processes run.
    boot: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leader: Option<ProcessId>,
    /// Whether nothing but the spared processes was left of the sandbox.
    is_over: bool,
    spared: Vec<Spared>,
}

/// The file with the note of one sandbox.
#[derive(Debug)]
struct SparedFile {
    root: PathBuf,
    id: String,
    leader: Option<ProcessId>,
}

impl SparedFile {
    fn open(&self) -> io::Result<OwnedFd> {
        let make = |at: BorrowedFd<'_>, path: &Path| match rustix::fs::mkdirat(at, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_private(at, path),
            Err(errno) => Err(errno.into()),
        };
        make(make(rustix::fs::CWD, &self.root)?.as_fd(), Path::new(DIRECTORY))
    }
}

impl SparedNotes for SparedFile {
    fn earlier(&mut self) -> Earlier {
        let Ok(Some(dir)) = directory(&self.root) else { return Earlier::default() };
        let Some(note) = read(&dir, &self.id) else { return Earlier::default() };
        self.leader = note.leader;
        Earlier { leader: note.leader, spared: note.spared }
    }

    fn write(&mut self, spared: &[Spared], is_over: bool) -> io::Result<()> {
        if is_over && spared.is_empty() {
            return match directory(&self.root)? {
                Some(dir) => remove(&dir, &self.id),
                None => Ok(()),
            };
        }
        let boot = penfold_process::boot_id()?;
        let note = Note { schema: SCHEMA, boot, leader: self.leader, is_over, spared: spared.to_vec() };
        json::replace(self.open()?.as_fd(), &self.id, &note)
    }
}

/// Notes the leader of a sandbox that spares processes, before the leader runs. No teardown takes it for a daemon.
///
/// # Errors
/// When the note cannot be written.
pub fn note_leader(root: &Path, id: &str, leader: ProcessId) -> io::Result<()> {
    SparedFile { root: root.to_owned(), id: id.to_owned(), leader: Some(leader) }.write(&[], false)
}

/// Returns the sandboxes below a state root that have spared processes in this boot. A note that cannot be read frees nothing.
#[must_use]
pub fn marks(root: &Path) -> Vec<SparedMark> {
    let Ok(Some(dir)) = directory(root) else { return Vec::new() };
    let names = names(&dir).unwrap_or_default();
    let notes = names.into_iter().filter_map(|name| Some((read(&dir, &name)?, name)));
    notes
        .map(|(note, sandbox)| SparedMark {
            sandbox,
            is_over: note.is_over,
            processes: note.spared.iter().filter_map(Spared::id).collect(),
        })
        .collect()
}

/// Tells whether a sandbox below a state root has noted in this boot what it spares.
pub(crate) fn is_noted(root: &Path, id: &str) -> bool {
    directory(root).ok().flatten().is_some_and(|dir| read(&dir, id).is_some())
}

/// Removes the notes whose processes are gone, unless `is_needed` says that a sandbox has a record, or that a process has its
/// marker. `is_needed` is called only if there are such notes.
///
/// # Errors
/// When the notes, or their processes, cannot be read.
pub fn prune(root: &Path, mut is_needed: impl FnMut(&str) -> io::Result<bool>) -> io::Result<()> {
    let Some(dir) = directory(root)? else { return Ok(()) };
    let mut proc = ProcFs::open()?;
    for name in names(&dir)? {
        let lives = read(&dir, &name).is_some_and(|note| {
            let mut ids = note.spared.iter().filter_map(Spared::id);
            ids.any(|id| !proc.presence(id).is_gone())
        });
        if !lives && !is_needed(&name)? {
            remove(&dir, &name)?;
        }
    }
    Ok(())
}

/// Returns the ids in a marker that still bind a process to their sandboxes.
pub(crate) fn still_binding(
    ids: Vec<String>,
    pid: Pid,
    proc: &mut ProcFs,
    spared: &[SparedMark],
) -> Vec<String> {
    if spared.is_empty() || ids.is_empty() {
        return ids;
    }
    // A process that has ended binds nobody; one that cannot be read is as it seems.
    match proc.stat(pid) {
        Ok(Some(stat)) => penfold_teardown::spare::binding(&ids, stat.id(), spared).to_vec(),
        _ => ids,
    }
}

fn directory(root: &Path) -> io::Result<Option<OwnedFd>> {
    let opened =
        open_private(rustix::fs::CWD, root).and_then(|root| open_private(root.as_fd(), Path::new(DIRECTORY)));
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a directory of this user without following a link in its last part.
fn open_private(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(at, path, flags, Mode::empty())?;
    let owner = rustix::fs::fstat(&dir)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("`{}` belongs to user {owner}", path.display())));
    }
    Ok(dir)
}

/// Reads a note of this boot.
fn read(dir: &OwnedFd, name: &str) -> Option<Note> {
    let note: Note = json::read(dir.as_fd(), name).ok()??;
    penfold_process::boot_id().is_ok_and(|boot| boot == note.boot).then_some(note)
}

fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        names.extend(entry.file_name().to_str().ok().filter(|name| Id::is_short(name)).map(str::to_owned));
    }
    Ok(names)
}

fn remove(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
