//! Sandboxes that were started inside of one: killed together with it, they could not put away their records and scratch
//! directories.
//!
//! Each leaves its id in the records of those that it is in, so that who ends one of these need not look at all records.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_teardown::Resource;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::clear::entries;
use crate::record::{Intent, Registry};
use crate::recovery::recover;

/// The beginning of the name of the file that tells of a nested sandbox.
const NESTED: &str = "nested-";
/// How long what is left of a nested sandbox may take to go; its processes are gone already.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a sandbox has to do with those that are in it, and those that it is in.
#[derive(Debug)]
pub struct Nested {
    state_root: PathBuf,
    own: String,
    within: Vec<String>,
}

impl Nested {
    /// Notes a new sandbox in the records of those that it is in, as far as they are below the same root.
    pub fn note(state_root: &Path, registry: &Registry, intent: &Intent) -> Nested {
        let own = intent.id.short();
        for outer in &intent.within {
            if let Ok(Some(files)) = registry.look(outer) {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // Without it the next command finds what is left.
                let _ = rustix::fs::openat(files.dir(), entry(&own), flags, Mode::RUSR | Mode::WUSR);
            }
        }
        Nested { state_root: state_root.to_owned(), own, within: intent.within.clone() }
    }

    /// Ends what is left of those that are in this one.
    fn recover_inner(&self, registry: &Registry) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Some(files) = registry.look(&self.own)? else { return Ok(()) };
        for (name, _) in entries(files.dir())? {
            let Some(id) = name.to_str().ok().and_then(|name| name.strip_prefix(NESTED)) else { continue };
            if let Ok(Some(record)) = registry.take_orphan(id)
                && record.intent().is_ok_and(|intent| intent.within.contains(&self.own))
            {
                recover(record, PATIENCE)?;
            }
            let _ = rustix::fs::unlinkat(files.dir(), &name, AtFlags::empty());
        }
        Ok(())
    }
}

fn entry(id: &str) -> String {
    format!("{NESTED}{id}")
}

impl Resource for Nested {
    fn describe(&self) -> String {
        "nested sandboxes".to_owned()
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if !forced && self.within.is_empty() {
            return Ok(());
        }
        let Some(registry) = Registry::open_existing(&self.state_root)? else { return Ok(()) };
        if forced {
            self.recover_inner(&registry)?;
        }
        for outer in &self.within {
            if let Ok(Some(files)) = registry.look(outer) {
                match rustix::fs::unlinkat(files.dir(), entry(&self.own), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}
