//! Recorded execs.

use penfold_state::ExecFiles;
use penfold_state::record::Registry;
use penfold_teardown::{Cause, Level};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Events, Server, Stream, ask, delete, get, output, post, script, start};
use crate::support::{Process, Sandbox, TestEnv, wait_until};

fn exec(server: &Server, id: &str, body: &Value) -> Value {
    post(server, &format!("/v1/sandboxes/{id}/execs"), body).with(201).json()
}

fn path(id: &str, exec: &Value, rest: &str) -> String {
    format!("/v1/sandboxes/{id}/execs/{}{rest}", exec["number"])
}

fn waited(server: &Server, id: &str, exec: &Value) -> Value {
    get(server, &path(id, exec, "/wait")).with(200).json()
}

/// spec: 13.9
#[test]
fn an_exec_has_input_environment_directory_output_and_exit() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let work = env.path("work").to_str().unwrap().to_owned();
    let body = json!({ "command": ["sh", "-c", "cat; pwd; echo \"$A\" >&2; exit 4"], "stdin": "in\nput\n",
        "env": { "A": "b c" }, "dir": work, "labels": { "x": "y" } });
    let made = exec(&server, &id, &body);
    assert_eq!(made["labels"], json!({ "x": "y" }));
    let end = waited(&server, &id, &made);
    assert_eq!((&end["ended"], &end["exit"]), (&json!(true), &json!({ "code": 4 })));
    let raw = |stream: &str| {
        get(&server, &path(&id, &made, &format!("/logs?format=raw&stream={stream}"))).with(200).body
    };
    assert_eq!(raw("stdout"), format!("in\nput\n{work}\n").into_bytes());
    assert_eq!(raw("stderr"), b"b c\n");
    let binary = json!({ "command": ["od", "-An", "-tx1"], "stdin_base64": "/wD+" });
    let made = exec(&server, &id, &binary);
    waited(&server, &id, &made);
    assert_eq!(get(&server, &path(&id, &made, "/logs?format=raw")).body, b" ff 00 fe\n");
    let listed = get(&server, &format!("/v1/sandboxes/{id}/execs")).with(200).json();
    assert_eq!(listed["execs"].as_array().unwrap().len(), 2);
    delete(&server, &path(&id, &made, "")).with(204);
    assert_eq!(get(&server, &path(&id, &made, "")).with(404).problem(), "not_found");
    for (body, kind) in [
        (json!({ "command": ["no-such-program"] }), "command_not_found"),
        (json!({ "command": ["true"], "dir": "/no/such" }), "not_started"),
        (json!({ "command": ["true"], "stdin": "a", "stdin_base64": "YQ==" }), "invalid_field"),
        (json!({ "command": ["true"], "stdin_base64": "?" }), "invalid_field"),
        (json!({ "command": ["true"], "env": { "PENFOLD_X": "1" } }), "invalid_field"),
    ] {
        assert_eq!(
            post(&server, &format!("/v1/sandboxes/{id}/execs"), &body).with(422).problem(),
            kind,
            "{body}"
        );
    }
}

/// spec: 13.9.1
#[test]
fn an_exec_that_is_waited_for_answers_with_its_output_and_leaves_nothing() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let run =
        |body: &Value| post(&server, &format!("/v1/sandboxes/{id}/execs?wait=1"), body).with(200).json();
    let done = run(&json!({ "command": ["sh", "-c", "cat; echo err >&2; exit 4"], "stdin": "in" }));
    assert_eq!((&done["status"], &done["exit"]), (&json!("ended"), &json!({ "code": 4 })));
    assert_eq!(done["stdout"], json!({ "text": "in", "complete": true }));
    assert_eq!(done["stderr"], json!({ "text": "err\n", "complete": true }));
    assert!(done["ended_at_ms"].is_u64() && done["remaining"] == json!([]), "{done}");
    // It is recorded as any other.
    assert_eq!(get(&server, &path(&id, &done, "")).with(200).json()["exit"], json!({ "code": 4 }));
    // Bytes that are no text, and more than an answer has.
    let done = run(&json!({ "command": ["sh", "-c", "printf '\\377'; head -c 1048577 /dev/zero >&2"] }));
    assert_eq!(done["stdout"], json!({ "base64": "/w==", "complete": true }));
    assert_eq!(
        (&done["stderr"]["complete"], done["stderr"]["text"].as_str().unwrap().len()),
        (&json!(false), 1 << 20)
    );
    // A character that the limit cuts in two is no reason for Base64.
    let wide = run(&json!({ "command": ["sh", "-c", "printf x; yes é | tr -d '\\n' | head -c 1200000"] }));
    let text = wide["stdout"]["text"].as_str().expect("it is text");
    assert_eq!((text.len(), &wide["stdout"]["complete"]), ((1 << 20) - 1, &json!(false)));
    // A log that has dropped the oldest output is not complete.
    let lost =
        run(&json!({ "command": ["sh", "-c", "head -c 3000000 /dev/zero; echo end"], "log_size": 65536 }));
    assert_eq!(lost["stdout"]["complete"], false);
    // The answer comes after the end of all that the command has started.
    let begun = env.path("work/begun").display().to_string();
    let left =
        run(&json!({ "command": ["sh", "-c", format!("setsid sh -c 'echo $$ > {begun}; exec sleep 601' & \
        while [ ! -s {begun} ]; do sleep 0.05; done")] }));
    assert_eq!(left["status"], "ended");
    let pid: i32 = std::fs::read_to_string(&begun).unwrap().trim().parse().unwrap();
    assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap());
    let limited = run(&json!({ "command": ["sleep", "600"], "timeout_ms": 50, "grace_ms": 1000 }));
    assert_eq!(limited["cause"], "timeout");
    let refused = post(&server, &format!("/v1/sandboxes/{id}/execs?wait=2"), &json!({ "command": ["true"] }));
    assert_eq!(refused.with(422).problem(), "invalid_field");
}

