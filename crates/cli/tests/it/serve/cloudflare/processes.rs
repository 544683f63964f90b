//! Processes: started, listed, followed.

use std::sync::Barrier;

use serde_json::{Value, json};

use super::super::{Server, native};
use super::{Api, alive, output};
use crate::support::wait_until;

#[test]
fn a_process_runs_and_its_record_tells_all() {
    let api = Api::start();
    let pid = api.process("s", "p", "echo out; echo err >&2; printf last; exit 3");
    let events = api.follow("p").rest();
    let first = &events[0];
    assert_eq!((first["type"].as_str(), first["processId"].as_str()), (Some("process_info"), Some("p")));
    assert_eq!(
        (output(&events, "stdout").as_str(), output(&events, "stderr").as_str()),
        ("out\nlast", "err\n")
    );
    let last = events.last().unwrap();
    assert_eq!((last["type"].as_str(), last["exitCode"].as_i64()), (Some("exit"), Some(3)));
    assert_eq!(last["data"], "Process failed with exit code 3");
    let process = api.get("/api/process/p").ok()["process"].clone();
    let facts = ["id", "pid", "status", "exitCode", "command"].map(|field| process[field].clone());
    assert_eq!(json!(facts), json!(["p", pid, "failed", 3, "echo out; echo err >&2; printf last; exit 3"]));
    assert!(process["startTime"].as_str() <= process["endTime"].as_str());
    let logs = api.get("/api/process/p/logs").ok();
    assert_eq!(
        (logs["stdout"].as_str(), logs["stderr"].as_str(), logs["processId"].as_str()),
        (Some("out\nlast"), Some("err\n"), Some("p"))
    );
    // A process that has ended is told again from the beginning.
    assert_eq!(output(&api.follow("p").rest(), "stdout"), "out\nlast");
}

#[test]
fn status_words_tell_how_a_process_ended() {
    let api = Api::start();
    for (command, word, code) in [
        ("exit 0", "completed", 0),
        ("exit 1", "failed", 1),
        ("exit 130", "failed", 130),
        ("exit 255", "failed", 255),
        ("exit 137", "killed", 137),
        ("exit 143", "killed", 143),
        ("kill -9 $$", "killed", 137),
        ("kill -TERM $$", "killed", 143),
        ("kill -SEGV $$", "failed", 139),
        ("no-such-program", "failed", 127),
    ] {
        let id = format!("p-{}-{code}", command.replace([' ', '$'], ""));
        api.process("s", &id, command);
        assert_eq!(api.follow(&id).rest().pop().unwrap()["exitCode"], code, "{command}");
        assert_eq!(api.status(&id), (word.to_owned(), Some(code)), "{command}");
    }
    let listed = |status: &str| {
        let told = api.get(&format!("/api/process/list?status={status}")).ok();
        told["processes"].as_array().unwrap().len()
    };
    assert_eq!((listed("completed"), listed("failed"), listed("killed"), listed("running")), (1, 5, 4, 0));
    assert_eq!(api.get("/api/process/list").ok()["processes"].as_array().unwrap().len(), 10);
}

#[test]
fn a_process_has_the_state_of_the_shell() {
    let api = Api::start();
    for round in 0..20 {
        // The state of a command is there as soon as its answer.
        api.out("s", &format!("cd /usr; export A={round}; f() {{ echo fun$A; }}; alias g='echo alias'"));
        let id = format!("p{round}");
        api.process("s", &id, "pwd; f; g\ncat; echo $0");
        assert_eq!(output(&api.follow(&id).rest(), "stdout"), format!("/usr\nfun{round}\nalias\nbash\n"));
    }
    let start = json!({ "command": "echo $A $B; pwd", "sessionId": "s", "processId": "own", "env": { "A": "it's", "B": "2" }, "cwd": "/" });
    api.post("/api/process/start", &start).ok();
    assert_eq!(output(&api.follow("own").rest(), "stdout"), "it's 2\n/\n");
    let long = format!("echo {} | wc -c", "x".repeat(300_000));
    api.process("s", "long", &long);
    assert_eq!(output(&api.follow("long").rest(), "stdout"), "300001\n");
}

