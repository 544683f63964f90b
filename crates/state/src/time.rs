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

/// Parses a time of the years 1970 to 2554 into nanoseconds since 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = (text.get(..10)?, text.get(10..)?);
    let time = time.strip_prefix(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, rest) = (time.get(..8)?, time.get(8..)?);
    let [hour, minute, second] = numbers(clock, ':')?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("0", rest),
    };
    let days = days(year, month, day);
    // A leap second, 60, becomes the first second of the next minute.
    if hour > 23
        || minute > 59
        || second > 60
        || fraction.is_empty()
        || gregorian_date(days) != (year, month, day)
    {
        return None;
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    let nanoseconds: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    u64::try_from(seconds).ok()?.checked_mul(NANOSECONDS)?.checked_add(nanoseconds)
}

/// Parses three numbers with a fixed number of digits each.
fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let mut parts = text.split(between);
    let mut next =
        || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok();
    let numbers = [next()?, next()?, next()?];
    parts.next().is_none().then_some(numbers)
}

/// The offset of a time zone from UTC, in seconds.
fn offset(zone: &str) -> Option<i64> {
    let (sign, clock) = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => return Some(0),
        ("+", clock) => (1, clock),
        ("-", clock) => (-1, clock),
        _ => return None,
    };
    let (hours, minutes) = clock.split_once(':').filter(|_| clock.len() == 5)?;
    let [hours, minutes, _] = numbers(&format!("{hours}:{minutes}:0"), ':')?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// The days from 1970 to a Gregorian date. The year starts in March here, so that a leap day is its last day.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days_are_each_others_way_back() {
        let mut last = (1969, 12, 31);
        for day in 0..220_000 {
            let next = gregorian_date(day);
            assert_eq!(days(next.0, next.1, next.2), day);
            assert!(next > last && (next.2 == 1 || next.2 == last.2 + 1), "{last:?} {next:?}");
            last = next;
        }
        assert_eq!(
            (gregorian_date(0), gregorian_date(11_016), gregorian_date(20_778)),
            ((1970, 1, 1), (2000, 2, 29), (2026, 11, 21))
        );
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for time in [0, 1, 951_782_400 * NANOSECONDS, 1_795_257_300 * NANOSECONDS + 123_456_789, u64::MAX] {
            assert_eq!(parse_rfc3339(&format_rfc3339(time)), Some(time), "{}", format_rfc3339(time));
        }
        assert_eq!(format_rfc3339(1_795_257_300 * NANOSECONDS), "2026-11-21T10:35:00.000000000Z");
    }
}
