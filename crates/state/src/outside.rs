//! Sandboxes that were started outside of another one by its members, or were made of its members: a note for each in the state
//! root, for as long as it lives.
//!
//! The note says which sandbox it left. The end of that one leaves the processes of this one alone; members that were handed over keep
//! the marker of the sandbox that they left.

use std::io;
use std::path::{Path, PathBuf};

use penfold_process::{ProcFs, ProcessId};
use penfold_teardown::{OutsideFinder, OutsideSandbox, Resource, SparedMark};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::intent::Intent;
use crate::json::SCHEMA;
use crate::notes::NoteDirectory;

/// The directory below the state root.
const DIRECTORY: &str = "outside";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct OutsideNoteFile {
    schema: u32,
    /// The boot in which the sandbox runs.
    boot: String,
    /// The id of the sandbox that it left.
    of: String,
    #[serde(flatten)]
    sandbox: OutsideSandbox,
}

/// The note of a sandbox that was started outside of another one.
#[derive(Debug, Clone)]
pub struct OutsideNote {
    root: PathBuf,
    id: String,
}

impl OutsideNote {
    /// Notes a sandbox that was started outside of `of`, before anything of it exists but its first supervisor.
    ///
    /// # Errors
    /// When the note cannot be written: the end of `of` would end the sandbox.
    pub fn leave(root: &Path, of: &str, intent: &Intent, supervisor: ProcessId) -> io::Result<OutsideNote> {
        let note = OutsideNote { root: root.to_owned(), id: intent.id.short() };
        let sandbox = OutsideSandbox {
            id: intent.id.short(),
            name: intent.name.clone(),
            supervisors: vec![supervisor],
            leaf: intent.leaf.clone(),
        };
        let text = OutsideNoteFile { schema: SCHEMA, boot: intent.boot.clone(), of: of.to_owned(), sandbox };
        NoteDirectory::make(root, DIRECTORY)?.write(&note.id, &text)?;
        Ok(note)
    }

    /// Adds a supervisor.
    ///
    /// # Errors
    /// When the note cannot be read or written.
    pub fn add(&self, supervisor: ProcessId) -> io::Result<()> {
        let dir = directory(&self.root)?.ok_or(Errno::NOENT)?;
        let mut note: OutsideNoteFile = dir.read(&self.id).ok_or(Errno::NOENT)?;
        note.sandbox.supervisors.push(supervisor);
        dir.write(&self.id, &note)
    }
}

impl Resource for OutsideNote {
    fn describe(&self) -> String {
        "note of a sandbox outside".to_owned()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(remove_outside_note(&self.root, &self.id)?)
    }
}

/// The sandboxes that were started outside of one sandbox.
#[derive(Debug)]
struct OutsideNotes {
    root: PathBuf,
    id: String,
}

impl OutsideFinder for OutsideNotes {
    fn noted(&mut self) -> Vec<OutsideSandbox> {
        let notes = notes(&self.root).into_iter().filter(|note| note.of == self.id);
        notes.map(|note| note.sandbox).collect()
    }
}

/// Returns what a teardown of sandbox `id` must know.
#[must_use]
pub fn outside_finder(root: &Path, id: &str) -> Box<dyn OutsideFinder> {
    Box::new(OutsideNotes { root: root.to_owned(), id: id.to_owned() })
}

/// Returns the ids of the sandboxes that were started outside of sandbox `id`.
#[must_use]
pub fn started_from(root: &Path, id: &str) -> Vec<String> {
    notes(root).into_iter().filter(|note| note.of == id).map(|note| note.sandbox.id).collect()
}

/// Returns what the markers of processes mean that were handed over to sandboxes outside.
pub(crate) fn outside_marks(root: &Path) -> Vec<SparedMark> {
    let kept = |note: OutsideNoteFile| SparedMark {
        sandbox: note.of,
        is_over: false,
        processes: Vec::new(),
        kept_by: Some(note.sandbox.id),
    };
    notes(root).into_iter().map(kept).collect()
}

/// Removes the note of a sandbox.
///
/// # Errors
/// Those of unlink(2).
pub fn remove_outside_note(root: &Path, id: &str) -> io::Result<()> {
    directory(root)?.map_or(Ok(()), |dir| dir.remove(id))
}

/// Removes the notes of sandboxes that have no supervisor and no record that `is_needed`.
///
/// # Errors
/// When the processes cannot be read.
pub fn prune_outside_notes(
    root: &Path,
    mut is_needed: impl FnMut(&str) -> io::Result<bool>,
) -> io::Result<()> {
    let Some(dir) = directory(root)? else { return Ok(()) };
    let mut proc = ProcFs::open()?;
    dir.remove_unfinished(&mut proc)?;
    for name in dir.ids()? {
        let lives = read(&dir, &name)
            .is_some_and(|note| note.sandbox.supervisors.iter().any(|id| !proc.presence(*id).is_gone()));
        if !lives && !is_needed(&name)? {
            dir.remove(&name)?;
        }
    }
    Ok(())
}

fn directory(root: &Path) -> io::Result<Option<NoteDirectory>> {
    NoteDirectory::open(root, DIRECTORY)
}

/// Returns the notes of this boot. A note that cannot be read frees nothing.
fn notes(root: &Path) -> Vec<OutsideNoteFile> {
    let Ok(Some(dir)) = directory(root) else { return Vec::new() };
    dir.ids().unwrap_or_default().iter().filter_map(|id| read(&dir, id)).collect()
}

fn read(dir: &NoteDirectory, id: &str) -> Option<OutsideNoteFile> {
    let note: OutsideNoteFile = dir.read(id)?;
    let is_own = note.sandbox.id == id && penfold_process::boot_id().is_ok_and(|boot| boot == note.boot);
    is_own.then_some(note)
}
