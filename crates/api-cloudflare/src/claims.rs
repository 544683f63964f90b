//! The names of the claims of process ids on disk: of two servers with one state root, only one gives an id to a process.

use penfold_control::Scope;
use penfold_server::ids::{forget_claim, hashed_name};

/// Returns the name of the claim of a process id.
pub(crate) fn name_of(id: &str) -> String {
    hashed_name("cfp", id)
}

/// Removes the claim of a process whose record is gone.
pub(crate) fn forget_process_claim(scope: &Scope, id: &str, sandbox: &str) {
    forget_claim(scope, &name_of(id), sandbox);
}
