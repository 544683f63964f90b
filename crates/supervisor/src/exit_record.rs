//! Writes `exit.json`: the first version by a penfold process stands, and a forged one is replaced.

use std::cell::Cell;

use penfold_state::record::SCHEMA;
use penfold_state::state::CommandExit;
use penfold_state::time::now_ms;
use penfold_state::{ExitStatus, Files};
use penfold_teardown::Cause;

use crate::outcome::Report;

/// The knowledge about `exit.json`.
#[derive(Debug, Default)]
pub(crate) struct ExitRecord {
    /// The exit that this process has written.
    own: Cell<Option<CommandExit>>,
    /// An earlier supervisor of this sandbox may have written `exit.json`.
    trusted: bool,
    /// Another process has written `exit.json`.
    tampered: Cell<bool>,
}

impl ExitRecord {
    /// Sets whether an existing `exit.json` is trusted as written by an earlier supervisor.
    pub(crate) fn trust(&mut self, trusted: bool) {
        self.trusted = trusted;
    }

    /// Writes the exit as soon as it is known, unless a penfold process wrote it before. Returns the exit if it is new,
    /// for its event.
    pub(crate) fn write(&self, files: &Files, exit: Option<ExitStatus>, cause: Cause) -> Option<CommandExit> {
        if self.own.get().is_some() {
            return None;
        }
        let exited = CommandExit { schema: SCHEMA, exit, cause, at_ms: now_ms() };
        if matches!(files.write_exited(&exited), Ok(false)) {
            if self.trusted {
                return None;
            }
            let _ = files.replace_exited(&exited);
            self.tampered.set(true);
        }
        // If the record is already gone, no other process publishes the exit either.
        self.own.set(Some(exited));
        Some(exited)
    }

    /// Writes the report, which marks the end, after `exit.json`: a member may have replaced that file, which is then
    /// restored.
    pub(crate) fn conclude(&self, files: &Files, report: &Report) {
        let Some(own) = self.own.get() else {
            // An earlier supervisor wrote it.
            let exited =
                CommandExit { schema: SCHEMA, exit: report.exit, cause: report.cause, at_ms: now_ms() };
            let _ = files.write_end(&exited, report);
            return;
        };
        let written = files.exited();
        let mut report = Report { exit: own.exit, cause: own.cause, ..report.clone() };
        let is_ours = matches!(written, Ok(Some(written)) if written == own);
        if !is_ours {
            self.tampered.set(self.tampered.get() || !matches!(written, Ok(None)));
            let _ = files.replace_exited(&own);
        }
        if self.tampered.get() {
            report.missing.push("an intact record: another process had written `exit.json`".to_owned());
        }
        let _ = if is_ours { files.write_last(&report) } else { files.write_end(&own, &report) };
    }
}