#[test]
fn what_cannot_start_is_an_error() {
    let api = Api::start();
    for command in ["", " \n"] {
        for path in ["/api/process/start", "/api/execute/stream"] {
            api.post(path, &json!({ "command": command })).fails(400, "INVALID_COMMAND");
        }
    }
    api.post("/api/process/start", &json!({})).fails(400, "INVALID_COMMAND");
    let missing = json!({ "command": "true", "processId": "p", "cwd": "/no/such" });
    let error = api.post("/api/process/start", &missing).fails(500, "STREAM_START_ERROR");
    assert!(
        error["message"].as_str().unwrap().contains("Failed to change directory to '/no/such'"),
        "{error}"
    );
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
    api.process("default", "p", "true");
}

#[test]
fn an_unknown_process_is_not_found() {
    let api = Api::start();
    for told in [
        api.get("/api/process/none"),
        api.delete("/api/process/none"),
        api.get("/api/process/none/logs"),
        api.get("/api/process/none/stream"),
    ] {
        assert_eq!(told.fails(404, "PROCESS_NOT_FOUND")["context"]["processId"], "none");
    }
}

#[test]
fn a_stream_of_a_command_begins_with_start_and_ends_with_its_code() {
    let api = Api::start();
    api.out("s", "export A=1");
    let body = json!({ "command": "echo $A; printf two >&2; exit 4", "sessionId": "s" });
    let events = api.events("POST", "/api/execute/stream", &body).rest();
    assert_eq!((events[0]["type"].as_str(), &events[0]["command"]), (Some("start"), &body["command"]));
    assert_eq!((output(&events, "stdout").as_str(), output(&events, "stderr").as_str()), ("1\n", "two"));
    let last = events.last().unwrap();
    assert_eq!((last["type"].as_str(), last["exitCode"].as_i64()), (Some("complete"), Some(4)));
}

#[test]
fn a_client_that_goes_away_ends_nothing() {
    let api = Api::start();
    let body = json!({ "command": "echo up; sleep 0.7; echo done", "sessionId": "s" });
    let mut events = api.events("POST", "/api/execute/stream", &body);
    let id = events.next().unwrap()["processId"].as_str().unwrap().to_owned();
    events.await_output("up");
    drop(events);
    assert_eq!(api.status(&id).0, "running");
    assert_eq!(output(&api.follow(&id).rest(), "stdout"), "up\ndone\n");
}

#[test]
fn followers_get_each_line_once() {
    let api = Api::start();
    api.process(
        "s",
        "p",
        "for i in $(seq 3000); do echo line $i; [ $((i % 300)) = 0 ] && sleep 0.02; done; true",
    );
    let lines: Vec<String> = (1..=3000).map(|number| format!("line {number}")).collect();
    let wanted = lines.join("\n") + "\n";
    std::thread::scope(|scope| {
        for _ in 0..10 {
            let follow = || {
                let events: Vec<Value> = api.follow("p").rest();
                assert!(output(&events, "stdout") == wanted);
                assert_eq!(events.last().unwrap()["exitCode"], 0);
            };
            scope.spawn(follow);
        }
    });
}

#[test]
fn a_time_limit_of_a_process_ends_its_tree() {
    let api = Api::start();
    let start = json!({ "command": "sleep 1000", "sessionId": "s", "processId": "p", "timeoutMs": 200 });
    api.post("/api/process/start", &start).ok();
    assert_eq!(api.follow("p").rest().pop().unwrap()["exitCode"], 143);
    assert_eq!(api.status("p"), ("killed".to_owned(), Some(143)));
}

