//! Another server finds everything again.

use serde_json::json;

use super::{Api, alive, output};
use crate::support::wait_until;

/// spec: 15.1
#[test]
fn sessions_processes_logs_and_codes_outlive_the_server() {
    let mut api = Api::start();
    api.post("/api/session/create", &json!({ "id": "s", "commandTimeoutMs": 300 })).ok();
    api.out("s", "cd /usr; A=1");
    api.process("s", "over", "echo kept; exit 5");
    api.follow("over").rest();
    let go = api.path("go");
    let pid = api.process(
        "s",
        "runs",
        &format!("echo before; until [ -e {go} ]; do sleep 0.05; done; echo after; exit 6"),
    );
    api.follow("runs").await_output("before");
    api.replace_server();
    assert!(alive(pid));
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["s"]));
    assert_eq!(api.out("s", "pwd; echo $A"), "/usr\n1\n");
    api.run("s", "sleep 1000").fails(500, "COMMAND_EXECUTION_ERROR");
    assert_eq!(api.status("over"), ("failed".to_owned(), Some(5)));
    assert_eq!(api.get("/api/process/over/logs").ok()["stdout"], "kept\n");
    assert_eq!(api.status("runs"), ("running".to_owned(), None));
    let stream = api.follow("runs");
    std::fs::write(&go, "").unwrap();
    let events = stream.rest();
    assert_eq!(
        (output(&events, "stdout").as_str(), events.last().unwrap()["exitCode"].as_i64()),
        ("before\nafter\n", Some(6))
    );
    api.post("/api/session/create", &json!({ "id": "s" })).fails(409, "SESSION_ALREADY_EXISTS");
    let again = json!({ "command": "true", "processId": "over" });
    api.post("/api/process/start", &again).fails(409, "PROCESS_ERROR");
    api.process("s", "last", "sleep 1000");
    api.replace_server();
    api.delete("/api/process/last").ok();
    assert_eq!(api.status("last"), ("killed".to_owned(), Some(143)));
}

/// spec: 15.5
#[test]
fn a_drained_stream_does_not_look_complete() {
    let api = Api::with(&["--drain", "20s"]);
    let pid = api.process("s", "p", "echo up; sleep 1000");
    let mut stream = api.follow("p");
    stream.await_output("up");
    api.server.running.signal(rustix::process::Signal::TERM);
    let rest = stream.rest();
    assert!(rest.iter().all(|event| event["type"] != "exit"), "{rest:?}");
    assert_eq!(rest.last().map(|event| event["type"].as_str().unwrap()), Some("error"));
    let path = api.server.path().to_owned();
    wait_until("the server is gone", || !path.try_exists().unwrap());
    assert!(alive(pid));
}
