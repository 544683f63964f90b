//! Decimal fields of kernel text files.

use rustix::process::Pid;

use crate::id::pid_from_raw;

/// Text from `/proc` that does not have the format of proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot find {field} in the text of `/proc/<pid>/{file}`")]
pub struct ParseError {
    /// The name of the file, such as `stat`.
    pub file: &'static str,
    /// The field that is missing or malformed.
    pub field: &'static str,
}

impl From<ParseError> for std::io::Error {
    fn from(error: ParseError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Reads an unsigned decimal number that fills all of `text`.
pub(crate) fn parse_unsigned(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Reads a decimal number, negative or not, that fills all of `text`.
pub(crate) fn parse_signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(rest) => i64::try_from(parse_unsigned(rest)?).ok().map(|n| -n),
        None => i64::try_from(parse_unsigned(text)?).ok(),
    }
}

/// Reads a pid that fills all of `text`; zero and negative numbers are no pids.
pub(crate) fn parse_pid(text: &[u8]) -> Option<Pid> {
    i32::try_from(parse_unsigned(text)?).ok().and_then(pid_from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_text_or_are_none() {
        assert_eq!(parse_unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_unsigned(b"18446744073709551616"), None);
        assert_eq!(parse_unsigned(b""), None);
        assert_eq!(parse_unsigned(b"1 "), None);
        assert_eq!(parse_signed(b"-1"), Some(-1));
        assert_eq!(parse_signed(b"--1"), None);
        assert_eq!(parse_pid(b"0"), None);
        assert_eq!(parse_pid(b"4194304").map(Pid::as_raw_pid), Some(4_194_304));
        assert_eq!(parse_pid(b"4294967297"), None);
    }
}
