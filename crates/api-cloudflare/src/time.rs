//! Times as JavaScript writes them.

use penfold_state::time::now_ms;

/// The time of this call.
pub(crate) fn current_time() -> String {
    iso_time(now_ms())
}

/// Formats milliseconds since 1970 as `2026-11-21T10:35:00.000Z`.
pub(crate) fn iso_time(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Converts days since 1970 to a date of the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // A year that begins in March has its leap day at its end.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_javascript_does() {
        assert_eq!(iso_time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso_time(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(iso_time(1_740_787_199_999), "2025-02-28T23:59:59.999Z");
        assert_eq!(iso_time(1_795_257_300_001), "2026-11-21T10:35:00.001Z");
    }
}
