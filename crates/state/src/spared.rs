//! Processes that sandboxes have spared: a note in the state root for as long as they live, since they keep the marker of a
//! sandbox that is gone.

use std::io;
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_teardown::spare::{EarlierNotes, SparedNotes};
use penfold_teardown::{SparePolicy, SparedMark, SparedProcess};
use serde::{Deserialize, Serialize};

use crate::intent::Intent;
use crate::json::SCHEMA;
use crate::notes::NoteDirectory;
use crate::outside;
use crate::spare_plan::SparePlan;

/// The directory below the state root.
const DIRECTORY: &str = "spared";

/// The variable with the state root of a sandbox that spares processes: it leads from a spared process to its note, also for those
/// who look from another state root.
pub const ROOT_VARIABLE: &str = "PENFOLD_SPARED";

/// Returns what a teardown of a sandbox with this plan needs.
#[must_use]
pub fn spare_policy(plan: &SparePlan, root: &Path, id: &str) -> SparePolicy {
    let notes = Box::new(SparedFile { root: root.to_owned(), id: id.to_owned(), leader: None });
    let outside = plan.allows_outside.then(|| outside::outside_finder(root, id));
    SparePolicy { rules: plan.rules.clone(), home: plan.home.clone(), is_partial: false, notes, outside }
}

/// Returns what a teardown of a sandbox with this intent needs; `None` if the sandbox spares nothing.
#[must_use]
pub fn spare_policy_of_intent(intent: Option<&Intent>, root: Option<&Path>) -> Option<SparePolicy> {
    let intent = intent?;
    Some(spare_policy(intent.spare.as_ref()?, root?, &intent.id.short()))
}

/// The note of one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SpareNoteFile {
    schema: u32,
    /// The boot in which the processes run.
    boot: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leader: Option<ProcessId>,
    /// Whether nothing but the spared processes was left of the sandbox.
    is_over: bool,
    spared: Vec<SparedProcess>,
}

/// The file with the note of one sandbox.
#[derive(Debug)]
struct SparedFile {
    root: PathBuf,
    id: String,
    leader: Option<ProcessId>,
}

impl SparedNotes for SparedFile {
    fn earlier(&mut self) -> EarlierNotes {
        let Ok(Some(dir)) = directory(&self.root) else { return EarlierNotes::default() };
        let Some(note) = read(&dir, &self.id) else { return EarlierNotes::default() };
        self.leader = note.leader;
        EarlierNotes { leader: note.leader, spared: note.spared }
    }

    fn write(&mut self, spared: &[SparedProcess], is_over: bool) -> io::Result<()> {
        if is_over && spared.is_empty() {
            return match directory(&self.root)? {
                Some(dir) => dir.remove(&self.id),
                None => Ok(()),
            };
        }
        let boot = penfold_process::boot_id()?;
        let note =
            SpareNoteFile { schema: SCHEMA, boot, leader: self.leader, is_over, spared: spared.to_vec() };
        NoteDirectory::make(&self.root, DIRECTORY)?.write(&self.id, &note)
    }
}

/// Notes the leader of a sandbox that spares processes, before the leader runs. No teardown takes it for a daemon.
///
/// # Errors
/// When the note cannot be written.
pub fn note_leader(root: &Path, id: &str, leader: ProcessId) -> io::Result<()> {
    SparedFile { root: root.to_owned(), id: id.to_owned(), leader: Some(leader) }.write(&[], false)
}

/// Returns the leader of a sandbox that spares processes, or lets its members start sandboxes outside.
#[must_use]
pub fn noted_leader(root: &Path, id: &str) -> Option<ProcessId> {
    read(&directory(root).ok()??, id)?.leader
}

/// Returns the sandboxes below a state root that have spared processes in this boot, or have handed them over. A note that cannot
/// be read frees nothing.
#[must_use]
pub fn spared_marks(root: &Path) -> Vec<SparedMark> {
    let mut marks = outside::outside_marks(root);
    let Ok(Some(dir)) = directory(root) else { return marks };
    let names = dir.ids().unwrap_or_default();
    let notes = names.into_iter().filter_map(|name| Some((read(&dir, &name)?, name)));
    marks.extend(notes.map(|(note, sandbox)| SparedMark {
        sandbox,
        is_over: note.is_over,
        processes: note.spared.iter().filter_map(SparedProcess::id).collect(),
        kept_by: None,
    }));
    marks
}

/// Tells whether a sandbox below a state root has noted in this boot what it spares.
pub(crate) fn is_noted(root: &Path, id: &str) -> bool {
    directory(root).ok().flatten().is_some_and(|dir| read(&dir, id).is_some())
        || outside::outside_marks(root).iter().any(|mark| mark.sandbox == id)
}

/// Removes the notes whose processes are gone, unless `is_needed` says that a sandbox has a record, or that a process has its
/// marker. `is_needed` is called only if there are such notes.
///
/// # Errors
/// When the notes, or their processes, cannot be read.
pub fn prune_spared_notes(
    root: &Path,
    mut is_needed: impl FnMut(&str) -> io::Result<bool>,
) -> io::Result<()> {
    let Some(dir) = directory(root)? else { return Ok(()) };
    let mut proc = ProcFs::open()?;
    dir.remove_unfinished(&mut proc)?;
    for name in dir.ids()? {
        let lives = read(&dir, &name).is_some_and(|note| {
            let mut ids = note.spared.iter().filter_map(SparedProcess::id);
            ids.any(|id| !proc.presence(id).is_gone())
        });
        if !lives && !is_needed(&name)? {
            dir.remove(&name)?;
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
        Ok(Some(stat)) => penfold_teardown::spare::binding_ids(&ids, stat.id(), proc, spared).to_vec(),
        _ => ids,
    }
}

fn directory(root: &Path) -> io::Result<Option<NoteDirectory>> {
    NoteDirectory::open(root, DIRECTORY)
}

/// Reads a note of this boot.
fn read(dir: &NoteDirectory, id: &str) -> Option<SpareNoteFile> {
    let note: SpareNoteFile = dir.read(id)?;
    penfold_process::boot_id().is_ok_and(|boot| boot == note.boot).then_some(note)
}
