//! Paths, methods, headers, ids.

use std::io::{BufReader, Write as _};

use serde_json::json;

use super::{Api, Told};

#[test]
fn ping_version_and_the_first_page_answer() {
    let api = Api::start();
    assert_eq!(api.get("/api/ping").ok()["status"], "healthy");
    assert!(api.get("/api/version").ok()["version"].is_string());
    assert_eq!(api.get("/").status, 200);
    let told = api.get("/api/ping");
    for header in ["content-type: application/json", "access-control-allow-origin: *", "x-session-id"] {
        assert!(told.head.contains(header), "{}", told.head);
    }
}

#[test]
fn unknown_paths_and_methods_are_not_found() {
    let api = Api::start();
    for (method, path) in [
        ("GET", "/api/nothing"),
        ("GET", "/api/execute"),
        ("OPTIONS", "/api/ping"),
        ("PUT", "/api/ping"),
        ("POST", "/api/process/a/b/c"),
        ("GET", "/api/health"),
        ("POST", "/api/shutdown"),
        ("POST", "/api/init"),
        ("GET", "/api/tunnels"),
        ("GET", "/api/process/x/../ping"),
    ] {
        let told = api.ask(method, path, "", "");
        let body = told.fails(404, "UNKNOWN_ERROR");
        assert_eq!(body["message"], "The requested endpoint was not found", "{method} {path}");
    }
    api.get("/api/commands").fails(500, "UNKNOWN_ERROR");
    assert_eq!(api.ask("PATCH", "/api/ping", "", "").status, 500);
}

#[test]
fn a_body_that_is_no_json_is_an_internal_error() {
    let api = Api::start();
    let deep = format!("{{\"x\":{}", "[".repeat(10_000));
    for body in ["", "{", "{\"command\":", "nonsense", "\u{0}", &deep] {
        for path in
            ["/api/execute", "/api/execute/stream", "/api/process/start", "/api/session/delete", "/api/read"]
        {
            let error = api.ask("POST", path, "", body).fails(500, "INTERNAL_ERROR");
            assert!(
                error["message"].as_str().unwrap().starts_with("Failed to parse request body: "),
                "{error}"
            );
        }
    }
    api.ask("POST", "/api/execute", "", "{\"command\":\"\\ud800\"}").fails(500, "INTERNAL_ERROR");
    for body in [&b"{\"command\":\"\xff\xfe\"}"[..], b"\xff", b"{\"command\":\"\xed\xa0\x80\"}", b"\0\0\0"] {
        let mut stream = api.server.connect();
        let length = body.len();
        let head = "POST /api/execute HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {length}\r\n\r\n").unwrap();
        stream.write_all(body).unwrap();
        Told::read(&mut BufReader::new(stream)).fails(500, "INTERNAL_ERROR");
    }
    api.post("/api/execute", &json!({ "command": 7 })).fails(400, "VALIDATION_FAILED");
    api.post("/api/execute", &json!({})).fails(400, "VALIDATION_FAILED");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!([]));
}

#[test]
fn a_command_with_a_nul_is_not_run() {
    let api = Api::start();
    let made = api.path("made");
    let command = format!("touch {made}\0; touch {made}");
    let error = api.run("s", &command).fails(500, "COMMAND_EXECUTION_ERROR");
    assert!(error["message"].as_str().unwrap().contains("NUL"), "{error}");
    assert!(!std::fs::exists(&made).unwrap());
    assert_eq!(api.out("s", "echo usable"), "usable\n");
}

/// spec: 15.4
#[test]
fn ids_that_could_be_paths_are_refused() {
    let api = Api::start();
    for id in ["..", "../x", "a/b", "a\0b", "a\nb", ".hidden", &"x".repeat(300)] {
        api.post("/api/session/create", &json!({ "id": id })).fails(400, "VALIDATION_FAILED");
        api.post("/api/session/delete", &json!({ "sessionId": id })).fails(400, "VALIDATION_FAILED");
        api.run(id, "true").fails(400, "VALIDATION_FAILED");
        let start = json!({ "command": "true", "processId": id });
        api.post("/api/process/start", &start).fails(400, "VALIDATION_FAILED");
    }
    for id in ["kill-all", "list", "start"] {
        let start = json!({ "command": "true", "processId": id });
        api.post("/api/process/start", &start).fails(400, "VALIDATION_FAILED");
    }
    api.get("/api/process/..%2f..%2fetc").fails(404, "PROCESS_NOT_FOUND");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!([]));
}

/// spec: 15.4
#[test]
fn a_body_beyond_the_limit_is_refused() {
    let api = Api::start();
    for (route, size) in [("mkdir", 17 << 20), ("write", 101 << 20)] {
        let body = json!({ "path": api.path("made"), "content": "x".repeat(size) }).to_string();
        let head = format!("POST /api/{route} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n");
        // The server may close before it has read all.
        let answer = api.server.say(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        assert!(answer.is_empty() || answer.contains("FILE_TOO_LARGE"), "{answer}");
    }
    assert!(!std::fs::exists(api.path("made")).unwrap());
    api.get("/api/ping").ok();
}
