//! The heads of requests as they were sent. hyper drops `Content-Length` beside `Transfer-Encoding`, and tells nobody: other
//! servers may take the length and read another request.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, header};

/// The bytes of a connection, from the next head on that hyper has not passed on yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawHeads(Arc<Mutex<Unread>>);

#[derive(Debug, Default)]
struct Unread {
    bytes: Vec<u8>,
    /// The bytes of a body that will still come.
    body: u64,
}

impl RawHeads {
    /// Keeps bytes that hyper reads.
    pub(crate) fn read(&self, bytes: &[u8]) {
        let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_body = usize::try_from(unread.body).map_or(bytes.len(), |body| body.min(bytes.len()));
        unread.body -= u64::try_from(of_body).unwrap_or(unread.body);
        unread.bytes.extend_from_slice(&bytes[of_body..]);
    }

    /// No request follows: nothing more is kept.
    pub(crate) fn end(&self) {
        let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *unread = Unread { bytes: Vec::new(), body: u64::MAX };
    }

    /// Takes the next head, which hyper has read as these headers and a body of this length. Returns whether its body has a
    /// length and a transfer coding.
    pub(crate) fn has_two_lengths(&self, headers: &HeaderMap, body: u64) -> bool {
        let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut unread.bytes);
        if headers.contains_key(header::TRANSFER_ENCODING) {
            // The connection is closed after this request: nothing behind its head is another one.
            unread.body = u64::MAX;
            return lines(&bytes).any(is_length);
        }
        let head: usize = lines(&bytes).map(<[u8]>::len).sum();
        unread.body = body;
        drop(unread);
        self.read(&bytes[head..]);
        false
    }
}

/// The lines of a head with their ends, to the empty one at its end. Empty lines before the first one belong to it.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_empty = |line: &[u8]| matches!(line, b"\n" | b"\r\n");
    let mut has_begun = false;
    let mut is_over = false;
    bytes.split_inclusive(|&byte| byte == b'\n').take_while(move |line| {
        let is_in = !is_over;
        is_over = has_begun && is_empty(line);
        has_begun |= !is_empty(line);
        is_in
    })
}

fn is_length(line: &[u8]) -> bool {
    let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
    name.eq_ignore_ascii_case(header::CONTENT_LENGTH.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(coding: bool) -> HeaderMap {
        let coding = coding.then(|| (header::TRANSFER_ENCODING, "chunked".parse().unwrap()));
        coding.into_iter().collect()
    }

    #[test]
    fn a_length_counts_in_the_head_of_its_request_only() {
        let (sized, chunked) =
            ("POST / HTTP/1.1\r\nContent-Length: 42\r\n\r\n", "\r\n\nPOST / HTTP/1.1\nA: b\n");
        let body = "Transfer-Encoding: chunked\r\n\r\nlength: 3 \r\n";
        for (length, expected) in
            [("", false), ("CONTENT-length: x\n", true), ("x-content-length: 1\n", false)]
        {
            let coding = "transfer-encoding: chunked\r\n";
            for fields in [format!("{coding}{length}"), format!("{length}{coding}")] {
                let all = format!("{sized}{body}{chunked}{fields}\ncontent-length: 1\r\n\r\n");
                // The first head is there when hyper passes it on.
                for at in sized.len()..all.len() {
                    let heads = RawHeads::default();
                    heads.read(&all.as_bytes()[..at]);
                    assert!(!heads.has_two_lengths(&headers(false), u64::try_from(body.len()).unwrap()));
                    heads.read(&all.as_bytes()[at..]);
                    assert_eq!(heads.has_two_lengths(&headers(true), 0), expected, "{all:?} {at}");
                    heads.read(b"content-length: 3\r\n");
                    assert!(heads.0.lock().unwrap().bytes.is_empty());
                }
            }
        }
    }
}
