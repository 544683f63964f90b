//! Trees that stay watched between two requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penfold_server::watched::{Tree, TreeRequest};
use tokio::sync::OwnedSemaphorePermit;

/// A tree that stays watched.
#[derive(Debug)]
pub(crate) struct KeptTree {
    /// The id in versions.
    pub(crate) id: String,
    pub(crate) tree: Tree,
    /// The number of changes since the watch began.
    pub(crate) cursor: u64,
    /// The time of the latest request.
    pub(crate) used: Instant,
    /// Dropped after the tree.
    pub(crate) _places: [OwnedSemaphorePermit; 2],
}

/// Where the tree of one request is; empty if it is not watched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<KeptTree>>>);

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<KeptTree>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the latest request, which is now while one is answered; `None` if the slot is empty.
    pub(crate) fn used(&self) -> Option<Instant> {
        match self.0.try_lock() {
            Ok(kept) => kept.as_ref().map(|kept| kept.used),
            Err(_) => Some(Instant::now()),
        }
    }
}

/// The trees that stay watched, by what clients asked for.
#[derive(Debug, Default)]
pub(crate) struct KeptTrees(Mutex<HashMap<TreeRequest, Slot>>);

impl KeptTrees {
    fn slots(&self) -> MutexGuard<'_, HashMap<TreeRequest, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot for a request.
    pub(crate) fn slot(&self, request: &TreeRequest) -> Slot {
        self.slots().entry(request.clone()).or_default().clone()
    }

    /// Removes the slot for a request, if it is this one. The tree stays watched until the slot is emptied.
    pub(crate) fn remove(&self, request: &TreeRequest, slot: &Slot) {
        let mut slots = self.slots();
        if slots.get(request).is_some_and(|own| Arc::ptr_eq(&own.0, &slot.0)) {
            slots.remove(request);
        }
    }

    /// Ends the watch that no request has used for longest. Returns whether there was one.
    pub(crate) fn end_idlest(&self) -> bool {
        let mut slots = self.slots();
        let used = slots.iter().filter_map(|(request, slot)| Some((slot.used()?, request)));
        let Some(idlest) = used.min_by_key(|(used, _)| *used).map(|(_, request)| request.clone()) else {
            return false;
        };
        let slot = slots.remove(&idlest);
        drop(slots);
        slot.and_then(|slot| slot.0.try_lock().ok()?.take()).is_some()
    }
}
