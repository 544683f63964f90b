//! A JSON string that is written in parts.

use std::fmt::Write as _;
use std::io;

/// Writes one JSON string from bytes that come in parts. Bytes that are not UTF-8 become U+FFFD, also where a character
/// is divided between two parts. Only an incomplete character is kept between the parts.
#[derive(Debug, Default)]
pub(crate) struct JsonString {
    decoder: Utf8,
    text: String,
}

impl JsonString {
    /// Returns the content of the string for these bytes, without quotation marks.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> String {
        self.text.clear();
        self.decoder.decode(bytes, &mut self.text);
        escaped(&self.text)
    }

    /// Returns the content for an incomplete last character.
    pub(crate) fn end(&mut self) -> String {
        self.text.clear();
        self.decoder.end(&mut self.text);
        escaped(&self.text)
    }
}

/// Converts bytes that come in parts to text. Bytes that are not UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// The beginning of a character, at most three bytes.
    begun: Vec<u8>,
}

impl Utf8 {
    /// Appends the text of these bytes, without an incomplete last character.
    pub(crate) fn decode(&mut self, mut bytes: &[u8], text: &mut String) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.begun.is_empty() {
                break;
            }
            self.begun.push(first);
            match std::str::from_utf8(&self.begun) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.begun.clear();
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => bytes = rest,
                // The new byte does not continue the character.
                Err(_) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.begun.clear();
                }
            }
        }
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let is_begun = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_begun && std::ptr::eq(invalid.as_ptr_range().end, bytes.as_ptr_range().end) {
                self.begun.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Appends the replacement of an incomplete last character.
    pub(crate) fn end(&mut self, text: &mut String) {
        if !self.begun.is_empty() {
            self.begun.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Escapes the characters that JSON does not permit in a string.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out
}

/// Writes a value as JSON.
pub(crate) fn json_body<T: serde::Serialize + ?Sized>(value: &T) -> io::Result<String> {
    Ok(serde_json::to_string(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_parts(bytes: &[u8], size: usize) -> String {
        let mut string = JsonString::default();
        let mut text: String = bytes.chunks(size).map(|part| string.part(part)).collect();
        text.push_str(&string.end());
        text
    }

    #[test]
    fn a_string_in_parts_is_the_lossy_string_of_the_whole() {
        let valid = "a\"\\\n\r\t\u{1}\u{0}é€😀z".as_bytes();
        let cases: [&[u8]; 8] = [
            valid,
            b"",
            b"\xff",
            b"a\xf0\x9f\x98",
            b"\xf0\x9f\x98a\xe2\x82",
            b"\xe2\x82\xe2\x82\xac\xc3",
            b"\xf0\xf0\x9f\x98\x80\x80",
            b"\xed\xa0\x80",
        ];
        for bytes in cases {
            let whole = String::from_utf8_lossy(bytes).into_owned();
            for size in 1..6 {
                let text = format!("\"{}\"", in_parts(bytes, size));
                assert_eq!(serde_json::from_str::<String>(&text).unwrap(), whole, "{bytes:?} by {size}");
            }
        }
    }
}
