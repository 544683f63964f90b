//! The metadata of the files that a request writes: its headers `X-Metadata-NAME`, kept as extended attributes.

use std::collections::BTreeMap;
use std::ffi::CString;

use axum::http::HeaderMap;

use crate::error::ApiError;

/// The beginning of the headers.
const HEADER: &str = "x-metadata-";
/// The beginning of the names of the attributes.
const ATTRIBUTE: &str = "user.e2b.";
/// The longest key: the name of an attribute has at most 255 bytes.
const LONGEST_KEY: usize = 255 - ATTRIBUTE.len();
/// The most bytes of all metadata of a file, with the whole names of the attributes.
const LONGEST: usize = 4096;

/// Metadata, by its keys.
pub(super) type Metadata = BTreeMap<String, String>;

/// Reads the metadata of a request. The first of equal headers counts.
///
/// # Errors
/// When a key or value is too long, or has other signs than printable ones of ASCII.
pub(super) fn metadata_of(headers: &HeaderMap) -> Result<Metadata, ApiError> {
    let mut found = Metadata::new();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
        if key.is_empty() || key.len() > LONGEST_KEY {
            return Err(ApiError::bad(format!("a key of metadata has 1 to {LONGEST_KEY} bytes")));
        }
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        let value = value.filter(|value| value.bytes().all(|byte| matches!(byte, 0x20..=0x7e)));
        let value = value.ok_or_else(|| {
            ApiError::bad(format!("the value of the metadata `{key}` has signs that are not printable ASCII"))
        })?;
        found.insert(key.to_owned(), value.to_owned());
    }
    let length: usize = found.iter().map(|(key, value)| ATTRIBUTE.len() + key.len() + value.len()).sum();
    if length > LONGEST {
        return Err(ApiError::bad(format!("the metadata of a file has at most {LONGEST} bytes")));
    }
    Ok(found)
}

/// The extended attributes that keep metadata.
pub(super) fn attributes(metadata: &Metadata) -> Vec<(CString, Vec<u8>)> {
    let attribute = |(key, value): (&String, &String)| {
        Some((CString::new(format!("{ATTRIBUTE}{key}")).ok()?, value.as_bytes().to_vec()))
    };
    metadata.iter().filter_map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn of(pairs: &[(&str, &[u8])]) -> Result<Metadata, ApiError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        metadata_of(&headers)
    }

    #[test]
    fn headers_are_metadata() {
        let found =
            of(&[("X-Metadata-Author", b"me"), ("X-Metadata-Author", b"you"), ("X-Other", b"x")]).unwrap();
        assert_eq!(found, Metadata::from([("author".to_owned(), "me".to_owned())]));
        assert_eq!(attributes(&found), [(c"user.e2b.author".to_owned(), b"me".to_vec())]);
    }

    #[test]
    fn metadata_is_printable_and_short() {
        let long = format!("X-Metadata-{}", "k".repeat(LONGEST_KEY + 1));
        let many = [b'v'; LONGEST];
        for pair in [
            ("X-Metadata-", &b"x"[..]),
            ("X-Metadata-A", b"\xc3\xa4"),
            ("X-Metadata-A", b"a\tb"),
            (&long, b"x"),
            ("X-Metadata-A", &many),
        ] {
            assert!(of(&[pair]).is_err(), "{pair:?}");
        }
    }
}
