//! Reads server-sent events from bytes.

use std::collections::VecDeque;

/// An event, or a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// An event.
    Event(Event),
    /// A comment: the server lives.
    Comment,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: Option<String>,
    /// Its data.
    pub data: String,
}

/// Reads events from bytes that arrive in pieces. An event counts once its empty line is there.
#[derive(Debug, Default)]
pub struct EventParser {
    line: Vec<u8>,
    event: Event,
    ready: VecDeque<Received>,
}

impl EventParser {
    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = line.strip_suffix(b"\n").unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                self.take_line(&String::from_utf8_lossy(line));
            }
        }
    }

    fn take_line(&mut self, line: &str) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if event != Event::default() {
                self.ready.push_back(Received::Event(event));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => self.ready.push_back(Received::Comment),
            "event" => value.clone_into(&mut self.event.name),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
    }

    /// Returns the next event or comment, once it is complete.
    pub fn take(&mut self) -> Option<Received> {
        self.ready.pop_front()
    }

    /// The bytes of an event that is not complete.
    pub fn length(&self) -> usize {
        self.line.len() + self.event.data.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All that is read from these bytes, in pieces of these sizes.
    fn read(bytes: &[u8], sizes: &[usize]) -> (Vec<Received>, usize) {
        let mut parser = EventParser::default();
        let mut rest = bytes;
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            parser.feed(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        (std::iter::from_fn(|| parser.take()).collect(), parser.length())
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference_for_any_bytes(
            parts in prop::collection::vec(prop_oneof![
                Just(b"\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"\n\n".to_vec()), Just(b"data".to_vec()),
                Just(b"event: ".to_vec()), Just(b"id:".to_vec()), Just(b":".to_vec()),
                prop::collection::vec(any::<u8>(), 0..6),
            ], 0..40),
            sizes in prop::collection::vec(1_usize..9, 1..9),
        ) {
            let bytes = parts.concat();
            let whole = read(&bytes, &[bytes.len().max(1)]);
            prop_assert_eq!(&read(&bytes, &sizes), &whole);
            // A byte that is not UTF-8 becomes U+FFFD, which has three.
            prop_assert!(whole.1 <= 3 * bytes.len());
        }

        #[test]
        fn a_written_event_reads_back(name in "[a-z]{1,9}", id in prop::option::of("[0-9-]{1,20}"), data in "[^\r\n]{1,40}", size in 1_usize..50) {
            let line = id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
            let text = format!("event: {name}\n{line}data: {data}\n\n");
            let (events, left) = read(text.as_bytes(), &[size]);
            prop_assert_eq!(events, [Received::Event(Event { name, id, data })]);
            prop_assert_eq!(left, 0);
        }
    }

    #[test]
    fn events_are_read_from_any_pieces() {
        let text =
            b": hi\n\nevent: a\nid: 7\ndata: {\"x\":1}\n\r\nevent:b\r\ndata: 1\ndata: 2\n\nevent: cut\ndata";
        let event = |name: &str, id: Option<&str>, data: &str| {
            Received::Event(Event { name: name.to_owned(), id: id.map(str::to_owned), data: data.to_owned() })
        };
        let expected = [Received::Comment, event("a", Some("7"), "{\"x\":1}"), event("b", None, "1\n2")];
        for size in 1..text.len() {
            let mut parser = EventParser::default();
            text.chunks(size).for_each(|piece| parser.feed(piece));
            assert_eq!(Vec::from(parser.ready), expected, "{size}");
        }
    }
}
