//! Waiting for what can only be looked at.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The first pause between two looks, and the longest: who waits long looks rarely, for looks cost what others need.
const FIRST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(20);

/// Looks again and again until something holds, at most this long; says whether it does. It is looked at least once.
pub fn until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST;
    loop {
        if holds() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(pause.min(left));
        pause = (pause * 5 / 4).min(LONGEST);
    }
}