/// spec: 13.9.1
#[test]
fn a_wait_for_an_exec_ends_with_its_sandbox_and_with_the_server_but_not_the_exec_with_its_client() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let execs = format!("/v1/sandboxes/{id}/execs?wait=1");
    let ask_for = |seconds: &str| {
        let mut stream = server.connect();
        let body = json!({ "command": ["sleep", seconds] }).to_string();
        super::send(&mut *stream, "POST", &execs, "", body.as_bytes());
        wait_until("it runs", || env.is_running(&format!("sleep {seconds}")));
        stream
    };
    let answer = |mut stream: Box<dyn Stream>| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let waits = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.running.pid())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "wait").count()
    };
    let leaving = ask_for("602");
    wait_until("the answer is waited for", || waits() == 1);
    drop(leaving);
    // The thread that waited ends long before the exec does.
    wait_until("nobody waits", || waits() == 0);
    assert!(env.is_running("sleep 602"));
    let waiting = ask_for("603");
    wait_until("the answer is waited for", || waits() == 1);
    server.running.signal(Signal::TERM);
    let told = answer(waiting);
    assert!(told.contains("503") && told.contains("problem:draining"), "{told}");
    server.running.finish().with_code(0);
    assert!(env.is_running("sleep 602") && env.is_running("sleep 603"), "both go on");
    let server = Server::start(&env, &["--api", "native"]);
    let mut waiting = server.connect();
    let body = json!({ "command": ["sleep", "604"] }).to_string();
    super::send(&mut *waiting, "POST", &execs, "", body.as_bytes());
    wait_until("it runs", || env.is_running("sleep 604"));
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    let told = answer(waiting);
    assert!(told.contains("409") && told.contains("problem:has_ended") || told.contains("200 "), "{told}");
    assert!(!env.is_running("sleep 602"));
}

/// What /proc tells of a process.
pub fn stat(process: &Process) -> String {
    std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default()
}

/// Starts an exec of a hostile tree that stands; returns it with the processes that it started.
fn tree(env: &TestEnv, server: &Server, id: &str) -> (Value, Vec<Process>) {
    let sandbox = Sandbox::printed(env, &format!("{id}\n"));
    let before: Vec<i32> = sandbox.members(env).iter().map(Process::pid).collect();
    let text = "setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; echo deaf; sleep 1000 & wait' &); echo lead; sleep 1000 & wait";
    let made = exec(server, id, &json!({ "command": ["sh", "-c", text], "grace_ms": 300 }));
    wait_until("the tree stands", || {
        get(server, &path(id, &made, "/logs?format=raw")).body.split(|byte| *byte == b'\n').count() == 3
    });
    let mut members = sandbox.members(env);
    members.retain(|member| !before.contains(&member.pid()));
    assert!(members.len() >= 4, "{members:?}");
    (made, members)
}

