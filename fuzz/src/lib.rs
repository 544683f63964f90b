//! What the targets for HTTP share: requests made from bytes, and a judge of answers.

use std::cell::OnceCell;

use penfold_server::Dialect;
use penfold_server::fuzzing::{Edge, PASSED, TOKEN};
use serde_json::Value;

/// The dialects of the server, in the order of `penfold serve`.
fn dialects() -> Vec<Dialect> {
    vec![
        penfold_api_e2b::GUEST,
        penfold_api_e2b::CONTROL,
        penfold_api_native::DIALECT,
        penfold_api_cloudflare::DIALECT,
    ]
}

/// Uses the server without a socket.
pub fn edge<T>(work: impl FnOnce(&Edge) -> T) -> T {
    thread_local!(static EDGE: OnceCell<Edge> = const { OnceCell::new() });
    EDGE.with(|edge| work(edge.get_or_init(|| Edge::new(dialects()))))
}

/// A method and a path with places for words.
pub struct Route {
    method: String,
    /// The parts of the path between the words.
    parts: Vec<String>,
}

impl Route {
    /// Makes a route of a path such as `/a/{word}`.
    pub fn new(method: &str, path: &str) -> Route {
        let mut parts: Vec<String> = path.split('{').map(str::to_owned).collect();
        for part in parts.iter_mut().skip(1) {
            *part = part.split_once('}').expect("a word ends").1.to_owned();
        }
        Route { method: method.to_owned(), parts }
    }
}

/// Sends a request made of these bytes: the number of the route, then a line of words for the path, a line with the query,
/// a line with headers, and the body.
pub fn ask(routes: &[Route], data: &[u8]) -> Option<Answer> {
    let (&first, rest) = data.split_first()?;
    let route = &routes[usize::from(first) % routes.len()];
    let mut fields = rest.splitn(4, |&byte| byte == b'\n');
    let mut field = || fields.next().unwrap_or_default();
    let (words, query, headers, body) = (field(), field(), field(), field());
    let mut words = words.split(|&byte| byte == b' ');
    let mut sent = format!("{} ", route.method).into_bytes();
    for (index, part) in route.parts.iter().enumerate() {
        if index > 0 {
            escape(&mut sent, words.next().unwrap_or(b"1"));
        }
        sent.extend_from_slice(part.as_bytes());
    }
    if !query.is_empty() {
        sent.push(b'?');
        escape(&mut sent, query);
    }
    sent.extend_from_slice(b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let given = headers.split(|&byte| byte == b'|').filter(|line| is_header(line));
    let mut has_type = false;
    for line in given {
        has_type |= line.to_ascii_lowercase().starts_with(b"content-type:");
        sent.extend_from_slice(line);
        sent.extend_from_slice(b"\r\n");
    }
    if !has_type {
        sent.extend_from_slice(b"content-type: application/json\r\n");
    }
    sent.extend_from_slice(
        format!("x-penfold-token: {TOKEN}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(),
    );
    sent.extend_from_slice(body);
    let said = edge(|edge| edge.answers(&sent, true));
    let (answer, rest) = Answer::parse(&said);
    assert!(rest.is_empty(), "one request has two answers: {}", String::from_utf8_lossy(&said));
    Some(answer)
}

/// Appends a part of an address; bytes that no address has are escaped.
fn escape(sent: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if byte.is_ascii_graphic() && !b"\"#<>\\^`{|}?".contains(&byte) {
            sent.push(byte);
        } else {
            sent.extend_from_slice(format!("%{byte:02x}").as_bytes());
        }
    }
}

/// A header that does not change where the request ends, and whether it is served.
fn is_header(line: &[u8]) -> bool {
    let Some(end) = line.iter().position(|&byte| byte == b':') else { return false };
    let name = line[..end].to_ascii_lowercase();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    let framing: [&[u8]; 9] = [
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"expect",
        b"upgrade",
        b"host",
        b"te",
        b"trailer",
        b"x-penfold-token",
    ];
    !name.is_empty()
        && name.iter().all(is_name)
        && !framing.contains(&name.as_slice())
        && line.iter().all(|&byte| byte >= b' ' && byte != 0x7f)
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    status: u16,
    kind: String,
    body: Vec<u8>,
}

impl Answer {
    /// Reads an answer; returns what comes after it.
    pub fn parse(said: &[u8]) -> (Answer, &[u8]) {
        let shown = || String::from_utf8_lossy(said).into_owned();
        let end = said.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {}", shown()));
        let head = std::str::from_utf8(&said[..end]).expect("a head is text").to_ascii_lowercase();
        let status =
            head.strip_prefix("http/1.1 ").or(head.strip_prefix("http/1.0 ")).and_then(|rest| rest.get(..3));
        let status =
            status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {}", shown()));
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let kind = header("content-type").unwrap_or_default().to_owned();
        let rest = &said[end + 4..];
        if status < 200 {
            return Answer::parse(rest);
        }
        let (body, rest) = match header("content-length") {
            // An answer to HEAD tells the length of a body that is not there; nothing else follows it on this connection.
            Some(length) => {
                let length: usize = length.parse().expect("a length");
                if rest.starts_with(b"HTTP/1.") {
                    rest.split_at(0)
                } else {
                    rest.split_at(length.min(rest.len()))
                }
            }
            None => rest.split_at(if header("transfer-encoding").is_some() { rest.len() } else { 0 }),
        };
        (Answer { status, kind, body: body.to_owned() }, rest)
    }

    fn says(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.body).contains(text)
    }

    /// A failure of the server is only that its work was refused here, or that the reference fails so too.
    pub fn judge(&self) {
        let is_expected =
            [PASSED, "Failed to parse request body", "Invalid endpoint", "Internal Server Error"]
                .iter()
                .any(|text| self.says(text));
        assert!(
            // 501 says what there is not.
            self.status < 500 || self.status == 501 || is_expected || self.body.is_empty(),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
    }

    /// An error is a problem document.
    pub fn judge_native(&self) {
        let shown = || format!("{}: {}", self.status, String::from_utf8_lossy(&self.body));
        assert!(self.status < 500 || self.says(PASSED), "{}", shown());
        if self.status >= 400 {
            assert_eq!(self.kind, "application/problem+json", "{}", shown());
            let document: Value =
                serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", shown()));
            assert_eq!(document["status"], self.status, "{}", shown());
            let kind = document["type"].as_str().unwrap_or_default();
            assert!(kind.starts_with("urn:penfold:problem:"), "{}", shown());
        }
    }
}
