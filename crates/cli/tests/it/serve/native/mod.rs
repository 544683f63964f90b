//! The native API, below `/v1`.

mod attach;
mod confined;
mod endings;
mod execs;
mod files;
pub mod followers;
mod gc;
mod input;
mod logs;
pub mod races;
mod restart;
mod sandboxes;
mod sessions;

use std::io::ErrorKind;

use serde_json::Value;

use super::{Server, Stream};
use crate::support::TestEnv;

/// An answer, with its body as bytes.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: Option<String>,
    pub data: Value,
}

/// A stream of events, read as they come.
pub struct Events {
    stream: Box<dyn Stream>,
    raw: Vec<u8>,
    text: Vec<u8>,
    is_over: bool,
}

/// The ids of the sandboxes on a page that belong to the server's state root. Orphans of other tests are listed, too.
#[track_caller]
pub fn claimed(page: &Value) -> Vec<String> {
    let own = page["sandboxes"].as_array().unwrap().iter().filter(|one| one["claimed"] == true);
    own.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

impl Reply {
    #[track_caller]
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {text}", self.head))
    }

    #[track_caller]
    pub fn with(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{} {}", self.head, String::from_utf8_lossy(&self.body));
        self
    }

    /// The last word of the problem's type; the answer must be a problem document.
    #[track_caller]
    pub fn problem(&self) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status);
        let kind = json["type"].as_str().and_then(|kind| kind.strip_prefix("urn:penfold:problem:"));
        kind.unwrap_or_else(|| panic!("{json}")).to_owned()
    }

    fn parse(bytes: &[u8]) -> Reply {
        let at = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let at = at.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap();
        let body = &bytes[at + 4..];
        let body =
            if head.contains("transfer-encoding: chunked") { unchunked(body).0 } else { body.to_vec() };
        Reply { status, head, body }
    }
}

/// Asks, and reads the whole answer. A body is JSON unless `headers` say otherwise.
#[track_caller]
pub fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
    let mut stream = server.connect();
    send(&mut *stream, method, path, headers, body);
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{method} {path} is not answered"),
        _ => Reply::parse(&bytes),
    }
}

pub fn send(stream: &mut dyn Stream, method: &str, path: &str, headers: &str, body: &[u8]) {
    let kind = if headers.to_lowercase().contains("content-type:") || body.is_empty() {
        ""
    } else {
        "content-type: application/json\r\n"
    };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{kind}{headers}\r\n"
    );
    // The server may answer before it has read all.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

#[track_caller]
pub fn get(server: &Server, path: &str) -> Reply {
    ask(server, "GET", path, "", b"")
}

#[track_caller]
pub fn post(server: &Server, path: &str, body: &Value) -> Reply {
    ask(server, "POST", path, "", body.to_string().as_bytes())
}

#[track_caller]
pub fn delete(server: &Server, path: &str) -> Reply {
    ask(server, "DELETE", path, "", b"")
}

/// Creates a sandbox that must run; returns its description.
#[track_caller]
pub fn create(server: &Server, body: &Value) -> Value {
    post(server, "/v1/sandboxes", body).with(201).json()
}

/// Creates a sandbox of this script; returns its id.
#[track_caller]
pub fn script(server: &Server, text: &str) -> String {
    create(server, &serde_json::json!({ "command": ["sh", "-c", text], "inherit_env": true }))["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// An environment and a server that answers.
pub fn start() -> (TestEnv, Server) {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--api", "native"]);
    (env, server)
}

impl Events {
    #[track_caller]
    pub fn open(server: &Server, path: &str, headers: &str) -> Events {
        Events::ask(server, "GET", path, headers, b"")
    }

    #[track_caller]
    pub fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> Events {
        let mut stream = server.connect();
        send(&mut *stream, method, path, &format!("accept: text/event-stream\r\n{headers}"), body);
        let mut raw = Vec::new();
        let head = loop {
            if let Some(at) = raw.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&raw[..at]).to_lowercase();
                raw.drain(..at + 4);
                break head;
            }
            let mut buffer = [0_u8; 4096];
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "no answer: {}", String::from_utf8_lossy(&raw));
            raw.extend_from_slice(&buffer[..length]);
        };
        assert!(head.contains(" 200 ") && head.contains("text/event-stream"), "{head}");
        Events { stream, raw, text: Vec::new(), is_over: false }
    }

    /// The events in an answer that may have broken off, also before its head.
    pub fn of_part(answer: &[u8]) -> Events {
        let at = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let raw = at.map_or_else(Vec::new, |at| answer[at + 4..].to_vec());
        let stream = Box::new(std::io::Cursor::new(Vec::new()));
        Events { stream, raw, text: Vec::new(), is_over: false }
    }

    /// The next event; nothing at the end of the stream.
    #[track_caller]
    pub fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(at) = self.text.windows(2).position(|window| window == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..at + 2).collect();
                let block = String::from_utf8(block).unwrap();
                let field = |name: &str| {
                    let start = format!("{name}: ");
                    block.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
                };
                // A comment has no data.
                let Some(data) = field("data") else { continue };
                let data = serde_json::from_str(&data).unwrap();
                return Some(Event { name: field("event").unwrap(), id: field("id"), data });
            }
            if self.is_over {
                assert!(self.text.is_empty(), "half an event: {}", String::from_utf8_lossy(&self.text));
                return None;
            }
            // The first chunks may have come with the head.
            let (text, used, is_last) = taken(&self.raw);
            self.text.extend_from_slice(&text);
            self.raw.drain(..used);
            self.is_over = is_last;
            if used > 0 {
                continue;
            }
            let mut buffer = [0_u8; 8192];
            let length = match self.stream.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no event comes"),
                // A reset, as after the death of the server.
                Err(_) => 0,
            };
            self.raw.extend_from_slice(&buffer[..length]);
            self.is_over = length == 0;
        }
    }

    /// The next event, which must have this name.
    #[track_caller]
    pub fn expect(&mut self, name: &str) -> Event {
        let event = self.next().unwrap_or_else(|| panic!("the stream ended before `{name}`"));
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    /// All events up to the end of the stream.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// The bytes of an event with output.
pub fn output(event: &Event) -> Vec<u8> {
    match (&event.data["text"], &event.data["base64"]) {
        (Value::String(text), _) => text.clone().into_bytes(),
        (_, Value::String(text)) => decode(text),
        _ => Vec::new(),
    }
}

/// Decodes Base64.
pub fn decode(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for part in text.trim_end_matches('=').as_bytes().chunks(4) {
        let number = part.iter().fold(0_u32, |number, byte| number << 6 | u32::from(value(*byte)));
        let number = number << (6 * (4 - part.len()));
        bytes.extend_from_slice(&number.to_be_bytes()[1..part.len()]);
    }
    bytes
}

/// The bytes of all complete chunks, the length of these chunks, and whether the last chunk was among them.
fn taken(raw: &[u8]) -> (Vec<u8>, usize, bool) {
    let (mut bytes, mut used) = (Vec::new(), 0);
    while let Some(at) = raw[used..].windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&raw[used..used + at]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let begin = used + at + 2;
        if raw.len() < begin + size + 2 {
            break;
        }
        bytes.extend_from_slice(&raw[begin..begin + size]);
        used = begin + size + 2;
        if size == 0 {
            return (bytes, used, true);
        }
    }
    (bytes, used, false)
}

fn unchunked(raw: &[u8]) -> (Vec<u8>, bool) {
    let (bytes, _, is_whole) = taken(raw);
    (bytes, is_whole)
}
