//! Parts of a file, as requests name them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::sent_body::Sink;

/// The bytes that are read at one time.
const PART: usize = 64 << 10;

/// Reads `bytes=A-B`, `bytes=A-` or `bytes=-N` for a file of this size: the first offset, and the one after the last. `None` if the
/// text is none of these, or no such byte is in the file.
pub fn byte_range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('=')?.1.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse().ok() } else { None }
    };
    let (begin, end) = match (first, last) {
        ("", last) => (size.saturating_sub(number(last)?), size),
        (first, "") => (number(first)?, size),
        (first, last) => (number(first)?, number(last)?.saturating_add(1).min(size)),
    };
    (begin < end).then_some((begin, end))
}

/// Writes a part of a file to a body.
///
/// # Errors
/// When the file cannot be read, or has become shorter: then the body must not look complete.
pub fn send_range(file: &File, begin: u64, end: u64, sink: &mut Sink) -> io::Result<()> {
    let mut buffer = vec![0; PART];
    let mut offset = begin;
    while offset < end {
        let wanted = usize::try_from(end - offset).unwrap_or(PART).min(PART);
        let room = buffer.get_mut(..wanted).unwrap_or_default();
        let length = file.read_at(room, offset)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sink.write(room.get(..length).unwrap_or_default())?;
        offset += u64::try_from(length).unwrap_or(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_inside_the_file() {
        let of = |text: &str| byte_range(text, 10);
        assert_eq!(of("bytes=0-0"), Some((0, 1)));
        assert_eq!(of("bytes=3-"), Some((3, 10)));
        assert_eq!(of("bytes=-4"), Some((6, 10)));
        assert_eq!(of("bytes=-40"), Some((0, 10)));
        assert_eq!(of("bytes=5-99999"), Some((5, 10)));
        for text in [
            "bytes=10-",
            "bytes=5-4",
            "bytes=-0",
            "bytes=a-b",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
