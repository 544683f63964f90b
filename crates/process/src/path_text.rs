//! Paths as texts: each path has one, and each text is one path again.
//!
//! A path is bytes, and JSON has texts only. serde's own form of a [`PathBuf`] is an error for a path that is not UTF-8, and one such path of a
//! stranger loses the whole document. So a structure that is serialised has its paths `with` this module:
//!
//! ```
//! # use std::path::PathBuf;
//! #[derive(serde::Serialize)]
//! struct Stray {
//!     #[serde(with = "penfold_process::path_text")]
//!     directory: Option<PathBuf>,
//! }
//! ```
//!
//! A path that is UTF-8 is written as it is. Each byte of another path that is no part of a character is written as `�` (U+FFFD) and two
//! hexadecimal digits: `/tmp/caf�e9`. So are the three bytes of a `�` that two such digits follow in the path itself.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The sign before the digits of a byte.
const SIGN: char = char::REPLACEMENT_CHARACTER;

/// Writes a path, or several, as texts; it never fails by itself.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<P: Paths + ?Sized, S: Serializer>(paths: &P, serializer: S) -> Result<S::Ok, S::Error> {
    paths.write(serializer)
}

/// Reads what [`serialize`] has written.
///
/// # Errors
/// When it is no text.
pub fn deserialize<'de, P: OwnedPaths, D: Deserializer<'de>>(deserializer: D) -> Result<P, D::Error> {
    P::read(deserializer)
}

/// What consists of paths.
pub trait Paths {
    /// Writes the paths as texts.
    ///
    /// # Errors
    /// Those of the serializer.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

/// [`Paths`] that can be read.
pub trait OwnedPaths: Paths + Sized {
    /// Reads the texts.
    ///
    /// # Errors
    /// When there are no texts.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// A path that is written as a text.
struct Written<P>(P);

impl<P: AsRef<Path>> Serialize for Written<P> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let path = self.0.as_ref();
        match path.to_str() {
            Some(text) if !text.contains(SIGN) => serializer.serialize_str(text),
            _ => serializer.serialize_str(&path_text(path)),
        }
    }
}

impl<'de> Deserialize<'de> for Written<PathBuf> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text).map(Written)
    }
}

struct Text;

impl<'de> Visitor<'de> for Text {
    type Value = PathBuf;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("path string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PathBuf, E> {
        Ok(path_of_text(text))
    }

    /// Sessions of earlier versions wrote a path that is not UTF-8 as a list of bytes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<PathBuf, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = sequence.next_element()? {
            bytes.push(byte);
        }
        Ok(OsString::from_vec(bytes).into())
    }
}

impl Paths for PathBuf {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written(self).serialize(serializer)
    }
}

impl OwnedPaths for PathBuf {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Written::deserialize(deserializer)?.0)
    }
}

impl Paths for &Path {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written(self).serialize(serializer)
    }
}

impl Paths for Option<PathBuf> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Written).serialize(serializer)
    }
}

impl OwnedPaths for Option<PathBuf> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Written<PathBuf>>::deserialize(deserializer)?.map(|path| path.0))
    }
}

impl Paths for Vec<PathBuf> {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Written))
    }
}

impl OwnedPaths for Vec<PathBuf> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Written<PathBuf>>::deserialize(deserializer)?.into_iter().map(|path| path.0).collect())
    }
}

/// Returns the text of a path, as the documents have it.
#[must_use]
pub fn path_text(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        let mut rest = valid;
        while let Some(at) = rest.find(SIGN) {
            let (before, after) = rest.split_at(at + SIGN.len_utf8());
            text.push_str(&before[..at]);
            if byte_of_digits(after).is_some() {
                push_bytes(&mut text, &before.as_bytes()[at..]);
            } else {
                text.push(SIGN);
            }
            rest = after;
        }
        text.push_str(rest);
        push_bytes(&mut text, chunk.invalid());
    }
    text
}

fn push_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{SIGN}{byte:02x}");
    }
}

fn byte_of_digits(text: &str) -> Option<u8> {
    let digits = text.get(..2)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.bytes().all(is_digit).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns the path of a text.
#[must_use]
pub fn path_of_text(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SIGN) {
        let after = &rest[at + SIGN.len_utf8()..];
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        if let Some(byte) = byte_of_digits(after) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.extend_from_slice(&rest.as_bytes()[at..at + SIGN.len_utf8()]);
            rest = after;
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use proptest::prelude::*;

    use super::*;

    fn path(bytes: &[u8]) -> &Path {
        Path::new(OsStr::from_bytes(bytes))
    }

    /// spec: 8.19
    #[test]
    fn bytes_that_are_no_characters_are_written_as_digits() {
        for (bytes, text) in [
            (&b"/tmp/a\\xff b"[..], "/tmp/a\\xff b"),
            ("/tmp/ä�".as_bytes(), "/tmp/ä�"),
            (b"/tmp/caf\xe9", "/tmp/caf�e9"),
            (b"\xf0\x9f", "�f0�9f"),
            ("/�ff".as_bytes(), "/�ef�bf�bdff"),
        ] {
            assert_eq!(path_text(path(bytes)), text);
            assert_eq!(path_of_text(text), path(bytes));
        }
    }

    proptest! {
        /// spec: 8.19
        #[test]
        fn a_path_comes_back_as_it_was(
            pieces in prop::collection::vec(
                prop_oneof![prop::collection::vec(any::<u8>(), 0..4), Just("�".into()), Just("�f".into()), Just("0e".into())],
                0..8,
            ),
        ) {
            let bytes = pieces.concat();
            prop_assert_eq!(path_of_text(&path_text(path(&bytes))), path(&bytes));
        }
    }
}
