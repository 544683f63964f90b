//! Key sequences: `ctrl-p,ctrl-q`, in the notation of docker and podman.

use super::Invalid;

const ACCEPTED: &str = "keys such as `ctrl-p,ctrl-q` or `ctrl-x,d`; empty for none";

/// The bytes that a terminal sends for a key sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys(pub(crate) Vec<u8>);

/// Parses keys: single characters, and `ctrl-` with a lower-case letter or one of `@[\\]^_`.
pub(crate) fn keys(given: &str) -> Result<Keys, Invalid> {
    let key = |word: &str| match (word.strip_prefix("ctrl-").map(str::as_bytes), word.as_bytes()) {
        // With Ctrl a terminal keeps only the lower five bits.
        (Some([key @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')]), _) => Some(key & 0x1f),
        (None, [key]) if key.is_ascii_graphic() => Some(*key),
        _ => None,
    };
    if given.is_empty() {
        return Ok(Keys(Vec::new()));
    }
    let all: Option<Vec<u8>> = given.split(',').map(key).collect();
    all.map(Keys).ok_or_else(|| Invalid::new(given, "contains an unknown key", ACCEPTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_docker_reads_them() {
        let read = |given| keys(given).ok().map(|keys| keys.0);
        assert_eq!(read("ctrl-p,ctrl-q"), Some(vec![0x10, 0x11]));
        assert_eq!(read("ctrl-@,ctrl-[,ctrl-_,a,A"), Some(vec![0, 0x1b, 0x1f, b'a', b'A']));
        assert_eq!(read(""), Some(vec![]));
        for wrong in ["ctrl-", "ctrl-P", "ctrl-1", "ab", "a,", ",", "é", " "] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
