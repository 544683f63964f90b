//! Each route of the Cloudflare Sandbox API, by each kind of caller. A route without a rule here fails.

use std::path::Path;

use serde_json::{Value, json};

use super::{ALICE, ALICE_READS, BOB, OPS, Server, all_lines, by, serve, write_tokens};
use crate::serve::native::Reply;
use crate::support::TestEnv;

/// What a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// The server: nothing of anybody.
    Server,
    /// Files of the host, as every caller of this API has them.
    Files,
    /// The session that is named, which each tenant has for itself.
    Session,
    /// The processes of the tenant.
    Processes,
    /// One process.
    Process,
}

/// Whether a route is for callers that only look, and what it is about.
const RULES: [(&str, &str, bool, About); 68] = [
    ("POST", "/api/git/checkout", false, About::Session),
    ("POST", "/api/backup/create", false, About::Session),
    ("POST", "/api/backup/restore", false, About::Session),
    ("POST", "/api/backup/upload-parts", false, About::Server),
    ("GET", "/api/interpreter/health", true, About::Server),
    ("POST", "/api/contexts", false, About::Session),
    ("GET", "/api/contexts", true, About::Session),
    ("DELETE", "/api/contexts/{id}", false, About::Session),
    ("POST", "/api/execute/code", false, About::Session),
    // It sends requests to the port.
    ("POST", "/api/port-watch", false, About::Server),
    ("POST", "/api/expose-port", false, About::Server),
    ("GET", "/api/exposed-ports", true, About::Server),
    ("DELETE", "/api/exposed-ports/{port}", false, About::Server),
    ("GET", "/", true, About::Server),
    ("GET", "/api/ping", true, About::Server),
    ("GET", "/api/version", true, About::Server),
    ("GET", "/api/commands", true, About::Server),
    ("POST", "/api/read", true, About::Files),
    ("POST", "/api/read/stream", true, About::Files),
    ("POST", "/api/list-files", true, About::Files),
    ("POST", "/api/exists", true, About::Files),
    ("POST", "/api/watch", true, About::Files),
    ("POST", "/api/watch/check", true, About::Files),
    ("POST", "/api/write", false, About::Files),
    ("POST", "/api/delete", false, About::Files),
    ("POST", "/api/rename", false, About::Files),
    ("POST", "/api/move", false, About::Files),
    ("POST", "/api/mkdir", false, About::Files),
    ("POST", "/api/session/create", false, About::Session),
    ("GET", "/api/session/list", true, About::Session),
    ("POST", "/api/session/delete", false, About::Session),
    ("POST", "/api/execute", false, About::Session),
    ("POST", "/api/execute/stream", false, About::Session),
    ("POST", "/api/process/start", false, About::Processes),
    ("GET", "/api/process/list", true, About::Processes),
    ("DELETE", "/api/process/kill-all", false, About::Processes),
    ("GET", "/api/process/{id}", true, About::Process),
    ("DELETE", "/api/process/{id}", false, About::Process),
    ("GET", "/api/process/{id}/logs", true, About::Process),
    ("GET", "/api/process/{id}/stream", true, About::Process),
    ("OPTIONS", "/api/execute", true, About::Server),
    // What comes over these may change anything.
    ("GET", "/rpc", false, About::Server),
    ("GET", "/ws", false, About::Server),
    ("GET", "/api/ws", false, About::Server),
    ("GET", "/ws/pty", false, About::Session),
    ("GET", "/ws/terminal", false, About::Server),
    // Only calls over `/rpc` reach these.
    ("POST", "/rpc/read", false, About::Files),
    ("POST", "/rpc/write-stream", false, About::Files),
    ("POST", "/rpc/processes", false, About::Server),
    ("GET", "/rpc/processes", false, About::Server),
    ("GET", "/rpc/processes/active", false, About::Server),
    ("GET", "/rpc/process/{id}", false, About::Server),
    ("POST", "/rpc/process/{id}/kill", false, About::Server),
    ("POST", "/rpc/process/{id}/events", false, About::Server),
    ("GET", "/rpc/runtime", false, About::Server),
    ("POST", "/rpc/runtime/activate", false, About::Server),
    ("POST", "/rpc/port-watch", false, About::Server),
    ("POST", "/rpc/backup/prepare", false, About::Server),
    ("POST", "/rpc/backup/cleanup", false, About::Server),
    ("POST", "/rpc/terminals", false, About::Server),
    ("GET", "/rpc/terminals", false, About::Server),
    ("GET", "/rpc/terminals/active", false, About::Server),
    ("GET", "/rpc/terminal/{id}", false, About::Server),
    ("POST", "/rpc/terminal/{id}/output", false, About::Server),
    ("POST", "/rpc/terminal/{id}/write", false, About::Server),
    ("POST", "/rpc/terminal/{id}/resize", false, About::Server),
    ("POST", "/rpc/terminal/{id}/interrupt", false, About::Server),
    ("POST", "/rpc/terminal/{id}/terminate", false, About::Server),
];

