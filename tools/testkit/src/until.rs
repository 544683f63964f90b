//! Waits for conditions without an event.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The first pause between two looks, and the longest: a long wait looks rarely, since each look takes processor time.
const FIRST: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(20);

/// Looks again and again until a condition holds, at most this long; tells whether it holds. There is at least one
/// look.
pub fn until(limit: Duration, holds: impl FnMut() -> bool) -> bool {
    until_after(FIRST, limit, holds)
}

/// As [`until`], for a look that takes much processor time: the first pause is this long.
pub fn until_after(mut pause: Duration, limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
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

/// Longer than any awaited condition of a test takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
///
/// # Panics
/// With the name of the condition, if it does not hold within [`DEADLINE`].
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(until(DEADLINE, holds), "not within {DEADLINE:?}: {what}");
}

/// Prints why a test does not run, in the form that `.ci/run` searches for.
pub fn skip(reason: &str) {
    // Without `eprintln!`: a library prints nothing else.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: {reason}\n").as_bytes());
}
