//! Where processes are: in which sandbox, as which exec. The labels on disk are the truth; this is a cache of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::ids::ProcessId;

/// The sandbox and the number of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) sandbox: String,
    pub(crate) number: u32,
}

/// Where processes are.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    spots: HashMap<String, Option<Spot>>,
    /// Whether all processes on disk were read.
    is_complete: bool,
}

/// An id that is reserved until its process runs. Dropped before, it is free again.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    places: &'a Places,
    id: String,
}

impl Places {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where a process was, if that is known.
    pub(crate) fn get(&self, id: &str) -> Option<Spot> {
        self.known().spots.get(id).cloned().flatten()
    }

    /// Tells whether all processes on disk were read once.
    pub(crate) fn is_complete(&self) -> bool {
        self.known().is_complete
    }

    /// Takes over all processes on disk.
    pub(crate) fn fill(&self, all: impl IntoIterator<Item = (String, Spot)>) {
        let mut known = self.known();
        known.spots.retain(|_, spot| spot.is_none());
        for (id, spot) in all {
            known.spots.entry(id).or_insert(Some(spot));
        }
        known.is_complete = true;
    }

    /// Forgets a process that is gone from the disk.
    pub(crate) fn forget(&self, id: &str, spot: &Spot) {
        let mut known = self.known();
        if known.spots.get(id).is_some_and(|known| known.as_ref() == Some(spot)) {
            known.spots.remove(id);
        }
    }

    /// Forgets the processes of a sandbox that is gone from the disk, and returns their ids.
    pub(crate) fn forget_sandbox(&self, sandbox: &str) -> Vec<String> {
        let is_there =
            |_: &String, spot: &mut Option<Spot>| spot.as_ref().is_some_and(|spot| spot.sandbox == sandbox);
        self.known().spots.extract_if(is_there).map(|(id, _)| id).collect()
    }

    /// Reserves an id for a new process; `None` if a process has it.
    pub(crate) fn reserve(&self, id: &ProcessId) -> Option<Reserved<'_>> {
        let mut known = self.known();
        if known.spots.contains_key(id.as_str()) {
            return None;
        }
        known.spots.insert(id.as_str().to_owned(), None);
        Some(Reserved { places: self, id: id.as_str().to_owned() })
    }
}

impl Reserved<'_> {
    /// Notes where the process runs.
    pub(crate) fn settle(self, spot: Spot) {
        self.places.known().spots.insert(self.id.clone(), Some(spot));
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut known = self.places.known();
        if known.spots.get(&self.id).is_some_and(Option::is_none) {
            known.spots.remove(&self.id);
        }
    }
}
