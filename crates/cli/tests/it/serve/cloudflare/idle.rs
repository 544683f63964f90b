//! `serve --session-idle`: a session that no client uses ends, and no other.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Api;
use super::watch::watch_new;
use crate::serve::websocket::WebSocket;
use crate::support::{Process, TestEnv, has_program, wait_until};

/// The tree of a process of a session.
fn tree(api: &Api, session: &str) -> Vec<Process> {
    let pid = api.process(session, &format!("{session}-p"), "setsid sleep 4816 & exec sleep 4817");
    let shell: i32 = api.out(session, "echo $$").trim().parse().unwrap();
    [pid, shell].map(|pid| Process::find(pid).expect("it lives")).into()
}

fn cause(env: &TestEnv, session: &str) -> Value {
    let label = format!("label=penfold.session={session}");
    let listed = env.call(["ps", "-a", "--json", "--filter", &label]).with_code(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    listed[0]["cause"].clone()
}

/// spec: 15.24
#[test]
fn a_session_that_no_client_uses_ends_with_all_that_it_started() {
    let api = Api::with(&["--session-idle", "2s"]);
    let members = tree(&api, "s");
    let last_use = Instant::now();
    api.out("s", "true");
    assert!(members.iter().all(|member| !member.has_ended()));
    wait_until("the session has ended", || members.iter().all(Process::has_ended));
    let idle = last_use.elapsed();
    assert!(idle >= Duration::from_secs(2) && idle < Duration::from_secs(6), "{idle:?}");
    wait_until("its end is recorded", || cause(&api.env, "s") == "ttl");
    // The id is free.
    assert_eq!(api.out("s", "echo new"), "new\n");
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.24
#[test]
fn a_session_ends_by_its_idle_limit_without_a_server() {
    let Api { env, server } = Api::with(&["--session-idle", "1s"]);
    let api = Api { env, server };
    let members = tree(&api, "s");
    api.server.running.signal(rustix::process::Signal::KILL);
    wait_until("the session has ended", || members.iter().all(Process::has_ended));
    let Api { env, server } = api;
    server.running.finish().with_code(137);
    wait_until("its end is recorded", || cause(&env, "s") == "ttl");
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.call(["gc", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// Each way to use a session, for longer than its idle limit, with a server that was not told of the limit.
/// spec: 15.24
#[test]
fn a_session_that_a_client_uses_does_not_end() {
    let mut api = Api::with(&["--session-idle", "2s"]);
    let mut ways = vec!["execute", "stream", "terminal", "watch", "asking", "files"];
    if has_program(&["python3", "--version"]) {
        ways.push("code");
    }
    for way in &ways {
        api.out(way, "kept=yes");
    }
    api.replace_server();
    api.process("stream", "streamed", "sleep 4; echo end");
    let mut stream = api.follow("streamed");
    let terminal = WebSocket::open(&api.server, "/ws/pty?sessionId=terminal&shell=sh");
    let (_, watched) = watch_new(&api, "watched", &json!({ "sessionId": "watch" }));
    api.process("asking", "asked", "sleep 4");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(api.out("execute", "sleep 4; echo $kept"), "yes\n"));
        if ways.contains(&"code") {
            let code = json!({ "code": "import time; time.sleep(4)", "sessionId": "code" });
            let api = &api;
            scope.spawn(move || {
                let told = api.post("/api/execute/code", &code);
                assert!(String::from_utf8_lossy(&told.body).contains("execution_complete"), "{told:?}");
            });
        }
        wait_until("the process that is asked for has ended", || {
            api.post("/api/exists", &json!({ "path": "/", "sessionId": "files" })).ok();
            api.status("asked").0 != "running"
        });
    });
    stream.await_output("end");
    let now = |way: &str| cause(&api.env, way);
    assert!(
        ways.iter().map(|way| now(way)).all(|cause| cause.is_null()),
        "{:?}",
        ways.iter().map(|way| now(way)).collect::<Vec<_>>()
    );
    for way in &ways {
        assert_eq!(api.out(way, "echo $kept"), "yes\n", "{way}");
    }
    drop((terminal, watched, stream));
    for way in &ways {
        api.post("/api/session/delete", &json!({ "sessionId": way })).ok();
    }
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.24
#[test]
fn a_client_that_has_left_uses_its_session_no_more() {
    let api = Api::with(&["--session-idle", "1s"]);
    api.process("stream", "p", "sleep 4820");
    let stream = api.follow("p");
    let terminal = WebSocket::open(&api.server, "/ws/pty?sessionId=terminal&shell=sh");
    let (_, watched) = watch_new(&api, "watched", &json!({ "sessionId": "stream" }));
    let left = Instant::now();
    drop((stream, terminal, watched));
    for way in ["stream", "terminal"] {
        wait_until("the session has ended", || cause(&api.env, way) == "ttl");
    }
    assert!(left.elapsed() < Duration::from_secs(6), "{:?}", left.elapsed());
    let Api { env, server } = api;
    server.end();
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.call(["gc", "-f"]).with_code(0);
    env.assert_nothing_left();
}

#[test]
fn an_idle_limit_that_is_none_is_refused() {
    let env = TestEnv::new();
    for (given, part) in [("10ms", "less than 1s"), ("0", "less than 1s"), ("x", "not a duration")] {
        let done = env.call(["serve", "--listen", "unix:api.sock", "--session-idle", given]).with_code(2);
        assert!(done.err().contains(part), "{}", done.err());
    }
}