/// The routes in the source: each method of each `.route(…)`.
fn routes() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../api-cloudflare/src")];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for route in text.split(".route(").skip(1) {
            let path = route.split('"').nth(1).unwrap();
            let handlers = route.split(".route(").next().unwrap().lines().next().unwrap();
            for method in ["get", "post", "put", "delete", "any"] {
                if handlers.contains(&format!("{method}(")) {
                    found.push((method.to_uppercase(), path.to_owned()));
                }
            }
        }
    }
    found
}

#[test]
fn each_route_has_a_rule() {
    let found = routes();
    assert!(found.len() >= 25, "{found:?}");
    for (method, path) in found {
        let known = RULES.iter().any(|(other, route, ..)| (*other, *route) == (&method, &path));
        assert!(known, "{method} {path} has no rule: who may use it?");
    }
}

fn body_of(method: &str, path: &str, file: &str) -> Value {
    match path {
        _ if method != "POST" => Value::Null,
        "/api/session/create" => json!({ "id": "s" }),
        "/api/session/delete" => json!({ "sessionId": "s" }),
        "/api/process/start" => json!({ "command": "sleep 600", "sessionId": "s", "processId": "p" }),
        "/api/execute" | "/api/execute/stream" => json!({ "command": "true", "sessionId": "s" }),
        "/api/contexts" => json!({ "language": "python", "sessionId": "s" }),
        "/api/execute/code" => json!({ "code": "1", "sessionId": "s" }),
        "/api/rename" => json!({ "oldPath": file, "newPath": file }),
        "/api/move" => json!({ "sourcePath": file, "destinationPath": file }),
        "/api/git/checkout" => json!({ "repoUrl": file, "sessionId": "s" }),
        "/api/backup/create" | "/api/backup/restore" => {
            json!({ "dir": "/no/such/place", "archivePath": file, "sessionId": "s" })
        }
        "/api/port-watch" => json!({ "port": 1, "processId": "none" }),
        "/api/write" => json!({ "path": file, "content": "a" }),
        _ => json!({ "path": file }),
    }
}

/// spec: 15.17, 15.17.3
#[test]
fn a_read_only_token_is_good_for_what_changes_nothing_and_none_for_nothing() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let port = Server::start_tcp(&env, &["--token-file", &write_tokens(&env, &all_lines())]);
    let file = env.path("work/file").display().to_string();
    std::fs::write(&file, "a").unwrap();
    let run = json!({ "command": "echo begun; sleep 600", "sessionId": "s", "processId": "p" });
    by(&server, ALICE, "POST", "/api/process/start", &run).with(200);
    for (method, route, reads, about) in RULES {
        let body = body_of(method, route, &file);
        let path = route.replace("{id}", "p");
        let none = by(&port, "", method, &path, &body);
        assert_eq!((none.status, &none.json()["code"]), (401, &json!("UNAUTHORIZED")), "{method} {path}");
        // The stream of a living process has no end.
        if route.ends_with("/stream") && about == About::Process {
            continue;
        }
        // The watch of a path that exists has none either.
        let body = if route == "/api/watch" { json!({ "path": "/no/such/place" }) } else { body };
        let told = by(&server, ALICE_READS, method, &path, &body);
        if reads {
            assert_ne!(told.status, 403, "{method} {path}: {told:?}");
        } else {
            assert_eq!((told.status, &told.json()["code"]), (403, &json!("FORBIDDEN")), "{method} {path}");
        }
    }
    let list = by(&server, ALICE_READS, "GET", "/api/process/list", &Value::Null).with(200).json();
    assert_eq!(list["processes"][0]["status"], "running", "nothing was ended");
    by(&server, ALICE, "POST", "/api/session/delete", &json!({ "sessionId": "s" })).with(200);
    server.end();
    port.end();
    env.assert_nothing_left();
}

