//! Bad input is always an answer of 4xx with a problem document, and changes nothing.

use serde_json::{Value, json};

use super::{Server, ask, claimed, get, script, start};

/// Bodies that no route takes.
fn bad_bodies() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = [
        "",
        "{",
        "[]",
        "null",
        "1",
        "\"x\"",
        "{\"command\":[]}",
        "{\"command\":[\"\"]}",
        "{\"command\":\"ls\"}",
        "{\"command\":[1]}",
        "{\"command\":[\"a\\u0000b\"]}",
        "{\"command\":[\"true\"],\"unknown\":1}",
        "{\"command\":[\"true\"],\"name\":\"a/b\"}",
        "{\"command\":[\"true\"],\"name\":\"-x\"}",
        "{\"command\":[\"true\"],\"timeout_ms\":1e999}",
        "{\"command\":[\"true\"],\"timeout_ms\":-1}",
        "{\"command\":[\"true\"],\"timeout_ms\":18446744073709551615}",
        "{\"command\":[\"true\"],\"timeout_ms\":99999999999999999999999}",
        "{\"command\":[\"true\"],\"labels\":{\"a=b\":\"c\"}}",
        "{\"command\":[\"true\"],\"labels\":{\"a\":\"\\n\"}}",
        "{\"command\":[\"true\"],\"labels\":{\"penfold.idempotency-key\":\"c\"}}",
        "{\"command\":[\"true\"],\"env\":{\"A=B\":\"c\"}}",
        "{\"command\":[\"true\"],\"env\":{\"\":\"c\"}}",
        "{\"command\":[\"true\"],\"env\":{\"PENFOLD_SANDBOX\":\"c\"}}",
        "{\"command\":[\"true\"],\"env\":{\"A\":\"\\u0000\"}}",
        "{\"command\":[\"true\"],\"signal\":\"NOPE\"}",
        "{\"command\":[\"true\"],\"contain\":\"vm\"}",
        "{\"command\":[\"true\"],\"log_size\":18446744073709551615}",
        "{\"command\":[\"true\"],\"dir\":\"\\u0000\"}",
        "{\"command\":[\"true\"],\"command\":[\"true\"]}",
        "{\"command\":[\"\\ud800\"]}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    bodies.push(b"{\"command\":[\"\xff\xfe\"]}".to_vec());
    bodies.push([b"{\"command\":".to_vec(), b"[".repeat(100_000)].concat());
    bodies.push([b"{\"labels\":".to_vec(), b"{\"a\":".repeat(100_000)].concat());
    bodies.push(json!({ "command": ["true", "x".repeat(200_000)] }).to_string().into_bytes());
    bodies.push(json!({ "command": vec!["x".repeat(100_000); 100] }).to_string().into_bytes());
    bodies
}

/// spec: 15.4
#[test]
fn bad_bodies_are_refused_and_change_nothing() {
    let (_env, server) = start();
    for body in bad_bodies() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let reply = ask(&server, "POST", "/v1/sandboxes", "", &body);
        assert!((400..500).contains(&reply.status), "{shown}: {reply:?}");
        reply.problem();
    }
    let reply =
        ask(&server, "POST", "/v1/sandboxes", "content-type: text/plain\r\n", b"{\"command\":[\"true\"]}");
    assert_eq!(reply.with(415).problem(), "unsupported_media_type");
    assert_eq!(claimed(&get(&server, "/v1/sandboxes?all=true").json()), Vec::<String>::new());
}

/// spec: 25.2
#[test]
fn a_server_waits_for_no_probe() {
    let (_env, server) = start();
    for (field, value) in [("ready", json!("port:80")), ("ready_timeout_ms", json!(1))] {
        let body = json!({ "command": ["true"], field: value }).to_string();
        let reply =
            ask(&server, "POST", "/v1/sandboxes", "content-type: application/json\r\n", body.as_bytes());
        assert_eq!(reply.with(422).problem(), "invalid_field", "{body}");
    }
    assert_eq!(claimed(&get(&server, "/v1/sandboxes?all=true").json()), Vec::<String>::new());
}

