//! Remembers the survivors of a teardown, or at least that there are some.

use std::path::Path;

use penfold_teardown::{Findings, Survivor};

use crate::files::Files;
use crate::record::Registry;
use crate::survivors;

/// Remembers survivors. If they cannot be written, the record says at least that there are some.
pub fn remember_survivors(root: &Path, id: &str, survivors: &[Survivor]) {
    if survivors::write_survivors(root, id, survivors).is_err()
        && let Some(files) = record_files(root, id)
    {
        files.mark_unwritten_survivors();
    }
}

/// Marks the record of a sandbox whose supervisor has survivors.
pub fn mark_unkillable(root: &Path, id: &str) {
    if let Some(files) = record_files(root, id) {
        files.mark_unkillable();
    }
}

/// Forgets the survivors of a sandbox that has ended.
pub fn forget_survivors(root: &Path, id: &str) {
    // The marks first: with the mark and without a name, a survivor would be unknown.
    if let Some(files) = record_files(root, id) {
        files.unmark_survivors();
    }
    // What cannot be removed is seen to be dead.
    let _ = survivors::remove_survivors(root, id);
}

/// Remembers the survivors that a search over the host has left, or forgets all if it has left none.
pub fn note_survivors(root: &Path, id: &str, findings: &Findings) {
    if findings.verified {
        let _ = survivors::remove_survivors(root, id);
    } else {
        remember_survivors(root, id, &findings.survivors);
    }
}

fn record_files(root: &Path, id: &str) -> Option<Files> {
    Registry::open_existing(root).ok()??.look(id).ok()?
}
