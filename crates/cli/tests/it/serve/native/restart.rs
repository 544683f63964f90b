//! The server is killed, and the next one finds everything.

use rustix::process::Signal;
use serde_json::json;

use super::{Server, get, script, start};
use crate::support::wait_until;

/// spec: 15.1
#[test]
fn the_next_server_finds_the_same_sandboxes_logs_and_exits() {
    let (env, server) = start();
    let running = script(&server, "echo up; sleep 600");
    let ended = script(&server, "echo over; exit 9");
    let later = script(&server, "echo begin; sleep 1; echo late; exit 6");
    get(&server, &format!("/v1/sandboxes/{ended}/wait")).with(200);
    wait_until("the command has written", || {
        !get(&server, &format!("/v1/sandboxes/{running}/logs")).json()["frames"]
            .as_array()
            .unwrap()
            .is_empty()
    });
    let before = [&running, &ended].map(|id| {
        (
            get(&server, &format!("/v1/sandboxes/{id}")).json(),
            get(&server, &format!("/v1/sandboxes/{id}/logs")).json(),
        )
    });
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &["--api", "native"]);
    let after = [&running, &ended].map(|id| {
        (
            get(&server, &format!("/v1/sandboxes/{id}")).json(),
            get(&server, &format!("/v1/sandboxes/{id}/logs")).json(),
        )
    });
    assert_eq!(before, after);
    let waited = get(&server, &format!("/v1/sandboxes/{later}/wait")).with(200).json();
    assert_eq!(waited["exit"], json!({ "code": 6 }));
    let raw = get(&server, &format!("/v1/sandboxes/{later}/logs?format=raw")).with(200);
    assert_eq!(raw.body, b"begin\nlate\n");
}