/// spec: 13.14
#[test]
fn the_oldest_ended_processes_are_forgotten_and_no_other() {
    const KEPT: usize = 256;
    let api = Api::with(&["--api", "native,cloudflare"]);
    let running = api.process("s", "running", "sleep 1000");
    let list = || api.get("/api/process/list").ok()["processes"].as_array().unwrap().clone();
    let ended = || list().iter().filter(|process| process["status"] == "completed").count();
    // Its client does not read so far.
    api.process("s", "followed", "seq 200000");
    let mut followed = api.follow("followed");
    followed.await_output("1\n");
    for number in 0..KEPT + 10 {
        api.process("s", &format!("p{number}"), "true");
    }
    wait_until("all have ended", || ended() == list().len() - 1);
    api.process("s", "last", "exit 5");
    api.follow("last").rest();
    assert_eq!(list().len(), KEPT + 2);
    for id in ["p0", "p9"] {
        api.get(&format!("/api/process/{id}")).fails(404, "PROCESS_NOT_FOUND");
        api.delete(&format!("/api/process/{id}")).fails(404, "PROCESS_NOT_FOUND");
    }
    assert_eq!(api.status("last"), ("failed".to_owned(), Some(5)));
    assert_eq!(api.status("running").0, "running");
    assert!(alive(running));
    // The id is free again.
    api.process("s", "p0", "exit 6");
    assert_eq!(api.follow("p0").rest().pop().unwrap()["exitCode"], 6);
    let rest = followed.rest();
    assert!(output(&rest, "stdout").ends_with("\n199999\n200000\n"));
    assert_eq!(rest.last().unwrap()["exitCode"], 0);
    // The execs of the other API have the same bound.
    let sandboxes = native::get(&api.server, "/v1/sandboxes").json();
    let execs = format!("/v1/sandboxes/{}/execs", native::claimed(&sandboxes)[0]);
    for _ in 0..3 {
        let exec = native::post(&api.server, &execs, &json!({ "command": ["true"] })).with(201).json();
        native::get(&api.server, &format!("{execs}/{}/wait", exec["number"])).with(200);
    }
    let all = native::get(&api.server, &execs).json();
    assert_eq!(all["execs"].as_array().unwrap().len(), KEPT + 2);
}

/// spec: 15.8
#[test]
fn of_two_servers_one_gives_an_id_to_a_process() {
    let api = Api::start();
    let other = Server::start_with(&api.env, "other.sock", &["--api", "cloudflare"], |_| ());
    let servers = [(&api.server, "s"), (&other, "t")];
    let start = |(server, session): (&Server, &str), id: &str| {
        let body = json!({ "command": "sleep 1000", "sessionId": session, "processId": id });
        native::post(server, "/api/process/start", &body)
    };
    // Each server knows its own processes only.
    start(servers[0], "first").with(200);
    start(servers[1], "second").with(200);
    for id in ["first", "second"] {
        for server in servers {
            assert_eq!(start(server, id).with(409).json()["code"], "PROCESS_ERROR", "{id}");
        }
    }
    for round in 0..20 {
        let id = format!("p{round}");
        let both = Barrier::new(2);
        let started = std::thread::scope(|scope| {
            let handles = servers.map(|server| {
                let (both, start, id) = (&both, &start, &id);
                scope.spawn(move || {
                    both.wait();
                    start(server, id).status
                })
            });
            handles.map(|handle| handle.join().unwrap())
        });
        assert!(matches!(started, [200, 409] | [409, 200]), "{started:?}");
    }
    let listed = api.get("/api/process/list").ok();
    let mut ids: Vec<&str> = listed["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 22);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 22, "{ids:?}");
    // An id is free again with its session, and after a start that failed.
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    start(servers[1], "first").with(200);
    let body = json!({ "command": "true", "sessionId": "t", "processId": "wrong", "cwd": "/no/such" });
    native::post(&other, "/api/process/start", &body).with(500);
    start(servers[0], "wrong").with(200);
    for session in ["s", "t"] {
        api.post("/api/session/delete", &json!({ "sessionId": session })).ok();
    }
    other.end();
}
