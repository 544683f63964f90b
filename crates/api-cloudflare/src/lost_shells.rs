//! Remembers the sessions whose shell has exited. Until a command runs in the fresh shell, such a session can be made again, as in the
//! reference. A restart of the server forgets them: then the session exists.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sandboxes of sessions whose shell has exited.
#[derive(Debug, Default)]
pub(crate) struct LostShells(Mutex<HashSet<String>>);

impl LostShells {
    pub(crate) fn note(&self, sandbox: &str) {
        self.lock().insert(sandbox.to_owned());
    }

    pub(crate) fn has(&self, sandbox: &str) -> bool {
        self.lock().contains(sandbox)
    }

    pub(crate) fn sandboxes(&self) -> HashSet<String> {
        self.lock().clone()
    }

    pub(crate) fn forget_sandboxes(&self, is_gone: impl Fn(&str) -> bool) {
        self.lock().retain(|sandbox| !is_gone(sandbox));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
