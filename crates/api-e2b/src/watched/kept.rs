//! The watchers that clients ask for events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penfold_server::Engine;
use penfold_server::watched::WatchEnd;
use penfold_state::time::now_ms;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::watch::{Event, Watch, watch_error};
use crate::connect::{Code, RpcError};

/// The most watched directories of a sandbox.
const WATCHES: usize = 32;

/// Places of the sandbox and of the server for one watched directory.
pub(crate) type Places = [OwnedSemaphorePermit; 2];

/// A watcher, and what it holds.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// The id of its sandbox.
    sandbox: String,
    watch: Watch,
    /// Why no more events come.
    end: Option<WatchEnd>,
    used: Instant,
    /// Tells the task that waits for changes that the watcher is gone.
    removed: Arc<Notify>,
    /// Dropped after the watch.
    _places: Places,
}

impl Watcher {
    /// Reads the changes so far. Returns whether more can come.
    pub(crate) fn drain(&mut self) -> bool {
        if self.end.is_none() {
            self.end = self.watch.drain().err();
        }
        self.end.is_none()
    }

    /// Takes the events so far.
    ///
    /// # Errors
    /// When there are none, and events were lost.
    pub(crate) fn take(&mut self) -> Result<Vec<Event>, RpcError> {
        self.used = Instant::now();
        self.drain();
        let events = self.watch.take();
        match &self.end {
            // The events before the end come first.
            Some(end) if events.is_empty() && !matches!(end, WatchEnd::Gone) => {
                Err(watch_error("the directory", end))
            }
            _ => Ok(events),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.removed.notify_one();
    }
}

/// A watcher that a request or a task uses.
#[derive(Debug, Clone)]
pub(crate) struct Slot(Arc<Mutex<Watcher>>);

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Watcher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watchers of all sandboxes, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    slots: Mutex<HashMap<String, Slot>>,
    /// The places of each sandbox that has watched directories.
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Watchers {
    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the places of a sandbox.
    fn places_of(&self, sandbox: &str) -> Arc<Semaphore> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of other sandboxes are made again when they are needed.
        places.retain(|_, places| places.available_permits() < WATCHES || Arc::strong_count(places) > 1);
        let own = places.entry(sandbox.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(WATCHES)));
        Arc::clone(own)
    }

    /// Takes places for one more watched directory of a sandbox. If there are none, the watcher of the sandbox that was asked for longest
    /// ago ends.
    ///
    /// # Errors
    /// When all are in use.
    pub(crate) fn places(&self, engine: &Engine, sandbox: &str) -> Result<Places, RpcError> {
        let places = self.places_of(sandbox);
        loop {
            let own = Arc::clone(&places).try_acquire_owned().ok();
            if let Some((own, shared)) = own.zip(engine.watch_place()) {
                return Ok([own, shared]);
            }
            if !self.end_idlest(sandbox) {
                let message = "there are as many watched directories as there can be";
                return Err(RpcError::new(Code::ResourceExhausted, message));
            }
        }
    }

    /// Ends the watcher of a sandbox that was asked for longest ago. Returns whether there was one.
    fn end_idlest(&self, sandbox: &str) -> bool {
        let mut slots = self.slots();
        let used = slots.iter().filter_map(|(id, slot)| {
            let watcher = slot.0.try_lock().ok()?;
            (watcher.sandbox == sandbox).then_some((watcher.used, id))
        });
        let Some(idlest) = used.min_by_key(|(used, _)| *used).map(|(_, id)| id.clone()) else { return false };
        let slot = slots.remove(&idlest);
        drop(slots);
        // A request that still has it drops it soon.
        slot.is_some_and(|slot| Arc::into_inner(slot.0).is_some())
    }

    /// Keeps a watch of a sandbox. Returns its id, and what is notified when the watcher is gone.
    pub(crate) fn keep(&self, sandbox: &str, watch: Watch, places: Places) -> (String, Arc<Notify>) {
        let (id, removed) = (new_id(), Arc::new(Notify::new()));
        let watcher = Watcher {
            sandbox: sandbox.to_owned(),
            watch,
            end: None,
            used: Instant::now(),
            removed: Arc::clone(&removed),
            _places: places,
        };
        self.slots().insert(id.clone(), Slot(Arc::new(Mutex::new(watcher))));
        (id, removed)
    }

    /// Removes a watcher.
    pub(crate) fn remove(&self, id: &str) -> Option<Slot> {
        self.slots().remove(id)
    }

    /// Returns a watcher.
    pub(crate) fn get(&self, id: &str) -> Option<Slot> {
        self.slots().get(id).cloned()
    }

    /// Returns a watcher of a sandbox.
    ///
    /// # Errors
    /// When the sandbox has none with this id.
    pub(crate) fn find(&self, sandbox: &str, id: &str) -> Result<Slot, RpcError> {
        let slot = self.slots().get(id).cloned();
        let own = slot.filter(|slot| slot.lock().sandbox == sandbox);
        own.ok_or_else(|| RpcError::new(Code::NotFound, format!("watcher with id {id} not found")))
    }
}

/// A new id of a watcher. Another server makes other ones.
fn new_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("w{}-{}", NEXT.fetch_add(1, Ordering::Relaxed), now_ms())
}
