//! Tokens on a port.

use serde_json::json;

use super::super::{Server, TOKEN, token_file};
use super::Api;
use crate::support::TestEnv;

/// Wrong tokens: other text, shorter, longer, doubled, empty.
const WRONG: [&str; 5] = [
    "wrong-wrong-wrong-wrong",
    "0123456789abcdef012",
    "0123456789abcdef01234",
    "0123456789abcdef01230123456789abcdef0123",
    "",
];

fn start(words: &[&str]) -> Api {
    let env = TestEnv::new();
    let tokens = token_file(&env);
    let words = [&["--api", "cloudflare", "--token-file", &tokens], words].concat();
    let server = Server::start_tcp(&env, &words);
    Api { env, server }
}

/// spec: 15.2.1
#[test]
fn a_token_before_the_path_or_in_its_header_opens_every_route() {
    let api = start(&[]);
    let header = format!("x-penfold-token: {TOKEN}\r\n");
    let run = json!({ "command": "echo a", "sessionId": "s" }).to_string();
    assert_eq!(api.ask("POST", &format!("/t/{TOKEN}/api/execute"), "", &run).ok()["stdout"], "a\n");
    assert_eq!(api.ask("POST", "/api/execute", &header, &run).ok()["stdout"], "a\n");
    assert_eq!(api.get(&format!("/t/{TOKEN}/api/session/list?x=1")).ok()["data"], json!(["s"]));
    assert_eq!(api.get(&format!("/t/{TOKEN}")).status, 200);
    assert_eq!(api.get(&format!("/t/{TOKEN}/")).status, 200);
    // `Authorization` is no token here, and disturbs none.
    let both = format!("{header}authorization: Bearer s\r\n");
    assert_eq!(api.ask("POST", "/api/execute", &both, &run).ok()["stdout"], "a\n");
    let process = json!({ "command": "echo b", "sessionId": "s", "processId": "p" });
    let mut events = api.send("POST", &format!("/t/{TOKEN}/api/process/start"), "", &process.to_string());
    super::Told::read(&mut events).ok();
    let path = format!("/t/{TOKEN}/api/process/p/stream");
    let events = api.events("GET", &path, &serde_json::Value::Null).rest();
    assert_eq!(super::output(&events, "stdout"), "b\n");
    api.ask("POST", &format!("/t/{TOKEN}/api/session/delete"), "", r#"{"sessionId":"s"}"#).ok();
}

/// spec: 15.2.1
#[test]
fn without_a_valid_token_nothing_is_done_or_told() {
    let api = start(&[]);
    let made = api.path("made");
    let run = json!({ "command": format!("touch {made}"), "sessionId": "s" }).to_string();
    let refused = |path: &str, headers: &str| {
        let told = api.ask("POST", path, headers, &run);
        assert_eq!(told.status, 401, "{path} {headers}: {:?}", told.json());
        assert_eq!(told.json()["code"], "UNAUTHORIZED");
        assert!(told.head.contains("connection: close"), "{}", told.head);
    };
    refused("/api/execute", "");
    refused("/api/no-such-route", "");
    for wrong in WRONG {
        refused(&format!("/t/{wrong}/api/execute"), "");
        refused("/api/execute", &format!("x-penfold-token: {wrong}\r\n"));
        // The token before the path counts.
        refused(&format!("/t/{wrong}/api/execute"), &format!("x-penfold-token: {TOKEN}\r\n"));
    }
    refused("/api/execute", &format!("authorization: Bearer {TOKEN}\r\n"));
    refused("/api/execute", &format!("cookie: {TOKEN}\r\n"));
    refused(&format!("/api/execute?token={TOKEN}"), "");
    refused(&format!("//t/{TOKEN}/api/execute"), "");
    refused(&format!("/T/{TOKEN}/api/execute"), "");
    assert!(!std::fs::exists(&made).unwrap());
    assert_eq!(api.get(&format!("/t/{TOKEN}/api/session/list")).ok()["data"], json!([]));
    let twice = format!("x-penfold-token: {TOKEN}\r\nx-penfold-token: wrong\r\n");
    assert_eq!(api.ask("GET", "/api/ping", &twice, "").status, 400);
}

/// spec: 15.2.1
#[test]
fn a_token_is_never_in_the_log() {
    for format in ["text", "json"] {
        let api = start(&["--log-format", format]);
        let server = &api.server;
        let own = format!("/t/{TOKEN}");
        let header = format!("x-penfold-token: {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n");
        api.get(&format!("{own}/api/ping")).ok();
        api.ask("GET", "/api/ping", &header, "").ok();
        assert_eq!(api.get(&format!("{own}/none")).status, 404);
        assert_eq!(api.get(&format!("{own}x/none")).status, 401);
        assert_eq!(api.ask("POST", &format!("{own}/api/execute"), "", "{").status, 500);
        // Requests that are refused before the token is compared.
        let long = "y".repeat(70_000);
        for request in [
            format!("GET {own}/%00 HTTP/1.1\r\nhost: a\r\n\r\n"),
            format!("GET http://localhost{own}/%00 HTTP/1.1\r\nhost: a\r\n\r\n"),
            format!("GET {own}/a HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
            format!(
                "POST {own}/a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            format!("GET {own}/a HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"),
            format!("GET {own}/\u{1} HTTP/1.1\r\nhost: a\r\n\r\n"),
        ] {
            let said = server.say(request.as_bytes());
            assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
            assert!(!said.contains(TOKEN), "{said}");
        }
        let said = api.server.end();
        assert!(said.contains("/api/ping") && said.contains("%00"), "{said}");
        assert!(!said.contains(TOKEN) && !said.contains("/t/"), "{said}");
    }
}
