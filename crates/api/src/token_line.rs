//! A line of a file with tokens, as servers and clients read it.

/// The shortest token. Less could be guessed.
pub const SHORTEST_TOKEN: usize = 16;
/// The longest token. More does not fit a header that other limits allow.
pub const LONGEST_TOKEN: usize = 512;

/// A line of a file with tokens: `TOKEN`, or `NAME TOKEN`, and then words that say what the token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLine<'a> {
    /// The name of the tenant, if the line has one.
    pub name: Option<&'a str>,
    /// The token.
    pub token: &'a str,
    /// The words after the token.
    pub options: Vec<&'a str>,
}

impl TokenLine<'_> {
    /// Reads a line; `None` if it is empty or a comment.
    pub fn parse(line: &str) -> Option<TokenLine<'_>> {
        let mut words = line.split_ascii_whitespace().peekable();
        let first = words.next().filter(|word| !word.starts_with('#'))?;
        // The options are shorter than a token, or have a character that no token has.
        let (name, token) = match words.next_if(|word| is_token(word)) {
            Some(token) => (Some(first), token),
            None => (None, first),
        };
        Some(TokenLine { name, token, options: words.collect() })
    }
}

/// Tells whether a word can be a token: it can be part of a URL.
fn is_token(word: &str) -> bool {
    (SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&word.len()) && word.bytes().all(is_token_byte)
}

/// Tells whether a token can have this byte.
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_token_and_perhaps_a_name_and_options() {
        let token = "0123456789abcdef";
        let read = |line| TokenLine::parse(line).map(|line| (line.name, line.token, line.options));
        assert_eq!(read("0123456789abcdef"), Some((None, token, vec![])));
        assert_eq!(read("  0123456789abcdef read-only"), Some((None, token, vec!["read-only"])));
        assert_eq!(read("alice 0123456789abcdef"), Some((Some("alice"), token, vec![])));
        let both = read("a-name-with-16-letters 0123456789abcdef\tadmin max-sandboxes=100000000");
        assert_eq!(
            both,
            Some((Some("a-name-with-16-letters"), token, vec!["admin", "max-sandboxes=100000000"]))
        );
        assert_eq!((read(""), read(" # alice 0123456789abcdef")), (None, None));
    }
}
