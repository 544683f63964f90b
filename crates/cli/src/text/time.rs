//! Calendar times in UTC, in the format of RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penfold_state::time::{format_rfc3339, parse_rfc3339};

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

/// Parses a duration before now, or a time.
pub(crate) fn since(given: &str) -> Result<Since, NoTime> {
    let ago = value::duration(given).ok().map(Since::Ago);
    ago.or_else(|| parse_rfc3339(given).map(Since::At)).ok_or_else(|| NoTime(given.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_whole_seconds() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(4_102_444_799_999), "2099-12-31T23:59:59Z");
        assert_eq!(utc_ms(4_102_444_799_999), "2099-12-31T23:59:59.999Z");
        assert!(utc(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn a_time_may_have_a_zone_and_a_fraction() {
        let time = 1_795_257_300_000_000_000;
        for text in [
            "2026-11-21T10:35:00Z",
            "2026-11-21 11:35:00+01:00",
            "2026-11-21t05:05:00.0-05:30",
            "2026-11-21T10:34:60z",
        ] {
            assert_eq!(since(text).unwrap(), Since::At(time), "{text}");
        }
        assert_eq!(since("2026-11-21T10:35:00.5Z").unwrap(), Since::At(time + 500_000_000));
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
