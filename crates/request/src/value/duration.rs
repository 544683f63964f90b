//! Durations: `500ms 10s 5m 1h30m 1d 0.3`.

use std::fmt;
use std::time::Duration;

use super::Invalid;

const ACCEPTED: &str = "`500ms`, `10s`, `5m`, `1h30m`, `1d`, or a number of seconds such as `0.3`";

const SECOND: u128 = 1_000_000_000;
const DAY: u128 = 86_400 * SECOND;

/// The maximum duration. A hundred years fit into 64-bit nanoseconds, so that a deadline cannot overflow a clock.
const LONGEST: u128 = 36_500 * DAY;

/// Units from long to short with their nanoseconds. Output uses the first name of a length.
const UNITS: [(&str, u128); 8] = [
    ("d", DAY),
    ("h", 3600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// Parses a duration: numbers with units in descending order, or a bare number of seconds. Decimals are accepted.
///
/// Fractions of a nanosecond round up, so that only a written zero is zero: zero means no limit.
pub fn duration(given: &str) -> Result<Duration, Invalid> {
    let refuse = |problem| Invalid::new(given, problem, ACCEPTED);
    if given.strip_prefix('-').is_some_and(|rest| parse(rest).is_ok()) {
        return Err(refuse("is negative"));
    }
    let nanoseconds = parse(given).map_err(|problem| {
        refuse(match problem {
            Problem::Form => "is not a duration",
            Problem::TooLong => "is longer than 100 years",
        })
    })?;
    let part = |value: u128| u64::try_from(value).map_err(|_| refuse("is longer than 100 years"));
    Ok(Duration::from_secs(part(nanoseconds / SECOND)?)
        .saturating_add(Duration::from_nanos(part(nanoseconds % SECOND)?)))
}

enum Problem {
    Form,
    TooLong,
}

fn parse(text: &str) -> Result<u128, Problem> {
    if is_number(text) {
        return within(scaled(text, SECOND)?);
    }
    let mut rest = text;
    let mut total = 0;
    let mut previous = u128::MAX;
    while !rest.is_empty() {
        let (number, tail) = split(rest, |c| !is_numeric(c));
        let (name, next) = split(tail, is_numeric);
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name).ok_or(Problem::Form)?;
        // `30m1h` and `5m5m` are more likely typing errors than durations.
        if *unit >= previous {
            return Err(Problem::Form);
        }
        total = within(total + scaled(number, *unit)?)?;
        previous = *unit;
        rest = next;
    }
    if previous == u128::MAX { Err(Problem::Form) } else { Ok(total) }
}

fn within(nanoseconds: u128) -> Result<u128, Problem> {
    if nanoseconds > LONGEST { Err(Problem::TooLong) } else { Ok(nanoseconds) }
}

fn split(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

fn is_numeric(character: char) -> bool {
    character.is_ascii_digit() || character == '.'
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_numeric)
}

/// A decimal number times a unit, in nanoseconds, rounded up.
fn scaled(number: &str, unit: u128) -> Result<u128, Problem> {
    /// The digits kept of a fraction: more than any unit has nanoseconds, and the product with a unit fits u128.
    const DIGITS: usize = 18;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err(Problem::Form);
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| Problem::TooLong)? };
    let (kept, cut) = fraction.split_at(fraction.len().min(DIGITS));
    let mut numerator: u128 = 0;
    let mut denominator: u128 = 1;
    for digit in kept.bytes() {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    if cut.bytes().any(|digit| digit != b'0') {
        numerator += 1;
    }
    Ok(u128::from(whole) * unit + (numerator * unit).div_ceil(denominator))
}

/// Formats a duration exactly, in the form that [`duration`] parses: `1h30m`.
#[derive(Clone, Copy, Debug)]
pub struct Exact(pub Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, unit) in UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}
