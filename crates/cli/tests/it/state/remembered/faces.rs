//! The server, its client and the MCP server after a survivor was named.

use serde_json::{Value, json};

use super::member::{Escape, PATIENCE, Scene};
use super::{Damage, Mode};
use crate::mcp::client::Client;
use crate::serve::Server;
use crate::serve::native::ask;

/// With a supervisor, and where nothing but the memory leads to the survivor.
const CELLS: [(Damage, Mode); 3] = [
    (Damage::Nothing, Mode::Detached),
    (Damage::Nothing, Mode::Foreground),
    (Damage::AllKilledAndRecordRemoved, Mode::Detached),
];

#[track_caller]
fn assert_unended(status: &Value) {
    assert!(*status == "unkillable" || *status == "orphaned", "{status}");
}

/// spec: 2.7
#[test]
fn server_says_of_no_survivor_that_it_is_gone() {
    for (damage, mode) in CELLS {
        let Some(mut scene) = Scene::start(Escape::Root, damage, mode) else { return };
        let server = Server::start(&scene.env, &[]);
        let path = format!("/v1/sandboxes/{}", scene.id);
        let patience = json!({ "patience_ms": 60, "grace_ms": 1 }).to_string();
        for (method, path, body) in [
            ("POST", format!("{path}/stop"), patience.as_str()),
            ("POST", format!("{path}/kill"), r#"{"patience_ms":60}"#),
            ("DELETE", path.clone(), ""),
        ] {
            // Without a record it has the usual patience, of ten seconds.
            if method == "DELETE" && damage != Damage::Nothing {
                continue;
            }
            let headers = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
            let reply = ask(&server, method, &path, headers, body.as_bytes());
            assert_eq!(
                (reply.status, reply.problem().as_str()),
                (500, "unverified"),
                "{method} {path}: {}",
                String::from_utf8_lossy(&reply.body)
            );
            assert_eq!(reply.json()["remaining"][0]["pid"].to_string(), scene.pids()[0]);
            assert_unended(
                &ask(&server, "GET", &format!("/v1/sandboxes/{}", scene.id), "", b"").with(200).json()["status"],
            );
        }
        let execs = format!("/v1/sandboxes/{}/execs", scene.id);
        let begun =
            ask(&server, "POST", &execs, "content-type: application/json\r\n", br#"{"command":["true"]}"#);
        assert!(
            matches!(begun.status, 404 | 409),
            "{}: {}",
            begun.status,
            String::from_utf8_lossy(&begun.body)
        );
        let listed = ask(&server, "GET", "/v1/sandboxes", "", b"").with(200).json();
        assert_unended(&listed["sandboxes"][0]["status"]);
        let host = server.host();
        for verb in [&["stop", "-t", "10ms"][..], &["kill"], &["rm", "-f"]] {
            let words = [&["--host", &host], verb, &["--patience", PATIENCE, &scene.id]].concat();
            let told = scene.call(&words);
            assert_eq!(told.code(), Some(5), "{words:?}: {}", told.err());
        }
        scene.assert_survivors_live();
        scene.let_survivors_go();
        ask(&server, "POST", &format!("{path}/kill"), "", b"");
        server.end();
        scene.assert_gone();
    }
}

/// spec: 2.7
#[test]
fn mcp_server_says_of_no_survivor_that_it_is_gone() {
    // Its calls have the patience of the record.
    for (damage, mode) in CELLS.into_iter().filter(|(damage, _)| *damage == Damage::Nothing) {
        let Some(mut scene) = Scene::start(Escape::Root, damage, mode) else { return };
        let mut client = Client::start(&scene.env, &["--all"]);
        assert_unended(&client.done("ps", &json!({}))["sandboxes"][0]["status"]);
        let (failed, text, data) = client.call("stop", &json!({ "sandbox": scene.id, "force": true }));
        assert!(failed && text.contains(&scene.pids()[0]), "{text} {data}");
        assert_unended(&client.done("ps", &json!({}))["sandboxes"][0]["status"]);
        scene.assert_survivors_live();
        scene.let_survivors_go();
        drop(client);
        scene.assert_gone();
    }
}

/// spec: 2.7, 3.6
#[test]
fn sweep_of_a_home_names_a_survivor_that_has_no_record() {
    for damage in [Damage::AllKilled, Damage::AllKilledAndRecordRemoved] {
        let Some(mut scene) = Scene::start(Escape::Root, damage, Mode::Foreground) else { return };
        let home = scene.env.root().display().to_string();
        let swept = scene.call(&["reap", "--home", &home, "-t", "10ms", "--patience", PATIENCE]).with_code(5);
        assert!(swept.err().contains(&scene.pids()[0]), "{}", swept.err());
        scene.assert_survivors_live();
        scene.let_survivors_go();
        scene.assert_gone();
    }
}
