//! Calendar times in UTC, in the format of RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penfold_state::time::format_rfc3339;

use crate::value;

/// The value of `--since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// A duration before now.
    Ago(Duration),
    /// A time, in nanoseconds since 1970.
    At(u64),
}

impl Since {
    /// The time in nanoseconds since 1970.
    pub(crate) fn nanoseconds(self) -> u64 {
        match self {
            Since::At(time) => time,
            Since::Ago(duration) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(now.saturating_sub(duration).as_nanos()).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The text is neither a duration nor a time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{0}` is not a time; accepted: a duration as in `10m`, or a time as in `2026-11-21T10:35:00Z`")]
pub(crate) struct NoTime(String);

const SECOND: u64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// Parses a duration before now, or a time.
pub(crate) fn since(given: &str) -> Result<Since, NoTime> {
    let ago = value::duration(given).ok().map(Since::Ago);
    ago.or_else(|| parse(given).map(Since::At)).ok_or_else(|| NoTime(given.to_owned()))
}

/// Formats milliseconds since 1970 as `2026-11-21T10:35:00Z`.
pub(crate) fn utc(ms: u64) -> String {
    let mut text = format_rfc3339(ms.saturating_mul(1_000_000));
    text.replace_range(19..29, "");
    text
}

/// Formats milliseconds since 1970 as `2026-11-21T10:35:00.000Z`.
pub(crate) fn utc_ms(ms: u64) -> String {
    let mut text = format_rfc3339(ms.saturating_mul(1_000_000));
    text.replace_range(23..29, "");
    text
}

/// Parses a time of the years 1970 to 2554.
fn parse(text: &str) -> Option<u64> {
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
        || penfold_state::time::gregorian_date(days) != (year, month, day)
    {
        return None;
    }
    let seconds = days * DAY + hour * 3600 + minute * 60 + second - offset(zone)?;
    let nanoseconds: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    u64::try_from(seconds).ok()?.checked_mul(SECOND)?.checked_add(nanoseconds)
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
    use penfold_state::time::gregorian_date;

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
        for time in [0, 1, 951_782_400 * SECOND, 1_795_257_300 * SECOND + 123_456_789, u64::MAX] {
            assert_eq!(parse(&format_rfc3339(time)), Some(time), "{}", format_rfc3339(time));
        }
        assert_eq!(format_rfc3339(1_795_257_300 * SECOND), "2026-11-21T10:35:00.000000000Z");
    }

    #[test]
    fn people_are_told_whole_seconds() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(4_102_444_799_999), "2099-12-31T23:59:59Z");
        assert_eq!(utc_ms(4_102_444_799_999), "2099-12-31T23:59:59.999Z");
        assert!(utc(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn a_time_may_have_a_zone_and_a_fraction() {
        let time = 1_795_257_300 * SECOND;
        for text in [
            "2026-11-21T10:35:00Z",
            "2026-11-21 11:35:00+01:00",
            "2026-11-21t05:05:00.0-05:30",
            "2026-11-21T10:34:60z",
        ] {
            assert_eq!(since(text).unwrap(), Since::At(time), "{text}");
        }
        assert_eq!(parse("2026-11-21T10:35:00.5Z"), Some(time + SECOND / 2));
        assert_eq!(since("90").unwrap(), Since::Ago(Duration::from_secs(90)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "soon",
            "2026-11-21",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T10:35:00",
            "2026-11-21T10:35:00.Z",
            "2026-11-21T10:35:00+1:00",
            "2026-11-21T10:35:00+01:0x",
            "+026-11-21T10:35:00Z",
            "1969-12-31T23:59:59Z",
            "9999-01-01T00:00:00Z",
            "2026-11-2é 10:35:00Z",
        ] {
            assert!(since(text).is_err(), "{text}");
        }
    }
}
