//! Each route of the native API, by each kind of caller. A route without a rule here fails.

use serde_json::{Value, json};

use super::{ALICE, ALICE_READS, BOB, OPS, Server, all_lines, by, create, serve};
use crate::serve::native::{Reply, ask};
use crate::support::TestEnv;

const OPENAPI: &str = include_str!("../../../../../../docs/openapi.json");

/// Who may use a route, and how it is called.
enum Rule {
    /// The route is one of a sandbox: for another tenant there is none.
    OfSandbox { query: &'static str, body: Value },
    /// Everybody gets an answer about the own sandboxes.
    Everybody { query: &'static str, body: Value },
    /// Only an admin gets an answer.
    Admin,
}

fn rule(method: &str, path: &str) -> Option<Rule> {
    let of = |query, body| Some(Rule::OfSandbox { query, body });
    match (method, path.strip_prefix("/v1/sandboxes/{id}")) {
        (_, None) => match (method, path) {
            ("GET", "/v1/doctor") => Some(Rule::Admin),
            ("GET", "/v1/events") => {
                Some(Rule::Everybody { query: "?from=start&follow=false", body: Value::Null })
            }
            ("POST", "/v1/gc") => Some(Rule::Everybody { query: "", body: json!({ "dry_run": true }) }),
            ("GET", "/v1/sandboxes") => Some(Rule::Everybody { query: "?all=true", body: Value::Null }),
            ("POST", "/v1/sandboxes") => {
                Some(Rule::Everybody { query: "", body: json!({ "command": ["true"] }) })
            }
            _ => None,
        },
        ("GET", Some(rest)) => match rest {
            ""
            | "/execs"
            | "/sessions"
            | "/report"
            | "/logs"
            | "/files/list"
            | "/files/stat"
            | "/execs/{number}"
            | "/execs/{number}/logs"
            | "/attach"
            | "/execs/{number}/attach"
            | "/sessions/{name}"
            | "/sessions/{name}/commands/{number}"
            | "/sessions/{name}/commands/{number}/logs" => of("", Value::Null),
            "/files" => of("?path=made", Value::Null),
            "/wait" | "/execs/{number}/wait" => of("?timeout_ms=1", Value::Null),
            _ => None,
        },
        ("DELETE", Some("" | "/execs/{number}" | "/sessions/{name}")) => of("", Value::Null),
        ("DELETE", Some("/files")) => of("?path=made", Value::Null),
        ("PUT", Some("/files")) => of("?path=made", json!("text")),
        ("POST", Some(rest)) => match rest {
            "/execs" => of("", json!({ "command": ["true"] })),
            "/execs/{number}/resize" => of("", json!({ "rows": 24, "columns": 80 })),
            "/execs/{number}/signal" => of("", json!({ "signal": "CONT" })),
            "/extend" => of("", json!({ "lease_ms": 600_000 })),
            "/files/mkdir" => of("", json!({ "path": "made-dir" })),
            "/files/move" => of("", json!({ "from": "made", "to": "moved" })),
            "/sessions" => of("", json!({ "name": "other" })),
            "/sessions/{name}/interrupt" => of("", json!({ "number": 2 })),
            "/sessions/{name}/run" => of("", json!({ "command": "true" })),
            "/execs/{number}/kill" | "/execs/{number}/stop" | "/kill" | "/stop" | "/pause" | "/unpause" => {
                of("", Value::Null)
            }
            _ => None,
        },
        _ => None,
    }
}

/// All routes of the description, with their rules.
fn routes() -> Vec<(String, String, Rule)> {
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let rule = rule(&method, path);
            let rule = rule.unwrap_or_else(|| panic!("{method} {path} has no rule: who may use it?"));
            routes.push((method, path.clone(), rule));
        }
    }
    assert!(routes.len() >= 40, "{}", routes.len());
    routes
}

