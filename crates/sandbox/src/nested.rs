//! Sandboxes that were started inside of one: killed together with it, they could not put away their records and scratch
//! directories.
//!
//! Each leaves its id in the records of those that it is in, so that who ends one of these need not look at all records:
//! from before it has a record of its own until that is gone.

use std::time::Duration;

use penfold_process::ProcessId;
use penfold_teardown::Resource;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::clear::entries;
use crate::files::Files;
use crate::record::{Intent, Registry};
use crate::recovery::recover;

/// The beginning of the name of the directory that tells of a nested sandbox.
const NESTED: &str = "nested-";
/// How long what is left of a nested sandbox may take to go; its processes are gone already.
const PATIENCE: Duration = Duration::from_secs(2);

/// The notes of a sandbox in the records of those that it is in.
#[derive(Debug)]
pub struct Notes {
    registry: Registry,
    own: String,
    within: Vec<String>,
}

impl Notes {
    /// Notes a new sandbox in the records of those that it is in, as far as they are below the same root; `None` when it
    /// is in none.
    pub fn leave(registry: &Registry, intent: &Intent) -> Option<Notes> {
        let own = intent.id.short();
        for outer in &intent.within {
            if let Ok(Some(files)) = registry.look(outer) {
                // Without it the next command finds what is left.
                let _ = rustix::fs::mkdirat(files.dir(), entry(&own), Mode::RWXU);
            }
        }
        let within = intent.within.clone();
        (!within.is_empty()).then(|| Notes { registry: registry.clone(), own, within })
    }
}

impl Resource for Notes {
    fn describe(&self) -> String {
        "notes in outer sandboxes".to_owned()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for outer in &self.within {
            if let Ok(Some(files)) = self.registry.look(outer) {
                match rustix::fs::unlinkat(files.dir(), entry(&self.own), AtFlags::REMOVEDIR) {
                    // A command may have put something else there, which goes with the outer record.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// What is left of the sandboxes that are in one.
#[derive(Debug)]
pub struct Nested {
    registry: Registry,
    own: Files,
}

impl Nested {
    /// Those that will leave a note in the record `own`.
    pub fn of(registry: &Registry, own: &Files) -> Nested {
        Nested { registry: registry.clone(), own: own.clone() }
    }
}

impl Resource for Nested {
    fn describe(&self) -> String {
        "nested sandboxes".to_owned()
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Most file systems count directories in the links of the one above: two links are its own.
        if !forced || rustix::fs::fstat(self.own.dir())?.st_nlink == 2 {
            return Ok(());
        }
        for (name, _) in entries(self.own.dir())? {
            let Some(id) = name.to_str().ok().and_then(|name| name.strip_prefix(NESTED)) else { continue };
            if let Ok(Some(record)) = self.registry.take_orphan(id)
                && record
                    .intent()
                    .is_ok_and(|intent| intent.within.iter().any(|outer| outer == self.own.name()))
            {
                recover(record, false, PATIENCE)?;
            }
            let _ = rustix::fs::unlinkat(self.own.dir(), &name, AtFlags::REMOVEDIR);
        }
        Ok(())
    }
}

/// A detached sandbox that was started inside of another, as its record tells.
#[derive(Debug, Clone)]
pub struct Inside {
    /// Its id, as shown.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Those that looked after it.
    pub supervisors: Vec<ProcessId>,
}

/// The detached sandboxes that have records and were started inside of `own`, ended or not. They belong to the same user,
/// whose commands may have written anything there.
pub fn inside(registry: &Registry, own: &str) -> Vec<Inside> {
    /// One has an outer process and an inner one.
    const SUPERVISORS: usize = 2;
    /// Among so many records they are looked for.
    const MOST: usize = 1000;
    let names = registry.names().unwrap_or_default();
    let records = names.into_iter().take(MOST).filter_map(|id| registry.look(&id).ok().flatten());
    let nested = records.filter_map(|files| {
        let intent = files.intent().ok().filter(|intent| intent.within.iter().any(|outer| outer == own))?;
        let mut supervisors = files.state().ok().flatten()?.supervisors;
        supervisors.truncate(SUPERVISORS);
        Some(Inside { id: files.name().to_owned(), name: intent.name, supervisors })
    });
    nested.collect()
}

fn entry(id: &str) -> String {
    format!("{NESTED}{id}")
}
