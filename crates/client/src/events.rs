//! Server-sent events of one answer.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};

use crate::client::Client;
use crate::error::Error;

/// The server sends a comment after 15 s without an event: after this time the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest event.
const LONGEST: usize = 16 << 20;

/// An event, or a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Received {
    /// An event.
    Event(Event),
    /// A comment: the server lives.
    Comment,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: Option<String>,
    /// Its data.
    pub data: String,
}

/// The events of one answer.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    parser: Parser,
}

impl Events {
    /// Sends the request.
    pub(crate) fn open(client: &Client, path: &str, last_id: Option<&str>) -> Result<Events, Error> {
        let headers: Vec<(&str, &str)> = [("accept", "text/event-stream")]
            .into_iter()
            .chain(last_id.map(|id| ("last-event-id", id)))
            .collect();
        let response = client.runtime.block_on(client.open(Method::GET, path, &headers, Bytes::new()))?;
        Ok(Events { body: response.into_body(), parser: Parser::default() })
    }

    /// Waits for the next event; `None` at the end of the answer.
    pub(crate) fn next(&mut self, client: &Client) -> Result<Option<Received>, Error> {
        loop {
            if let Some(received) = self.parser.take() {
                return Ok(Some(received));
            }
            let frame =
                client.runtime.block_on(async { tokio::time::timeout(SILENCE, self.body.frame()).await });
            match frame {
                Err(_) => return Err(client.lost("the server is silent")),
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    let frame = frame.map_err(|error| client.lost(error))?;
                    self.parser.feed(frame.data_ref().map_or(&[], |bytes| bytes));
                    if self.parser.length() > LONGEST {
                        return Err(client.foreign(&"an event is too long"));
                    }
                }
            }
        }
    }
}

/// Reads events from bytes that arrive in pieces. An event counts once its empty line is there.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    event: Event,
    ready: VecDeque<Received>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) {
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

    fn take(&mut self) -> Option<Received> {
        self.ready.pop_front()
    }

    fn length(&self) -> usize {
        self.line.len() + self.event.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_from_any_pieces() {
        let text =
            b": hi\n\nevent: a\nid: 7\ndata: {\"x\":1}\n\r\nevent:b\r\ndata: 1\ndata: 2\n\nevent: cut\ndata";
        let event = |name: &str, id: Option<&str>, data: &str| {
            Received::Event(Event { name: name.to_owned(), id: id.map(str::to_owned), data: data.to_owned() })
        };
        let expected = [Received::Comment, event("a", Some("7"), "{\"x\":1}"), event("b", None, "1\n2")];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            text.chunks(size).for_each(|piece| parser.feed(piece));
            assert_eq!(Vec::from(parser.ready), expected, "{size}");
        }
    }
}
