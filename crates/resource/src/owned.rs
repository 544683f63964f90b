//! A planned resource that a teardown releases.

use std::time::{Duration, Instant};

use penfold_teardown::Resource;

use crate::{Owner, Planned};

/// A resource of a sandbox that may exist.
#[derive(Debug)]
pub struct Owned {
    planned: Planned,
    owner: Owner,
    patience: Duration,
}

impl Owned {
    /// A resource that was made, or may have been. `patience` is the time that a release may take.
    #[must_use]
    pub fn new(planned: Planned, owner: Owner, patience: Duration) -> Owned {
        Owned { planned, owner, patience }
    }
}

impl Resource for Owned {
    fn describe(&self) -> String {
        self.planned.describe()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        #[cfg(debug_assertions)]
        if penfold_sys::crash::is_left_out("release") {
            return Ok(());
        }
        let until = Instant::now().checked_add(self.patience).unwrap_or_else(Instant::now);
        Ok(self.planned.release(&self.owner, until)?)
    }
}
