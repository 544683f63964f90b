//! Removes the notes of spared processes, of sandboxes outside, and of survivors, that nothing needs any more.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use penfold_process::Pid;
use penfold_state::evidence::fingerprints;
use penfold_state::{Registry, outside, spared, survivors};

/// Removes the notes whose processes are gone, with all that has the marker.
///
/// # Errors
/// When the notes or all processes cannot be read.
pub fn prune_spared(root: &Path) -> io::Result<()> {
    let registry = Registry::open_existing(root).map_err(io::Error::other)?;
    // All processes are read once, and only if a note has lost its own.
    let marked: OnceCell<HashMap<String, Vec<Pid>>> = OnceCell::new();
    let has_record = |id: &str| registry.as_ref().is_some_and(|registry| registry.holds(id));
    survivors::prune_survivors(root)?;
    outside::prune_outside_notes(root, |id| Ok(has_record(id)))?;
    spared::prune_spared_notes(root, |id| {
        if has_record(id) {
            return Ok(true);
        }
        if marked.get().is_none() {
            let _ = marked.set(fingerprints::find_marked_processes(None, |_| false).complete()?);
        }
        Ok(marked.get().is_none_or(|marked| marked.contains_key(id)))
    })
}
