//! The parts of a form, `multipart/form-data`, as they come.

use axum::body::Bytes;

use super::source::{BadBody, Source};

/// The longest boundary.
const LONGEST_BOUNDARY: usize = 200;
/// The most bytes of the headers of a part.
const LONGEST_HEAD: usize = 16 << 10;

/// A form that is read.
#[derive(Debug)]
pub(super) struct Multipart {
    source: Source,
    buffer: Vec<u8>,
    /// A line break, two hyphens and the boundary: what ends a part.
    delimiter: Vec<u8>,
    /// Whether a part is read that has not ended.
    is_in_part: bool,
    is_over: bool,
}

/// What the headers of a part say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartHead {
    /// The name of the field.
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

impl Multipart {
    /// Begins to read a form of this media type; `None` if it is another type.
    ///
    /// # Errors
    /// When the type has no boundary.
    pub(super) fn new(media_type: &str, source: Source) -> Result<Multipart, BadBody> {
        let parameters = media_type.split_once(';').map(|(_, rest)| rest).unwrap_or_default();
        let boundary = parameter(parameters, "boundary").unwrap_or_default();
        if boundary.is_empty() || boundary.len() > LONGEST_BOUNDARY {
            return Err(BadBody::Form("it has no boundary"));
        }
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        // The first delimiter may be at the very beginning.
        Ok(Multipart { source, buffer: b"\r\n".to_vec(), delimiter, is_in_part: true, is_over: false })
    }

    /// Returns the head of the next part; `None` after the last. What is left of the part before is skipped.
    ///
    /// # Errors
    /// When the form breaks off, or is none.
    pub(super) async fn next_part(&mut self) -> Result<Option<PartHead>, BadBody> {
        while self.next_bytes().await?.is_some() {}
        if self.is_over {
            return Ok(None);
        }
        // Behind the delimiter is the end of its line, or that of the form.
        self.fill(2).await?;
        if self.buffer.starts_with(b"--") {
            self.is_over = true;
            return Ok(None);
        }
        let length = loop {
            if let Some(length) = find(&self.buffer, b"\r\n\r\n") {
                break length;
            }
            if self.buffer.len() > LONGEST_HEAD {
                return Err(BadBody::Form("a part has too many headers"));
            }
            self.fill(self.buffer.len() + 1).await?;
        };
        let head: Vec<u8> = self.buffer.drain(..length + 4).take(length).collect();
        self.is_in_part = true;
        Ok(Some(PartHead::parse(&String::from_utf8_lossy(&head))))
    }

    /// Returns the next bytes of a part; `None` at its end.
    ///
    /// # Errors
    /// When the form breaks off.
    pub(super) async fn next_bytes(&mut self) -> Result<Option<Bytes>, BadBody> {
        while self.is_in_part {
            if let Some(length) = find(&self.buffer, &self.delimiter) {
                let bytes: Vec<u8> = self.buffer.drain(..length).collect();
                self.buffer.drain(..self.delimiter.len());
                self.is_in_part = false;
                return Ok((!bytes.is_empty()).then(|| bytes.into()));
            }
            // A delimiter may have begun.
            let length = (self.buffer.len() + 1).saturating_sub(self.delimiter.len());
            if length > 0 {
                return Ok(Some(self.buffer.drain(..length).collect::<Vec<u8>>().into()));
            }
            self.fill(self.buffer.len() + 1).await?;
        }
        Ok(None)
    }

    /// Reads until the buffer has this size.
    async fn fill(&mut self, size: usize) -> Result<(), BadBody> {
        while self.buffer.len() < size {
            let bytes = self.source.next().await?.ok_or(BadBody::BrokeOff)?;
            self.buffer.extend_from_slice(&bytes);
        }
        Ok(())
    }
}