/// A sandbox of alice with an exec, a session with a command, and a file; returns its id.
#[track_caller]
fn furnished(env: &TestEnv, server: &Server, name: &str) -> String {
    let dir = env.path("work").join(format!("dir-{name}"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("made"), "text").unwrap();
    let body = json!({ "command": ["sleep", "600"], "name": name, "dir": dir });
    let made = by(server, ALICE, "POST", "/v1/sandboxes", &body).with(201).json();
    let id = made["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}");
    by(server, ALICE, "POST", &format!("{path}/sessions"), &json!({ "name": "s" })).with(201);
    by(server, ALICE, "POST", &format!("{path}/sessions/s/run"), &json!({ "command": "true" })).with(200);
    id
}

/// The path of a route for a sandbox, by this word.
fn path_of(route: &str, word: &str, query: &str) -> String {
    // The first exec of the sandbox is the host of its session.
    let path = route.replace("{id}", word).replace("{name}", "s");
    format!("{}{query}", path.replace("/commands/{number}", "/commands/1").replace("{number}", "1"))
}

#[track_caller]
fn call(server: &Server, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    if let Some(text) = body.as_str().filter(|_| method == "PUT") {
        let headers = format!("x-penfold-token: {token}\r\ncontent-type: application/octet-stream\r\n");
        return ask(server, method, path, &headers, text.as_bytes());
    }
    by(server, token, method, path, body)
}

/// spec: 15.17
#[test]
fn each_route_of_a_sandbox_is_there_for_its_tenant_and_for_admins_only() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let kept = furnished(&env, &server, "kept");
    let path = format!("/v1/sandboxes/{kept}");
    let before = by(&server, ALICE, "GET", &path, &Value::Null).with(200).json();
    assert_eq!((&before["status"], &before["execs"].as_array().map(Vec::len)), (&json!("running"), &Some(1)));
    for (method, route, rule) in routes() {
        let Rule::OfSandbox { query, body } = rule else { continue };
        for word in [kept.as_str(), &kept[..8], "kept", "alice~kept"] {
            let path = path_of(&route, word, query);
            let told = call(&server, BOB, &method, &path, &body);
            assert_eq!((told.status, told.problem().as_str()), (404, "not_found"), "{method} {path}");
            // As for a sandbox that never was.
            let never = call(&server, BOB, &method, &path_of(&route, "000000000000", query), &body);
            assert_eq!((never.status, never.problem().as_str()), (404, "not_found"), "{method} {path}");
        }
        let path = path_of(&route, &kept, query);
        let told = call(&server, ALICE_READS, &method, &path, &body);
        // A socket takes input.
        if method == "GET" && !route.ends_with("/attach") {
            assert!(![401, 403, 404].contains(&told.status), "{method} {path}: {told:?}");
        } else {
            assert_eq!((told.status, told.problem().as_str()), (403, "forbidden"), "{method} {path}");
        }
    }
    let after = by(&server, ALICE, "GET", &path, &Value::Null).with(200).json();
    assert_eq!(after["status"], "running");
    assert_eq!(after["execs"], before["execs"], "nothing was done");
    by(&server, ALICE, "DELETE", &path, &Value::Null).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.17
#[test]
fn the_tenant_and_an_admin_reach_each_route_of_a_sandbox() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let kept = furnished(&env, &server, "kept");
    for (number, (method, route, rule)) in routes().into_iter().enumerate() {
        let Rule::OfSandbox { query, body } = rule else { continue };
        for (token, who) in [(ALICE, "own"), (OPS, "admin")] {
            // What changes something gets a sandbox of its own.
            let id = if method == "GET" {
                kept.clone()
            } else {
                furnished(&env, &server, &format!("{who}-{number}"))
            };
            let told = call(&server, token, &method, &path_of(&route, &id, query), &body);
            assert!(![401, 403, 404].contains(&told.status), "{who}: {method} {route}: {told:?}");
            if method != "GET" {
                by(&server, OPS, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
            }
        }
    }
    by(&server, OPS, "DELETE", "/v1/sandboxes/alice~kept", &Value::Null).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.17
#[test]
fn routes_of_no_sandbox_answer_about_the_own_ones() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let alices = create(&server, ALICE, "web");
    let is_named = |told: &Reply| String::from_utf8_lossy(&told.body).contains(&alices);
    for (method, route, rule) in routes() {
        match rule {
            Rule::OfSandbox { .. } => {}
            Rule::Admin => {
                for token in [ALICE, ALICE_READS, BOB] {
                    let told = by(&server, token, &method, &route, &Value::Null);
                    assert_eq!((told.status, told.problem().as_str()), (403, "forbidden"), "{route}");
                }
                by(&server, OPS, &method, &route, &Value::Null).with(200);
            }
            Rule::Everybody { query, body } => {
                let path = format!("{route}{query}");
                let reads = by(&server, ALICE_READS, &method, &path, &body).status;
                assert_eq!(reads, if method == "GET" { 200 } else { 403 }, "{method} {path}");
                for token in [ALICE, BOB, OPS] {
                    let told = by(&server, token, &method, &path, &body);
                    assert!([200, 201].contains(&told.status), "{method} {path}: {told:?}");
                    // A living sandbox is no leak.
                    if method == "GET" {
                        assert_eq!(is_named(&told), token != BOB, "{method} {path} {token}: {told:?}");
                    }
                }
            }
        }
    }
    by(&server, ALICE, "DELETE", "/v1/sandboxes/web", &Value::Null).with(200);
}

/// spec: 15.2.1
#[test]
fn no_route_is_served_on_a_port_without_a_token() {
    let env = TestEnv::new();
    let tokens = super::write_tokens(&env, &all_lines());
    let server = Server::start_tcp(&env, &["--token-file", &tokens]);
    for (method, route, rule) in routes() {
        let (query, body) = match rule {
            Rule::OfSandbox { query, body } | Rule::Everybody { query, body } => (query, body),
            Rule::Admin => ("", Value::Null),
        };
        for token in ["", "ops-0123456789abcde", super::TOKEN] {
            let told = call(&server, token, &method, &path_of(&route, "000000000000", query), &body);
            assert_eq!((told.status, told.problem().as_str()), (401, "unauthorized"), "{method} {route}");
        }
    }
}
