//! Waiting for what can only be looked at.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Looks every millisecond until something holds, at most this long; says whether it does. It is looked at least once.
pub fn until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
}
