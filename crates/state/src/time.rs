//! Times and durations as the whole numbers in records and messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the whole milliseconds of a duration, at most `u64::MAX`.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
