//! Locks by id, which exist only while they are used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks by id.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

/// Above this number of entries, those without a user are removed.
const SWEEP: usize = 256;

impl Locks {
    /// Waits for the lock of this id.
    pub async fn lock(&self, id: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() > SWEEP {
                all.retain(|_, lock| lock.strong_count() > 0);
            }
            let known = all.get(id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                all.insert(id.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}
