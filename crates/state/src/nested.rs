//! Nested sandboxes: killed together with the enclosing one, they cannot remove their own records and scratch
//! directories.
//!
//! Each nested sandbox leaves a note with its id in the records of the enclosing sandboxes. The note exists from before
//! its own record until its record and name are gone. A teardown thus finds nested sandboxes without reading all
//! records.

use std::io;
use std::time::Duration;

use penfold_process::{ProcessId, StartTime};
use penfold_teardown::Resource;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::clear::list_entries;
use crate::files::Files;
use crate::intent::Intent;
use crate::names::forget_names_of;
use crate::outside;
use crate::record::{Record, Registry};
use crate::recovery::end_remains;

/// The prefix of the directory that notes a nested sandbox.
const NESTED: &str = "nested-";
/// The time for the remains of a nested sandbox to go; its processes are gone already.
const PATIENCE: Duration = Duration::from_secs(2);

/// The notes of a sandbox in the records of the enclosing sandboxes.
#[derive(Debug)]
pub struct EnclosingNotes {
    registry: Registry,
    own: String,
    within: Vec<String>,
}

impl EnclosingNotes {
    /// Notes a new sandbox in the records of the enclosing sandboxes, as far as they are below the same root.
    ///
    /// Returns `None` when the sandbox is not nested.
    pub fn leave(registry: &Registry, intent: &Intent) -> Option<EnclosingNotes> {
        let own = intent.id.short();
        for outer in &intent.within {
            if let Ok(Some(files)) = registry.look(outer) {
                // Without the note, the next command still finds the remains.
                let _ = rustix::fs::mkdirat(files.dir(), entry(&own), Mode::RWXU);
            }
        }
        let within = intent.within.clone();
        (!within.is_empty()).then(|| EnclosingNotes { registry: registry.clone(), own, within })
    }
}

impl Resource for EnclosingNotes {
    fn describe(&self) -> String {
        "notes in outer sandboxes".to_owned()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for outer in &self.within {
            if let Ok(Some(files)) = self.registry.look(outer) {
                match rustix::fs::unlinkat(files.dir(), entry(&self.own), AtFlags::REMOVEDIR) {
                    // A command may have put something else there, which goes with the enclosing record.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// The nested sandboxes of one sandbox.
#[derive(Debug, Clone)]
pub struct NestedNotes {
    registry: Registry,
    own: Files,
}

impl NestedNotes {
    /// Makes a value for the sandboxes that leave a note in the record `own`.
    pub fn of(registry: &Registry, own: &Files) -> NestedNotes {
        NestedNotes { registry: registry.clone(), own: own.clone() }
    }

    /// Returns the registry with their records.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the nested sandboxes that have records now.
    ///
    /// They belong to the same user, whose commands may have written anything there.
    pub fn recorded(&self) -> Vec<NestedRecord> {
        /// A sandbox has a standby and a supervisor.
        const SUPERVISORS: usize = 2;
        /// The most ids to look up.
        const MOST: usize = 1000;
        if !self.may_exist() {
            return Vec::new();
        }
        let ids = self.ids().unwrap_or_default();
        let records = ids.into_iter().take(MOST).filter_map(|id| self.registry.look(&id).ok().flatten());
        let inside = records.filter_map(|files| {
            let intent = files.intent().ok().filter(|intent| self.is_around(intent))?;
            let mut supervisors =
                files.state().ok().flatten().map_or_else(Vec::new, |state| state.supervisors);
            supervisors.truncate(SUPERVISORS);
            Some(NestedRecord {
                id: files.name().to_owned(),
                name: intent.name,
                supervisors,
                since: intent.since,
            })
        });
        inside.collect()
    }

    /// Tells whether notes may exist. Most file systems count directories in the links of their parent: a directory
    /// without subdirectories has two links.
    fn may_exist(&self) -> bool {
        rustix::fs::fstat(self.own.dir()).is_ok_and(|stat| stat.st_nlink != 2)
    }

    fn ids(&self) -> io::Result<Vec<String>> {
        let id = |name: &std::ffi::CStr| Some(name.to_str().ok()?.strip_prefix(NESTED)?.to_owned());
        Ok(list_entries(self.own.dir())?.iter().filter_map(|(name, _)| id(name)).collect())
    }

    /// Ends the remains of sandboxes that were started outside and have no supervisor: one that was just being started may have
    /// been killed with the members.
    fn end_lost_outside(&self) -> io::Result<()> {
        let Some(root) = self.own.path().ancestors().nth(2) else { return Ok(()) };
        for id in outside::started_from(root, self.own.name()) {
            let record = self.registry.take_orphan(&id).ok().flatten();
            let is_ours = |record: &Record| {
                record.intent().is_ok_and(|intent| intent.outside.as_deref() == Some(self.own.name()))
            };
            if let Some(record) = record.filter(is_ours) {
                end_remains(record, false, PATIENCE, None)?;
                outside::remove_outside_note(root, &id)?;
            }
        }
        // One that was killed before it had a record.
        outside::prune_outside_notes(root, |id| Ok(self.registry.holds(id)))
    }

    fn is_around(&self, intent: &Intent) -> bool {
        intent.within.iter().any(|outer| outer == self.own.name())
    }
}

impl Resource for NestedNotes {
    fn describe(&self) -> String {
        "nested sandboxes".to_owned()
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if !forced {
            return Ok(());
        }
        self.end_lost_outside()?;
        if !self.may_exist() {
            return Ok(());
        }
        for id in self.ids()? {
            if let Ok(Some(record)) = self.registry.take_orphan(&id)
                && record.intent().is_ok_and(|intent| self.is_around(&intent))
            {
                end_remains(record, false, PATIENCE, None)?;
            }
            // A sandbox killed during its cleanup may have removed its record, but not its name.
            if let Some(root) = self.own.path().ancestors().nth(2).filter(|_| !self.registry.holds(&id)) {
                forget_names_of(root, &id)?;
            }
            let _ = rustix::fs::unlinkat(self.own.dir(), entry(&id), AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

/// A nested sandbox, as its record describes it.
#[derive(Debug, Clone)]
pub struct NestedRecord {
    /// The short id.
    pub id: String,
    /// The name.
    pub name: Option<String>,
    /// The supervisor processes, with pids of their own namespace; only a detached sandbox records them.
    pub supervisors: Vec<ProcessId>,
    /// The start time of its `penfold run`.
    pub since: Option<StartTime>,
}

fn entry(id: &str) -> String {
    format!("{NESTED}{id}")
}