/// Each route, with its method in upper case, and its description.
fn routes(server: &Server) -> Vec<(String, String, Value)> {
    let description: Value = get(server, "/v1/openapi.json").with(200).json();
    let paths = description["paths"].as_object().unwrap().clone();
    let of = |(path, item): (String, Value)| {
        let methods = item.as_object().unwrap().clone().into_iter();
        let known = methods.filter(|(method, _)| ["get", "put", "post", "delete"].contains(&method.as_str()));
        known.map(move |(method, route)| (method.to_uppercase(), path.clone(), route)).collect::<Vec<_>>()
    };
    paths.into_iter().flat_map(of).collect()
}

/// spec: 15.4
#[test]
fn every_route_refuses_bad_words_in_its_path() {
    let (_env, server) = start();
    let id = script(&server, "sleep 600");
    let long = "x".repeat(5000);
    let words =
        ["%00", "%ff", "..%2f..%2fetc", "%F0%9F%92%A9", "-", "no-such", "99999999999999999999", &long];
    let mut asked = 0;
    for (method, path, _) in routes(&server) {
        for word in words {
            let first = path.replace("{id}", word).replace("{number}", "1").replace("{name}", "n");
            let second = path.replace("{id}", &id).replace("{number}", word).replace("{name}", word);
            for path in [first, second].into_iter().filter(|path| path.contains(word)) {
                let reply = ask(&server, &method, &path, "", b"{}");
                assert!((400..500).contains(&reply.status), "{method} {path}: {reply:?}");
                asked += 1;
            }
        }
    }
    assert!(asked > 200, "{asked}");
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).json()["status"], "running");
    assert_eq!(get(&server, "/v1/nothing").with(404).problem(), "no_route");
    let reply = ask(&server, "PATCH", "/v1/sandboxes", "", b"");
    assert_eq!(reply.with(405).problem(), "method_not_allowed");
}

/// spec: 15.4
#[test]
fn every_route_refuses_unknown_fields_and_parameters() {
    let (_env, server) = start();
    let id = script(&server, "sleep 600");
    let mut asked = 0;
    for (method, path, route) in routes(&server) {
        let path = path.replace("{id}", &id).replace("{number}", "1").replace("{name}", "n");
        let parameters = route["parameters"].as_array().cloned().unwrap_or_default();
        if parameters.iter().any(|one| one["in"] == "query") {
            let reply = ask(&server, &method, &format!("{path}?no-such-parameter=1"), "", b"{}");
            assert!((400..500).contains(&reply.status), "{method} {path}: {reply:?}");
            asked += 1;
        }
        if route["requestBody"]["content"]["application/json"].is_object() {
            let reply = ask(&server, &method, &path, "", b"{\"no-such-field\":1}");
            assert!((400..500).contains(&reply.status), "{method} {path}: {reply:?}");
            asked += 1;
        }
    }
    assert!(asked > 25, "{asked}");
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).json()["status"], "running");
}

#[test]
fn the_page_and_the_description_are_served_with_a_strict_policy() {
    let (_env, server) = start();
    for path in ["/docs", "/docs/page.js", "/docs/page.css", "/v1/openapi.json"] {
        let reply = get(&server, path).with(200);
        assert!(reply.head.contains("content-security-policy: default-src 'none'"), "{}", reply.head);
    }
    let doctor = get(&server, "/v1/doctor").with(200).json();
    assert!(doctor["abilities"].is_array() && doctor["clean"].is_boolean(), "{doctor}");
    let id = script(&server, "exit 0");
    get(&server, &format!("/v1/sandboxes/{id}/wait")).with(200);
    let collect = |body: &Value| super::post(&server, "/v1/gc", body).with(200).json();
    let dry = json!({ "dry_run": true, "older_than_ms": 0, "sandboxes": [id] });
    assert_eq!(collect(&dry)["leaks"][0]["outcome"], "would_remove");
    let real = json!({ "older_than_ms": 0, "sandboxes": [id] });
    assert_eq!(collect(&real)["leaks"][0]["outcome"], "removed");
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).with(404).problem(), "not_found");
}
