//! Times and durations as the whole numbers in records and messages.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    whole_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the whole milliseconds of a duration, at most `u64::MAX`.
pub fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns nanoseconds since 1970 as `2026-11-21T10:35:00.000000000Z`. The length is constant, so that columns align.
pub fn format_rfc3339(time: u64) -> String {
    let seconds = time / NANOSECONDS;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = gregorian_date(i64::try_from(days).unwrap_or(0));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = String::with_capacity(30);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z",
        time % NANOSECONDS
    );
    text
}

const NANOSECONDS: u64 = 1_000_000_000;

/// Returns the Gregorian date for a number of days since 1970.
pub fn gregorian_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month < 3), month, day)
}
