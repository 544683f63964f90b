//! The tokens of callers.

use std::hint::black_box;

/// The tokens of callers; a token is known by its place in the list.
#[derive(Clone, Default)]
pub struct Tokens(Vec<Vec<u8>>);

/// Text that is no list of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokens {
    /// There is no token.
    #[error("it has no token; a token is a line of at least {SHORTEST} characters")]
    Missing,
    /// A line is too short or too long.
    #[error("line {0}: a token has {SHORTEST} to {LONGEST} characters")]
    Length(usize),
    /// A line has a character that cannot be in a URL.
    #[error("line {0}: a token consists of letters, digits, `-`, `.`, `_` and `~`")]
    Character(usize),
}

/// Less could be guessed.
const SHORTEST: usize = 16;
/// More does not fit a header that other limits allow.
const LONGEST: usize = 512;

impl Tokens {
    /// Reads a list of tokens: one on each line; empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// When there is no token, or a token that cannot be part of a URL.
    pub fn parse(text: &[u8]) -> Result<Tokens, InvalidTokens> {
        let mut tokens: Vec<Vec<u8>> = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
            if !line.iter().all(is_plain) {
                return Err(InvalidTokens::Character(index + 1));
            }
            if !(SHORTEST..=LONGEST).contains(&line.len()) {
                return Err(InvalidTokens::Length(index + 1));
            }
            if !tokens.iter().any(|token| token == line) {
                tokens.push(line.to_owned());
            }
        }
        if tokens.is_empty() { Err(InvalidTokens::Missing) } else { Ok(Tokens(tokens)) }
    }

    /// Tells whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the place of a token, from 1. The time depends on the length of `given` and the number of tokens only.
    pub fn find(&self, given: &[u8]) -> Option<usize> {
        let mut found = 0;
        for (index, token) in self.0.iter().enumerate() {
            let place = if is_equal(token, given) { index + 1 } else { 0 };
            found = black_box(found | place);
        }
        (found > 0 && found <= self.0.len()).then_some(found)
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

/// Compares without a branch that depends on a byte.
fn is_equal(token: &[u8], given: &[u8]) -> bool {
    let mut differs = u8::from(token.len() != given.len());
    for (byte, own) in given.iter().zip(token.iter().cycle()) {
        differs = black_box(differs | (byte ^ own));
    }
    black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_whole_and_exact() {
        let tokens = Tokens::parse(b"# ours\n0123456789abcdef\n\n  fedcba9876543210~  \r\n").unwrap();
        assert_eq!(tokens.find(b"0123456789abcdef"), Some(1));
        assert_eq!(tokens.find(b"fedcba9876543210~"), Some(2));
        for wrong in
            [&b""[..], b"0", b"0123456789abcde", b"0123456789abcdef0", b"0123456789abcdeg", b"# ours"]
        {
            assert_eq!(tokens.find(wrong), None);
        }
        let twice = b"0123456789abcdef0123456789abcdef";
        assert_eq!(tokens.find(twice), None);
        assert_eq!(Tokens::default().find(b""), None);
    }

    #[test]
    fn equal_tokens_on_two_lines_are_one() {
        let tokens = Tokens::parse(b"0123456789abcdef\n0123456789abcdef\n").unwrap();
        assert!(tokens.find(b"0123456789abcdef").is_some());
    }

    #[test]
    fn a_file_without_a_good_token_is_refused() {
        assert_eq!(Tokens::parse(b"\n# none\n").unwrap_err(), InvalidTokens::Missing);
        assert_eq!(Tokens::parse(b"\nshort").unwrap_err(), InvalidTokens::Length(2));
        assert_eq!(Tokens::parse(b"0123456789abcde/").unwrap_err(), InvalidTokens::Character(1));
        assert_eq!(Tokens::parse(b"0123456789abcde\0").unwrap_err(), InvalidTokens::Character(1));
    }

    #[test]
    fn tokens_are_not_printed() {
        assert_eq!(format!("{:?}", Tokens::parse(b"0123456789abcdef").unwrap()), "1 tokens");
    }
}
