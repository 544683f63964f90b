//! Requests that lose against the end of their sandbox, or come after it: `has_ended`, and no failure of the server.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Server, ask, post, start};
use crate::state::crash::can_crash;
use crate::support::{Process, TestEnv, skip, wait_until};

/// The places where a server is stopped between its look and its request.
pub const POINTS: [&str; 6] = [
    "exec-connected",
    "exec-end-connected",
    "leaf-opened-to-pause",
    "leaf-frozen-to-pause",
    "leaf-opened-to-unpause",
    "extend-connected",
];

/// Each request that `point` stops gets 409 `has_ended` if the sandbox is killed, or removed, in that moment.
#[track_caller]
fn lose(point: &str, path: &str, body: &Value) {
    for end in [&["kill", "ID"][..], &["rm", "-f", "ID"]] {
        let env = TestEnv::new();
        let server = Server::start_with(&env, "api.sock", &["--api", "native"], |command| {
            command.env("PENFOLD_STOP_AT", point);
        });
        let sandbox = env.detach(["sleep", "1000"]);
        if point.ends_with(":2") {
            post(
                &server,
                &format!("/v1/sandboxes/{}/execs", sandbox.id),
                &json!({ "command": ["sleep", "1001"] }),
            )
            .with(201);
        }
        let members = sandbox.members(&env);
        assert!(!members.is_empty());
        let path = format!("/v1/sandboxes/{}{path}", sandbox.id);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| post(&server, &path, body));
            wait_until("the server stands", || server.running.process().state() == Some('T'));
            sandbox.call(&env, end).with_code(0);
            assert!(members.iter().all(Process::has_ended));
            server.running.signal(Signal::CONT);
            let reply = asked.join().unwrap().with(409);
            assert_eq!(reply.problem(), "has_ended", "{path} {end:?}");
            assert_eq!(reply.json()["detail"], format!("sandbox {} has ended", sandbox.id));
        });
        let _ = ask(&server, "DELETE", &format!("/v1/sandboxes/{}", sandbox.id), "", b"");
        server.end();
        env.assert_nothing_left();
    }
}

/// spec: 15.13
#[test]
fn an_exec_or_a_session_that_starts_beside_a_kill_has_ended() {
    if can_crash() {
        lose("serve-exec-wanted", "/execs", &json!({ "command": ["true"] }));
        lose("exec-connected", "/execs", &json!({ "command": ["true"] }));
        lose("exec-connected", "/sessions", &json!({ "name": "main" }));
    }
}

/// spec: 15.13
#[test]
fn a_signal_or_a_lease_beside_a_kill_has_ended() {
    if can_crash() {
        lose("exec-connected:2", "/execs/1/signal", &json!({ "signal": "HUP" }));
        lose("exec-connected:2", "/execs/1/resize", &json!({ "rows": 2, "columns": 2 }));
        lose("extend-connected", "/extend", &json!({ "lease_ms": 60_000 }));
    }
}

/// spec: 15.13
#[test]
fn an_exec_that_is_ended_beside_its_sandbox_is_gone() {
    if !can_crash() {
        return;
    }
    for act in ["kill", "stop"] {
        let env = TestEnv::new();
        let server = Server::start_with(&env, "api.sock", &["--api", "native"], |command| {
            command.env("PENFOLD_STOP_AT", "exec-end-connected");
        });
        let sandbox = env.detach(["sleep", "1000"]);
        let path = format!("/v1/sandboxes/{}/execs", sandbox.id);
        post(&server, &path, &json!({ "command": ["sleep", "1001"] })).with(201);
        assert!(env.is_running("sleep 1001"));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| post(&server, &format!("{path}/1/{act}"), &json!({})));
            wait_until("the server stands", || server.running.process().state() == Some('T'));
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
            assert!(!env.is_running("sleep 1001"));
            server.running.signal(Signal::CONT);
            assert_eq!(asked.join().unwrap().with(200).json()["result"], "gone", "{act}");
        });
        server.end();
    }
}

/// spec: 15.13
#[test]
fn a_pause_that_loses_against_a_kill_has_ended() {
    if !can_crash() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1000"]);
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    if sandbox.leaf.is_none() {
        return skip("no cgroup can be made here");
    }
    lose("leaf-opened-to-pause", "/pause", &json!({}));
    // The events file of a removed leaf is ready at once, for ever.
    lose("leaf-frozen-to-pause", "/pause", &json!({}));
    lose("leaf-opened-to-unpause", "/unpause", &json!({}));
}

/// spec: 15.13
#[test]
fn what_needs_a_command_is_told_that_the_sandbox_has_ended() {
    let (env, server) = start();
    let sandbox = env.detach(["sleep", "1000"]);
    let path = format!("/v1/sandboxes/{}", sandbox.id);
    post(&server, &format!("{path}/execs"), &json!({ "command": ["sleep", "1001"] })).with(201);
    assert!(!sandbox.members(&env).is_empty());
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    for (rest, body) in [
        ("/execs", json!({ "command": ["true"] })),
        ("/sessions", json!({ "name": "main" })),
        ("/execs/1/signal", json!({ "signal": "HUP" })),
        ("/execs/1/resize", json!({ "rows": 2, "columns": 2 })),
        ("/extend", json!({ "lease_ms": 60_000 })),
        ("/pause", json!({})),
        ("/unpause", json!({})),
    ] {
        let reply = post(&server, &format!("{path}{rest}"), &body).with(409);
        assert_eq!(reply.problem(), "has_ended", "{rest}: {}", reply.json());
    }
    server.end();
}