impl PartHead {
    fn parse(text: &str) -> PartHead {
        let mut lines = text.split("\r\n").filter_map(|line| line.split_once(':'));
        let disposition = lines.find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
        let parameters = disposition.and_then(|(_, value)| value.split_once(';')).map(|(_, rest)| rest);
        let parameters = parameters.unwrap_or_default();
        PartHead {
            name: parameter(parameters, "name").unwrap_or_default(),
            filename: parameter(parameters, "filename"),
        }
    }
}

/// Returns a parameter of a header: `NAME=TOKEN` or `NAME="TEXT"`, where a backslash makes the next sign an ordinary one.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_start_matches([';', ' ', '\t']).trim_end();
        let (value, after) = if let Some(quoted) = after.trim_start().strip_prefix('"') {
            quoted_value(quoted)?
        } else {
            let (value, after) = after.split_once(';').unwrap_or((after, ""));
            (value.trim().to_owned(), after)
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

/// Reads a text up to its closing quote. Returns what is behind it as well.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(signs.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Returns where a text that begins with a line break begins first.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|&byte| byte == b'\r')?;
        if bytes.get(at..).is_some_and(|rest| rest.starts_with(wanted)) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::HeaderMap;

    use super::super::source::Received;
    use super::*;

    const TYPE: &str = "multipart/form-data; charset=utf-8; boundary=\"B\"";

    /// The parts of a form that comes in pieces of this size.
    async fn read(form: &str, piece: usize) -> Result<Vec<(PartHead, String)>, BadBody> {
        let (sender, body) = penfold_server::sent_body::queued_body();
        let pieces: Vec<_> = form.as_bytes().chunks(piece).map(|piece| Ok(piece.to_vec().into())).collect();
        tokio::spawn(async move {
            for piece in pieces {
                let _ = sender.send(piece).await;
            }
        });
        let mut form = Multipart::new(TYPE, Source::new(&HeaderMap::new(), Received::new(body))?)?;
        let mut found = Vec::new();
        while let Some(head) = form.next_part().await? {
            let mut all = Vec::new();
            while let Some(bytes) = form.next_bytes().await? {
                all.extend_from_slice(&bytes);
            }
            found.push((head, String::from_utf8(all).unwrap()));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn parts_are_the_same_in_pieces_of_any_size() {
        let form = "preamble\r\n--B\r\nContent-Type: text/plain\r\n\
            content-disposition: form-data; name=\"file\"; filename=\"dir/a\\\"b\\\\c.txt\"\r\n\r\n\
            line\r\n--other\r\n\r\n--\r\n--B  \r\nContent-Disposition: form-data; name=file\r\n\r\n\r\n--B\r\n\r\nno head\
            \r\n--B--\r\nepilogue";
        let part = |name: &str, filename: Option<&str>, text: &str| {
            let head = PartHead { name: name.to_owned(), filename: filename.map(str::to_owned) };
            (head, text.to_owned())
        };
        let parts = [
            part("file", Some("dir/a\"b\\c.txt"), "line\r\n--other\r\n\r\n--"),
            part("file", None, ""),
            part("", None, "no head"),
        ];
        for piece in [1, 2, 3, 5, 7, 1000] {
            assert_eq!(read(form, piece).await.unwrap(), parts);
        }
    }

    #[tokio::test]
    async fn the_first_delimiter_needs_no_line_before_it() {
        let form = "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--B--";
        assert_eq!(read(form, 4).await.unwrap()[0].1, "x");
        assert!(read("--B--", 9).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn broken_forms_are_refused() {
        let long = format!("--B\r\nX: {}", "x".repeat(LONGEST_HEAD + 1));
        for form in
            ["", "no form", "--B", "--B\r\n", "--B\r\nA: b\r\n\r\nx", "--B\r\nA: b\r\n\r\nx\r\n--", &long]
        {
            assert!(read(form, 100_000).await.is_err(), "{form}");
        }
        for media_type in ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; x"]
        {
            let source = Source::new(&HeaderMap::new(), Received::new(Body::empty())).unwrap();
            assert!(Multipart::new(media_type, source).is_err(), "{media_type}");
        }
    }
}
