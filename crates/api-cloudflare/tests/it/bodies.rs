//! Random bodies: every answer has the form of its API.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::slow::Server;

/// A route that starts nothing here, and a body that it takes.
const NATIVE: [(&str, &str); 6] = [
    (
        "/v1/sandboxes",
        r#"{"command":["true"],"env":{"A":"b"},"labels":{"a":"b"},"timeout_ms":1000,"name":"n"}"#,
    ),
    ("/v1/sandboxes/none/stop", r#"{"grace_ms":2000,"signal":"TERM"}"#),
    ("/v1/sandboxes/none/extend", r#"{"lease_ms":3600000}"#),
    (
        "/v1/sandboxes/none/execs",
        r#"{"command":["true"],"stdin":"x","env":{"A":"b"},"terminal":{"rows":1,"columns":2}}"#,
    ),
    ("/v1/sandboxes/none/sessions", r#"{"name":"main"}"#),
    ("/v1/sandboxes/none/files/move", r#"{"from":"a","to":"b"}"#),
];
const CLOUDFLARE: [(&str, &str); 5] = [
    ("/api/session/create", r#"{"id":"s","env":{"A":"b"},"cwd":"/tmp","commandTimeoutMs":1000}"#),
    ("/api/execute", r#"{"command":"true","sessionId":"s","timeoutMs":1000,"env":{"A":"b"}}"#),
    ("/api/process/start", r#"{"command":"true","sessionId":"s","processId":"p","timeoutMs":1000}"#),
    ("/api/session/delete", r#"{"sessionId":"s"}"#),
    ("/api/exists", r#"{"path":"/nowhere","sessionId":"s"}"#),
];
/// What replaces a part of a body.
const PARTS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[[[[[[[[",
    b"\"",
    b"null",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"{\"a\":{\"a\":[]}}",
    b",",
];

/// The numbers of one test; a failure prints the body.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    /// Replaces one to three parts.
    fn change(&mut self, body: &str) -> Vec<u8> {
        let mut body = body.as_bytes().to_vec();
        for _ in 0..=self.below(3) {
            let begin = self.below(body.len() + 1);
            let end = begin + self.below((body.len() - begin).min(8) + 1);
            let part = PARTS[self.below(PARTS.len())];
            body.splice(begin..end, part.iter().copied());
        }
        body
    }
}

/// Sends a body, and returns the status and the JSON of the answer.
#[track_caller]
fn ask(server: &Server, path: &str, body: &[u8]) -> (u16, Value) {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let said = server.say([head.as_bytes(), body].concat());
    let shown = String::from_utf8_lossy(body);
    let (head, answer) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path} {shown}: {said:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(answer).unwrap_or_else(|error| panic!("{path} {shown}: {error}: {said}")))
}

fn seed() -> u64 {
    u64::from(std::process::id()) << 32 | 0x9e37_79b9
}

/// spec: 15.4
#[test]
fn a_random_body_of_the_native_api_is_a_problem() {
    let server = Server::start(|_| ());
    let mut random = Random(seed());
    for turn in 0..600 {
        let (path, body) = NATIVE[turn % NATIVE.len()];
        let body = random.change(body);
        let (status, answer) = ask(&server, path, &body);
        let shown = String::from_utf8_lossy(&body);
        // A body that is still valid asks for a sandbox that does not exist, or for one that cannot be started here.
        let is_valid = path == "/v1/sandboxes" && status >= 500;
        assert!(is_valid || (400..500).contains(&status), "{path} {shown}: {answer}");
        assert_eq!(answer["status"], status, "{path} {shown}: {answer}");
        assert!(
            answer["type"].as_str().unwrap().starts_with("urn:penfold:problem:"),
            "{path} {shown}: {answer}"
        );
    }
}

/// spec: 15.4
#[test]
fn a_random_body_of_the_cloudflare_api_has_an_answer_with_a_code() {
    let server = Server::start(|_| ());
    let mut random = Random(seed());
    for turn in 0..600 {
        let (path, body) = CLOUDFLARE[turn % CLOUDFLARE.len()];
        let body = random.change(body);
        let (status, answer) = ask(&server, path, &body);
        let shown = String::from_utf8_lossy(&body);
        let is_json = serde_json::from_slice::<IgnoredAny>(&body).is_ok();
        if status == 200 {
            assert!(is_json && path == "/api/exists", "{path} {shown}: {answer}");
            continue;
        }
        assert_eq!(answer["httpStatus"], status, "{path} {shown}: {answer}");
        assert!(answer["code"].is_string() && answer["context"].is_object(), "{path} {shown}: {answer}");
    }
}
