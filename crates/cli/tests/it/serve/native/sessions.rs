//! Persistent shells.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::execs::stat;
use super::{Events, Reply, Server, ask, delete, get, output, post, script, start};
use crate::support::{Process, Sandbox, has_program, wait_until};

/// A sandbox with the session `main`; returns the path of the session.
fn session(server: &Server) -> (String, String) {
    let id = script(server, "exec sleep 600");
    post(server, &format!("/v1/sandboxes/{id}/sessions"), &json!({ "name": "main" })).with(201);
    let path = format!("/v1/sandboxes/{id}/sessions/main");
    (id, path)
}

#[track_caller]
fn run(server: &Server, path: &str, command: &str) -> Value {
    post(server, &format!("{path}/run"), &json!({ "command": command })).with(200).json()
}

fn said(command: &Value) -> (&str, &str, i64) {
    let text = |stream: &str| command[stream]["text"].as_str().unwrap();
    (text("stdout"), text("stderr"), command["end"]["code"].as_i64().unwrap())
}

/// spec: 15.1
#[test]
fn a_session_keeps_its_state_and_survives_the_server() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (env, server) = start();
    let (id, path) = session(&server);
    assert_eq!(
        said(&run(&server, &path, "cd /tmp; export A=1; f() { echo f$1; }; echo x >&2; false")),
        ("", "x\n", 1)
    );
    assert_eq!(said(&run(&server, &path, "pwd; echo $A; f 2")), ("/tmp\n1\nf2\n", "", 0));
    let body = json!({ "command": "pwd; echo $B", "dir": "/", "env": { "B": "b" } });
    assert_eq!(said(&post(&server, &format!("{path}/run"), &body).with(200).json()), ("/\nb\n", "", 0));
    let begun = ask(
        &server,
        "POST",
        &format!("{path}/run?wait=0"),
        "",
        br#"{"command":"echo one; sleep 1; echo two"}"#,
    );
    let number = begun.with(202).json()["number"].clone();
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &["--api", "native"]);
    let command = format!("{path}/commands/{number}");
    let mut events = Events::open(&server, &format!("{command}/logs"), "");
    let all = events.rest();
    assert_eq!(all.iter().flat_map(output).collect::<Vec<u8>>(), b"one\ntwo\n");
    assert_eq!(all.last().unwrap().name, "end");
    assert_eq!(get(&server, &command).with(200).json()["end"]["code"], 0);
    assert_eq!(said(&run(&server, &path, "pwd; f 3")), ("/tmp\nf3\n", "", 0));
    let listed = get(&server, &format!("/v1/sandboxes/{id}/sessions")).json();
    assert_eq!(listed["sessions"][0]["name"], "main");
}

#[test]
fn a_command_streams_its_output_and_can_be_interrupted() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (_env, server) = start();
    let (_, path) = session(&server);
    let body = json!({ "command": "X=kept; echo begun; sleep 600; echo not reached" }).to_string();
    let mut events = Events::ask(&server, "POST", &format!("{path}/run"), "", body.as_bytes());
    let number = events.expect("accepted").data["number"].clone();
    assert_eq!(output(&events.expect("stdout")), b"begun\n");
    let ended = post(&server, &format!("{path}/interrupt"), &json!({ "number": number })).with(200).json();
    assert_eq!((&ended["end"]["how"], &ended["end"]["code"]), (&json!("interrupted"), &json!(130)));
    // bash may say `Terminated` before.
    let end = events.rest().pop().unwrap();
    assert_eq!((end.name.as_str(), &end.data["how"]), ("end", &json!("interrupted")));
    assert_eq!(said(&run(&server, &path, "echo $X")), ("kept\n", "", 0));
    let body = json!({ "command": "sleep 600", "timeout_ms": 100 });
    let ended = post(&server, &format!("{path}/run"), &body).with(200).json();
    assert_eq!((&ended["end"]["how"], &ended["end"]["code"]), (&json!("timed_out"), &json!(124)));
    let reply = post(&server, &format!("{path}/interrupt"), &json!({ "number": 999 }));
    assert!((400..500).contains(&reply.status), "{reply:?}");
}

#[test]
fn the_delete_of_a_session_takes_all_that_it_started() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (env, server) = start();
    let (id, path) = session(&server);
    let sandbox = Sandbox::printed(&env, &format!("{id}\n"));
    run(&server, &path, "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; sleep 1000' &)");
    let body = br#"{"command":"sleep 1000"}"#;
    ask(&server, "POST", &format!("{path}/run?wait=0"), "", body).with(202);
    let leader = sandbox.leader().unwrap();
    let sleeps = || -> Vec<Process> {
        let members = sandbox.members(&env).into_iter();
        members.filter(|member| member.id() != leader.id()).collect()
    };
    wait_until("all of them run", || sleeps().len() >= 6);
    let ended = delete(&server, &path).with(200).json();
    assert_eq!((&ended["result"], &ended["report"]["verified"]), (&json!("gone"), &json!(true)));
    let left: Vec<String> = sleeps().iter().filter(|one| !one.has_ended()).map(stat).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!leader.has_ended());
    assert_eq!(delete(&server, &path).with(200).json()["result"], "already_gone");
    let not_found = |reply: Reply| assert_eq!(reply.with(404).problem(), "not_found");
    not_found(get(&server, &path));
    not_found(delete(&server, &format!("/v1/sandboxes/{id}/sessions/other")));
    not_found(post(&server, &format!("{path}/run"), &json!({ "command": "true" })));
    let sessions = format!("/v1/sandboxes/{id}/sessions");
    post(&server, &sessions, &json!({ "name": "main" })).with(201);
    assert_eq!(post(&server, &sessions, &json!({ "name": "main" })).with(409).problem(), "exists");
    assert_eq!(post(&server, &sessions, &json!({ "name": "../x" })).with(422).problem(), "invalid_field");
    let reply = post(&server, &sessions, &json!({ "name": "bad", "shell": "/no/such/bash" }));
    assert_eq!(reply.with(422).problem(), "not_started");
}

#[test]
fn of_many_creations_of_one_session_one_succeeds() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (_env, server) = start();
    let id = script(&server, "exec sleep 600");
    let sessions = format!("/v1/sandboxes/{id}/sessions");
    let creation = || post(&server, &sessions, &json!({ "name": "main" })).status;
    let mut made: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..10).map(|_| scope.spawn(creation)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    made.sort_unstable();
    assert_eq!(made, [&[201][..], &[409; 9]].concat());
    assert_eq!(get(&server, &sessions).json()["sessions"].as_array().unwrap().len(), 1);
}
