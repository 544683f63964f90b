//! Where things with ids are: in which sandbox, as which exec. The labels on disk are the truth; this is a cache of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// The sandbox and the number of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The id of the sandbox.
    pub sandbox: String,
    /// The number of the exec.
    pub number: u32,
}

/// Where things with ids are.
#[derive(Debug, Default)]
pub struct Places(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    spots: HashMap<String, Option<Spot>>,
    /// Whether all on disk were read.
    is_complete: bool,
}

/// An id that is reserved until its exec runs. Dropped before, it is free again.
#[derive(Debug)]
pub struct Reserved<'a> {
    places: &'a Places,
    id: String,
}

impl Places {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where something was, if that is known.
    pub fn get(&self, id: &str) -> Option<Spot> {
        self.known().spots.get(id).cloned().flatten()
    }

    /// Tells whether all on disk were read once.
    pub fn is_complete(&self) -> bool {
        self.known().is_complete
    }

    /// Takes over all on disk.
    pub fn fill(&self, all: impl IntoIterator<Item = (String, Spot)>) {
        let mut known = self.known();
        known.spots.retain(|_, spot| spot.is_none());
        for (id, spot) in all {
            known.spots.entry(id).or_insert(Some(spot));
        }
        known.is_complete = true;
    }

    /// Forgets an exec that is gone from the disk.
    pub fn forget(&self, id: &str, spot: &Spot) {
        let mut known = self.known();
        if known.spots.get(id).is_some_and(|known| known.as_ref() == Some(spot)) {
            known.spots.remove(id);
        }
    }

    /// Returns the sandboxes in which something is.
    pub fn sandboxes(&self) -> HashSet<String> {
        let known = self.known();
        let sandboxes: HashSet<&String> = known.spots.values().flatten().map(|spot| &spot.sandbox).collect();
        sandboxes.into_iter().cloned().collect()
    }

    /// Forgets the execs of sandboxes that are gone from the disk, and returns their ids.
    pub fn forget_sandboxes(&self, is_gone: impl Fn(&str) -> bool) -> Vec<(String, Spot)> {
        let is_there =
            |_: &String, spot: &mut Option<Spot>| spot.as_ref().is_some_and(|spot| is_gone(&spot.sandbox));
        self.known().spots.extract_if(is_there).filter_map(|(id, spot)| Some((id, spot?))).collect()
    }

    /// Reserves an id for a new exec; `None` if one has it.
    pub fn reserve(&self, id: &str) -> Option<Reserved<'_>> {
        let mut known = self.known();
        if known.spots.contains_key(id) {
            return None;
        }
        known.spots.insert(id.to_owned(), None);
        Some(Reserved { places: self, id: id.to_owned() })
    }
}

impl Reserved<'_> {
    /// Notes where the exec runs.
    pub fn settle(self, spot: Spot) {
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
