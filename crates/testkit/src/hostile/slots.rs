//! A bound on the number of live processes of a storm that holds even when they are killed.

use std::fs::{self, File};
use std::path::PathBuf;

use super::yard::{Step, Trouble, Yard};

/// As many files as processes may live; each holds the lock of one.
///
/// The kernel drops the lock when the process ends, however it ends, so a killed process makes room for
/// another: a killer gets no help from the bound.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    directory: PathBuf,
    count: u32,
}

/// The right to live; ends with the process.
#[derive(Debug)]
pub(crate) struct Slot {
    _file: File,
}

impl Slots {
    pub(crate) fn create(yard: &Yard, count: u32) -> Result<Slots, Trouble> {
        let directory = yard.path("slots");
        fs::create_dir_all(&directory).step("cannot create the slots")?;
        for slot in 0..count {
            File::create(directory.join(slot.to_string())).step("cannot create a slot")?;
        }
        Ok(Slots { directory, count })
    }

    /// Takes a free slot, looking at four only: a full yard must not cost a scan each time.
    pub(crate) fn take(&self, seed: &mut u32) -> Option<Slot> {
        (0..4).find_map(|_| {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (*seed >> 8) % self.count;
            let file = File::open(self.directory.join(slot.to_string())).ok()?;
            file.try_lock().ok().map(|()| Slot { _file: file })
        })
    }
}

/// A start for the order in which this process tries slots.
pub(crate) fn seed() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs().wrapping_mul(2_654_435_761)
}
