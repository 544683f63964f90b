//! Words and bytes as texts of requests.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Encodes a word as one part of a path or query.
pub fn encode_word(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    // `.` and `..` would not reach the route.
    if word.bytes().all(|byte| byte == b'.') { text.replace('.', "%2E") } else { text }
}

/// Encodes bytes for a field of JSON.
pub fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_part_of_a_path() {
        for (word, expected) in
            [("web-1.a_b", "web-1.a_b"), ("a/b?c", "a%2Fb%3Fc"), ("..", "%2E%2E"), ("é", "%C3%A9")]
        {
            assert_eq!(encode_word(word), expected);
        }
    }
}