/// spec: 13.10
#[test]
fn the_end_of_an_exec_takes_its_tree_and_leaves_the_sandbox() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let leader = Sandbox::printed(&env, &format!("{id}\n")).leader().unwrap();
    for verb in ["stop", "kill"] {
        let (made, members) = tree(&env, &server, &id);
        let mut events = Events::open(&server, &path(&id, &made, "/logs"), "");
        let ended = ask(&server, "POST", &path(&id, &made, &format!("/{verb}")), "", b"").with(200).json();
        let left: Vec<String> = members.iter().filter(|member| !member.has_ended()).map(stat).collect();
        assert!(left.is_empty(), "{verb}: {left:?} {ended}");
        assert_eq!(
            (&ended["result"], &ended["report"]["verified"]),
            (&json!("gone"), &json!(true)),
            "{ended}"
        );
        assert_eq!(ended["cause"], verb);
        assert_eq!(events.rest().last().unwrap().data["cause"], verb);
        let again = ask(&server, "POST", &path(&id, &made, &format!("/{verb}")), "", b"").with(200).json();
        assert_eq!(again["result"], "already_gone");
        let reply = post(&server, &path(&id, &made, "/signal"), &json!({ "signal": "HUP" })).with(409);
        assert_eq!(reply.problem(), "has_ended");
    }
    assert!(!leader.has_ended());
}

/// spec: 13.9, 15.1
#[test]
fn an_exec_gets_signals_and_runs_on_without_its_server() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let text = "trap 'echo hup' HUP; trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let made = exec(&server, &id, &json!({ "command": ["sh", "-c", text] }));
    let mut events = Events::open(&server, &path(&id, &made, "/logs"), "");
    assert_eq!(output(&events.expect("stdout")), b"up\n");
    post(&server, &path(&id, &made, "/signal"), &json!({ "signal": "HUP" })).with(204);
    let event = events.expect("stdout");
    assert_eq!(output(&event), b"hup\n");
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &["--api", "native"]);
    assert_eq!(get(&server, &path(&id, &made, "")).json()["status"], "running");
    let header = format!("last-event-id: {}\r\n", event.id.unwrap());
    let mut events = Events::open(&server, &path(&id, &made, "/logs"), &header);
    post(&server, &path(&id, &made, "/signal"), &json!({ "signal": "USR1" })).with(204);
    let end = events.expect("end");
    assert_eq!(end.data["exit"], json!({ "code": 9 }));
}

/// spec: 13.9
#[test]
fn an_exec_with_a_terminal_can_be_resized() {
    if !crate::support::has_terminals() {
        return;
    }
    let (_env, server) = start();
    let id = script(&server, "exec sleep 600");
    let text = "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done";
    let made = exec(
        &server,
        &id,
        &json!({ "command": ["sh", "-c", text], "terminal": { "rows": 5, "columns": 40 } }),
    );
    let mut events = Events::open(&server, &path(&id, &made, "/logs"), "");
    // A terminal may pass on a line in pieces.
    let mut line = || {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(output(&events.expect("stdout")));
        }
        line
    };
    assert_eq!(line(), b"5 40\r\n");
    post(&server, &path(&id, &made, "/resize"), &json!({ "rows": 7, "columns": 50 })).with(204);
    assert_eq!(line(), b"7 50\r\n");
    events.expect("end");
}

/// spec: 13.14
#[test]
fn a_slow_follower_gets_the_end_of_an_exec_whose_record_is_the_oldest() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let execs = format!("/v1/sandboxes/{id}/execs");
    let record = Registry::open_existing(&env.root()).unwrap().unwrap().look(&id).unwrap().unwrap();
    let begin = |text: &str| {
        let body = json!({ "command": ["sh", "-c", text] });
        post(&server, &execs, &body).with(201).json()["number"].clone()
    };
    // More than the sockets and the queue take.
    let number = begin("head -c 8000000 /dev/zero | tr '\\0' x; exit 7");
    let mut events = Events::open(&server, &format!("{execs}/{number}/logs"), "");
    wait_until("the exec has ended", || {
        get(&server, &format!("{execs}/{number}")).json()["status"] == "ended"
    });
    // As many younger ones as are kept.
    for later in 0..256 {
        let exec = ExecFiles::create(&record, 1000 + later).unwrap();
        exec.replace_end(None, Cause::Exit, Level::Subreaper, 0).unwrap();
    }
    begin("true");
    begin("true");
    let mut last = None;
    while let Some(event) = events.next() {
        last = Some(event);
    }
    let last = last.unwrap();
    assert_eq!((last.name.as_str(), &last.data["exit"]), ("end", &json!({ "code": 7 })), "{last:?}");
    // Nobody reads it any more.
    wait_until("its record is gone", || {
        begin("true");
        get(&server, &format!("{execs}/{number}")).status == 404
    });
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}
