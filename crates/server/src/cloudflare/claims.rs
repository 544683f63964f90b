//! Claims of process ids on disk: of two servers with one state root, only one gives an id to a process.
//!
//! An id that a client chose is claimed like the name of a sandbox, under a name made from the id. The file of the claim
//! is locked while the process starts, and holds the id of its sandbox afterwards. A claim is worth as much as the
//! process: without a process of this id in that sandbox, the id is free. `penfold gc` removes the claims of sandboxes
//! that are gone.

use std::path::Path;

use penfold_state::{error_chain, fnv, names};

/// Returns the name of the claim of a process id.
pub(crate) fn name_of(id: &str) -> String {
    format!("cfp-{:032x}", fnv(id.as_bytes()))
}

/// Removes the claim of a process whose record is gone.
pub(crate) fn forget(root: &Path, id: &str, sandbox: &str) {
    if let Err(error) = names::forget_name(root, &name_of(id), sandbox) {
        tracing::warn!(id, error = error_chain(&error), "cannot remove the claim of a process");
    }
}
