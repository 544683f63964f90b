//! How the command of a detached sandbox ended, in `exit.json`: the first word of ours stands, and a forged one is replaced.

use std::cell::Cell;

use penfold_state::record::SCHEMA;
use penfold_state::state::Exited;
use penfold_state::time::now_ms;
use penfold_state::{ExitStatus, Files};
use penfold_teardown::Cause;

/// What is known of `exit.json`.
#[derive(Debug, Default)]
pub(crate) struct ExitRecord {
    /// How the command ended, once it was told.
    told: Cell<Option<Exited>>,
    /// A process of ours before this one may have told it.
    believes: bool,
    /// Somebody else has told it.
    tampered: Cell<bool>,
}

impl ExitRecord {
    /// Whether `exit.json`, if there is one, is the word of the supervisor before this one.
    pub(crate) fn believe(&mut self, believes: bool) {
        self.believes = believes;
    }

    /// Whether somebody else has written it.
    pub(crate) fn is_tampered(&self) -> bool {
        self.tampered.get()
    }

    /// Writes down how the command ended, as soon as that is known. What one of ours has written
    /// stands. Gives what was written, to be told.
    pub(crate) fn write(&self, files: &Files, exit: Option<ExitStatus>, cause: Cause) -> Option<Exited> {
        if self.told.get().is_some() {
            return None;
        }
        let exited = Exited { schema: SCHEMA, exit, cause, at_ms: now_ms() };
        if matches!(files.write_exited(&exited), Ok(false)) {
            if self.believes {
                return None;
            }
            let _ = files.replace_exited(&exited);
            self.tampered.set(true);
        }
        // Where the record is gone already, nobody else tells of it either.
        self.told.set(Some(exited));
        Some(exited)
    }

    /// How the command ended, by our own word if we gave it: a member may have written another.
    pub(crate) fn truth(&self, files: &Files) -> Option<Exited> {
        let written = files.exited();
        let Some(told) = self.told.get() else { return written.ok().flatten() };
        if !matches!(written, Ok(Some(written)) if written == told) {
            self.tampered.set(self.tampered.get() || !matches!(written, Ok(None)));
            let _ = files.replace_exited(&told);
        }
        Some(told)
    }
}
