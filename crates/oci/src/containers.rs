//! The containers that have a note. One that its delegate does not know any more is lost: what is left of it is a leak. So is one whose `delete` was
//! refused: its engine may have forgotten it.
//!
//! Unknown means alive: a container whose engine's state directory cannot be seen from here is not lost.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_process::Pid;

use crate::cgroups::{self, CgroupNames};
use crate::delegate::{self, DelegateReport};
use crate::members::{ContainerMember, ContainerMembers};
use crate::news::{ENDED, publish_end};
use crate::note::{ContainerNote, ContainerNotes};
use crate::shim;

/// A container with a note.
#[derive(Debug)]
pub struct NotedContainer {
    /// The note.
    pub note: ContainerNote,
    /// The file of the note.
    pub file: PathBuf,
    /// The processes that live in its cgroups.
    pub pids: Vec<Pid>,
    /// Whether its delegate does not know it any more.
    pub is_lost: bool,
    /// Whether its engine wanted it deleted, in vain, and may have forgotten it.
    pub is_refused: bool,
}

/// Finds the containers that were created through penfold, with this state root.
///
/// # Errors
/// When the notes or a cgroup cannot be read: this does not mean "none".
pub fn noted_containers(state_root: &Path) -> io::Result<Vec<NotedContainer>> {
    let notes = ContainerNotes::below(state_root);
    let all = notes.all()?;
    let mut found = Vec::new();
    for (file, note) in &all {
        let is_lost = is_lost(note, &all)?;
        let pids = members(note)?.look()?.iter().map(ContainerMember::pid).collect();
        found.push(NotedContainer {
            note: note.clone(),
            file: file.clone(),
            pids,
            is_lost,
            is_refused: notes.is_refused(note),
        });
    }
    found.sort_by(|one, other| {
        (&one.note.engine_root, &one.note.id).cmp(&(&other.note.engine_root, &other.note.id))
    });
    Ok(found)
}

/// Ends what is left of a container that its delegate has lost, or whose engine wanted it deleted, and removes its note; returns the processes and
/// cgroups that are left then. Another container stays as it is.
///
/// # Errors
/// When something cannot be read, the delegate cannot be used, or the note cannot be removed.
pub fn end_lost(state_root: &Path, file: &Path, patience: Duration) -> io::Result<Vec<String>> {
    let notes = ContainerNotes::below(state_root);
    let all = notes.all()?;
    let Some((_, note)) = all.iter().find(|(path, _)| path == file) else { return Ok(Vec::new()) };
    let is_to_end = is_lost(note, &all)? || (notes.is_refused(note) && is_seen(note)?);
    let mut members = members(note)?;
    if !is_to_end || notes.read(&note.engine_root, &note.id)?.is_none_or(|newest| newest.token != note.token)
    {
        return Ok(Vec::new());
    }
    let deadline = Instant::now() + patience;
    let left: Vec<String> = members.end(deadline)?.iter().map(ToString::to_string).collect();
    if !left.is_empty() {
        return Ok(left);
    }
    if !is_of_another_boot(note)? && delegate::delegate_knows(&note.engine_root, &note.id) {
        members.remove_below()?;
        delegate::delete_container(note, deadline)?;
    }
    let left = members.remove(deadline)?;
    if left.is_empty() {
        shim::end_shim(note, deadline)?;
        notes.remove(note)?;
    }
    Ok(left.iter().map(|dir| format!("cgroup {}", dir.display())).collect())
}

/// Tells whether there are containers whose engine wanted them deleted, in vain.
pub fn have_refused(state_root: &Path) -> bool {
    ContainerNotes::below(state_root).have_refused(None)
}

/// Ends containers whose engine wanted them deleted, in vain, and of which no process lives any more; `but` is the engine's state directory and id of
/// one that its engine deletes at this moment. Returns whether such containers are left.
///
/// # Errors
/// When the notes cannot be read.
pub fn complete_refused(state_root: &Path, but: Option<(&Path, &str)>) -> io::Result<bool> {
    /// Nothing lives: the delegate has only to remove its state.
    const PATIENCE: Duration = Duration::from_secs(5);
    let notes = ContainerNotes::below(state_root);
    if !notes.have_refused(but) {
        return Ok(false);
    }
    let mut are_left = false;
    for (file, note) in notes.all()? {
        let is_own = but == Some((&note.engine_root, &note.id));
        if is_own || !notes.is_refused(&note) {
            continue;
        }
        let is_empty = || Ok::<bool, io::Error>(is_seen(&note)? && members(&note)?.look()?.is_empty());
        let ended = is_empty().and_then(|is_empty| {
            Ok(is_empty && end_lost(state_root, &file, PATIENCE)?.is_empty() && !file.is_file())
        });
        if ended.unwrap_or(false) {
            publish_end(state_root, &note.id, "whose delete was refused before", ENDED);
        } else {
            are_left = true;
        }
    }
    Ok(are_left)
}

/// Returns the mount namespace of this process, 0 if it cannot be told.
pub(crate) fn mount_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/mnt").map_or(0, |stat| stat.st_ino)
}

/// Tells whether the delegate does not know the container. `all` are the notes of the state root.
fn is_lost(note: &ContainerNote, all: &[(PathBuf, ContainerNote)]) -> io::Result<bool> {
    if is_of_another_boot(note)? {
        return Ok(true);
    }
    if !is_seen(note)? || delegate::delegate_knows(&note.engine_root, &note.id) {
        return Ok(false);
    }
    // The cgroups may be those of a container that another engine has under the same id.
    let own = members(note)?.roots().clone();
    for (_, other) in all {
        let is_another = other.engine_root != note.engine_root || other.id != note.id;
        if is_another
            && delegate::delegate_knows(&other.engine_root, &other.id)
            && !members(other)?.roots().is_disjoint(&own)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tells whether the state directory of the engine can be seen: elsewhere the path may mean another directory.
fn is_seen(note: &ContainerNote) -> io::Result<bool> {
    Ok(note.mount_namespace != 0
        && note.mount_namespace == mount_namespace()
        && note.engine_root.try_exists()?)
}

fn is_of_another_boot(note: &ContainerNote) -> io::Result<bool> {
    Ok(!note.boot_id.is_empty() && note.boot_id != penfold_process::boot_id()?)
}

/// The members of a container; none after another boot.
fn members(note: &ContainerNote) -> io::Result<ContainerMembers> {
    if is_of_another_boot(note)? {
        return ContainerMembers::of(BTreeSet::new());
    }
    let names = CgroupNames { id: &note.id, cgroups_path: &note.cgroups_path };
    let report: DelegateReport = delegate::read_delegate_report(&note.engine_root, &note.id);
    Ok(ContainerMembers::of(cgroups::find_cgroups(&names, &report, &note.cgroups)?)?.with_mounts(note.mounts))
}
