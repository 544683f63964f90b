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

/// Longer than anything that a test waits for may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until something holds.
///
/// # Panics
/// With its name, when it does not hold within [`DEADLINE`].
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(until(DEADLINE, holds), "not within {DEADLINE:?}: {what}");
}

/// Says why a test does not run, in the words that the gate looks for.
pub fn skip(reason: &str) {
    // Not by `eprintln!`: a library prints nothing else.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {reason}\n").as_bytes());
}
