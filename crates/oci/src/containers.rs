//! The containers that have a note. One that its delegate does not know any more is lost: what is left of it is a leak.
//!
//! Unknown means alive: a container whose engine's state directory cannot be seen from here is not lost.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_process::Pid;

use crate::cgroups::{self, Names};
use crate::delegate::{self, Told};
use crate::members::{Member, Members};
use crate::note::{Note, Notes};

/// A container with a note.
#[derive(Debug)]
pub struct Noted {
    /// The note.
    pub note: Note,
    /// The file of the note.
    pub file: PathBuf,
    /// The processes that live in its cgroups.
    pub pids: Vec<Pid>,
    /// Whether its delegate does not know it any more.
    pub is_lost: bool,
}

/// Finds the containers that were created through penfold, with this state root.
///
/// # Errors
/// When the notes or a cgroup cannot be read: this does not mean "none".
pub fn noted(state_root: &Path) -> io::Result<Vec<Noted>> {
    let all = Notes::below(state_root).all()?;
    let mut found = Vec::new();
    for (file, note) in &all {
        let is_lost = is_lost(note, &all)?;
        let pids = members(note)?.look()?.iter().map(Member::pid).collect();
        found.push(Noted { note: note.clone(), file: file.clone(), pids, is_lost });
    }
    found.sort_by(|one, other| {
        (&one.note.engine_root, &one.note.id).cmp(&(&other.note.engine_root, &other.note.id))
    });
    Ok(found)
}

/// Ends what is left of a lost container, and removes its note; returns the processes and cgroups that are left then. A container that is
/// not lost any more stays as it is.
///
/// # Errors
/// When something cannot be read, or the note cannot be removed.
pub fn end_lost(state_root: &Path, file: &Path, patience: Duration) -> io::Result<Vec<String>> {
    let notes = Notes::below(state_root);
    let all = notes.all()?;
    let Some((_, note)) = all.iter().find(|(path, _)| path == file) else { return Ok(Vec::new()) };
    let mut members = members(note)?;
    if !is_lost(note, &all)?
        || notes.read(&note.engine_root, &note.id)?.is_none_or(|newest| newest.token != note.token)
    {
        return Ok(Vec::new());
    }
    let deadline = Instant::now() + patience;
    let left: Vec<String> = members.end(deadline)?.iter().map(ToString::to_string).collect();
    if !left.is_empty() {
        return Ok(left);
    }
    let left = members.remove(deadline)?;
    if left.is_empty() {
        notes.remove(note)?;
    }
    Ok(left.iter().map(|dir| format!("cgroup {}", dir.display())).collect())
}

/// Returns the mount namespace of this process, 0 if it cannot be told.
pub(crate) fn mount_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/mnt").map_or(0, |stat| stat.st_ino)
}

/// Tells whether the delegate does not know the container. `all` are the notes of the state root.
fn is_lost(note: &Note, all: &[(PathBuf, Note)]) -> io::Result<bool> {
    if is_of_another_boot(note)? {
        return Ok(true);
    }
    // Elsewhere the path may mean another directory.
    let is_seen = note.mount_namespace != 0
        && note.mount_namespace == mount_namespace()
        && note.engine_root.try_exists()?;
    if !is_seen || delegate::knows(&note.engine_root, &note.id) {
        return Ok(false);
    }
    // The cgroups may be those of a container that another engine has under the same id.
    let own = members(note)?.roots().clone();
    for (_, other) in all {
        let is_another = other.engine_root != note.engine_root || other.id != note.id;
        if is_another
            && delegate::knows(&other.engine_root, &other.id)
            && !members(other)?.roots().is_disjoint(&own)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_of_another_boot(note: &Note) -> io::Result<bool> {
    Ok(!note.boot_id.is_empty() && note.boot_id != penfold_process::boot_id()?)
}

/// The members of a container; none after another boot.
fn members(note: &Note) -> io::Result<Members> {
    if is_of_another_boot(note)? {
        return Members::of(BTreeSet::new());
    }
    let names = Names { id: &note.id, cgroups_path: &note.cgroups_path };
    let told: Told = delegate::told(&note.engine_root, &note.id);
    Members::of(cgroups::find(&names, &told, &note.cgroups)?)
}