/// spec: 15.17
#[test]
fn sessions_and_processes_of_one_id_are_two_for_two_tenants() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let say = |token: &str, text: &str| {
        let body = json!({ "command": text, "sessionId": "s" });
        by(&server, token, "POST", "/api/execute", &body).with(200).json()["stdout"].clone()
    };
    say(ALICE, "WHO=alice");
    assert_eq!(say(BOB, "echo \"<$WHO>\""), "<>\n");
    assert_eq!(say(ALICE, "echo \"<$WHO>\""), "<alice>\n");
    let start = |token: &str| {
        let body = json!({ "command": "sleep 600", "sessionId": "s", "processId": "p" });
        by(&server, token, "POST", "/api/process/start", &body)
    };
    let pid = |told: &Reply| told.json()["pid"].as_i64().unwrap();
    let (alices, bobs) = (start(ALICE).with(200), start(BOB).with(200));
    assert_ne!(pid(&alices), pid(&bobs));
    start(ALICE).with(409);
    for (token, own) in [(ALICE, &alices), (BOB, &bobs)] {
        let list = by(&server, token, "GET", "/api/process/list", &Value::Null).with(200).json();
        let pids: Vec<&Value> = list["processes"].as_array().unwrap().iter().map(|one| &one["pid"]).collect();
        assert_eq!(pids, [&json!(pid(own))]);
        let sessions = by(&server, token, "GET", "/api/session/list", &Value::Null).with(200).json();
        assert_eq!(sessions["data"], json!(["s"]));
    }
    // Each route that can end something ends the own.
    by(&server, BOB, "DELETE", "/api/process/kill-all", &Value::Null).with(200);
    let alive = by(&server, ALICE, "GET", "/api/process/p", &Value::Null).with(200).json();
    assert_eq!(alive["process"]["status"], "running");
    by(&server, BOB, "POST", "/api/session/delete", &json!({ "sessionId": "s" })).with(200);
    for (method, path) in RULES.iter().filter(|rule| rule.3 == About::Process).map(|rule| (rule.0, rule.1)) {
        by(&server, BOB, method, &path.replace("{id}", "p"), &Value::Null).with(404);
    }
    let list = by(&server, BOB, "GET", "/api/process/list", &Value::Null).with(200).json();
    assert_eq!(list["processes"], json!([]));
    let alive = by(&server, ALICE, "GET", "/api/process/p", &Value::Null).with(200).json();
    assert_eq!(alive["process"]["status"], "running");
    // An admin sees the sandboxes of both, and has sessions of its own.
    let sessions = by(&server, OPS, "GET", "/v1/sandboxes?label=penfold.api=cloudflare", &Value::Null).json();
    assert_eq!(sessions["sandboxes"][0]["labels"]["penfold.tenant"], "alice");
    by(&server, ALICE, "POST", "/api/session/delete", &json!({ "sessionId": "s" })).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.17
#[test]
fn contexts_are_those_of_the_tenant() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let create = |token: &str| {
        let body = json!({ "language": "python", "sessionId": "s" });
        by(&server, token, "POST", "/api/contexts", &body).with(200).json()["contextId"].clone()
    };
    let run = |token: &str, context: &Value| {
        let body = json!({ "context_id": context, "code": "print('out')" });
        by(&server, token, "POST", "/api/execute/code", &body)
    };
    let (alices, bobs) = (create(ALICE), create(BOB));
    for (token, own, other) in [(ALICE, &alices, &bobs), (BOB, &bobs, &alices)] {
        let list = by(&server, token, "GET", "/api/contexts", &Value::Null).with(200).json();
        let ids: Vec<&Value> = list["contexts"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids, [own]);
        assert_eq!(run(token, other).with(404).json()["code"], "CONTEXT_NOT_FOUND");
        let path = format!("/api/contexts/{}", other.as_str().unwrap());
        by(&server, token, "DELETE", &path, &Value::Null).with(404);
    }
    for (token, own) in [(ALICE, &alices), (BOB, &bobs)] {
        assert!(String::from_utf8_lossy(&run(token, own).with(200).body).contains("out"));
        by(&server, token, "POST", "/api/session/delete", &json!({ "sessionId": "s" })).with(200);
    }
    server.end();
    env.assert_nothing_left();
}
