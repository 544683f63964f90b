//! Sizes: `64K 512M 2G`.

use std::fmt;

use super::Invalid;

const ACCEPTED: &str = "a number of bytes, or one with a unit: `64K`, `512M`, `2G`, `1T`";

/// Units from large to small; powers of 1024, as in `ls -h` and docker.
const UNITS: [(&str, u64); 5] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

/// Parses a size in bytes: a whole number with a unit `K M G T` or `KiB MiB GiB TiB`, ignoring case.
pub fn size(given: &str) -> Result<u64, Invalid> {
    let end = given.find(|c: char| !c.is_ascii_digit()).unwrap_or(given.len());
    let (number, name) = given.split_at(end);
    let unit = UNITS.iter().find(|(unit, _)| {
        name.eq_ignore_ascii_case(unit)
            || (!unit.is_empty()
                && name.len() == 3
                && name.get(..1).is_some_and(|first| first.eq_ignore_ascii_case(unit))
                && name.get(1..).is_some_and(|rest| rest.eq_ignore_ascii_case("ib")))
    });
    match (number.is_empty(), unit) {
        (false, Some((_, factor))) => number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
            .ok_or_else(|| Invalid::new(given, "is larger than 16 EiB", ACCEPTED)),
        _ => Err(Invalid::new(given, "is not a size", ACCEPTED)),
    }
}

/// Formats a size exactly, in the largest unit that divides it.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The size with its unit in full, such as `512 MiB`, for sentences.
    pub fn spelled(self) -> String {
        let text = self.to_string();
        match text.strip_suffix(|last: char| last.is_ascii_alphabetic()) {
            Some(number) => format!("{number} {}iB", text.trim_start_matches(|c: char| c.is_ascii_digit())),
            None => format!("{text} bytes"),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 >= factor && self.0.is_multiple_of(factor);
        let (name, factor) = UNITS.into_iter().find(|(_, factor)| fits(*factor)).unwrap_or(("", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}
