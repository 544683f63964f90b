//! The requests, and what must be so after the crash.

use std::fs;

use serde_json::{Value, json};

use super::{Case, Scene, e2b, over_socket, rpc_terminal};
use crate::serve::cloudflare::{alive, output, pid_in};
use crate::serve::native::{self, Events};
use crate::serve::websocket::{Frame, WebSocket};
use crate::support::{Process, wait_until};
use rustix::process::Signal;

const fn case(point: &'static str, request: &'static str, run: fn(&mut Scene)) -> Case {
    Case { point, request, run }
}

pub(super) const CASES: &[Case] = &[
    case("serve-admitted", "", a_session_was_not_made),
    case("serve-sandbox-wanted", "", a_session_was_not_made),
    case("serve-sandbox-made", "session", a_session_was_made),
    case("serve-sandbox-made", "key", a_sandbox_was_made),
    case("serve-answering", "", a_sandbox_was_made),
    case("serve-exec-wanted", "", an_exec_was_not_started),
    case("serve-exec-started", "", an_exec_was_started),
    case("serve-exec-end-wanted", "", an_exec_goes_on),
    case("serve-exec-ended", "", an_exec_has_ended),
    case("serve-host-started", "", a_host_was_started),
    case("serve-host-kill-wanted", "", a_host_goes_on),
    case("serve-host-killed", "", a_host_has_ended),
    case("serve-command-accepted", "", a_command_runs_on),
    case("serve-interrupted", "", a_command_was_interrupted),
    case("serve-execute-accepted", "", an_execute_runs_on),
    case("serve-execute-ended", "", an_execute_has_ended),
    case("serve-sessionless-started", "", a_sessionless_command_runs_on),
    case("serve-sessionless-ended", "", a_sessionless_command_has_ended),
    case("serve-process-reserved", "", a_process_was_not_started),
    case("serve-process-started", "", a_process_was_started),
    case("serve-process-started", "socket", a_process_was_started_over_a_socket),
    case("serve-terminal-started", "", a_terminal_was_started),
    case("serve-rpc-terminal-started", "", rpc_terminal::was_started),
    case("serve-rpc-terminal-started", "removed", rpc_terminal::was_started_and_removed),
    case("serve-input-written", "", an_input_was_written_once),
    case("serve-tool-started", "", an_archive_is_completed),
    case("serve-kill-wanted", "", a_process_goes_on),
    case("serve-killed", "", a_process_has_ended),
    case("serve-kill-all-wanted", "", processes_go_on),
    case("serve-all-killed", "", processes_have_ended),
    case("serve-delete-wanted", "", a_session_goes_on),
    case("serve-deleted", "", a_session_has_ended),
    case("serve-end-wanted", "", a_sandbox_goes_on),
    case("serve-ended", "kill", a_sandbox_was_killed),
    case("serve-ended", "delete", a_sandbox_was_deleted),
    case("serve-answering", "kill accepted", an_accepted_kill_is_completed),
    case("serve-answering", "exec kill accepted", an_accepted_kill_of_an_exec_is_completed),
    case("serve-part-sent", "process", a_stream_of_a_process_is_cut_off),
    case("serve-part-sent", "log", a_followed_log_goes_on),
    case("serve-upload-begun", "", a_file_is_as_before),
    case("serve-upload-whole", "", a_file_is_as_before),
    case("serve-upload-named", "", a_draft_is_removed),
    case("serve-guest-command-wanted", "", e2b::a_command_was_not_started),
    case("serve-guest-command-started", "", e2b::a_command_was_started),
    case("serve-paused", "", e2b::a_sandbox_was_paused),
    case("serve-resuming", "", e2b::a_sandbox_is_still_paused),
    case("serve-ended", "e2b", e2b::a_sandbox_was_deleted),
    case("serve-draining", "", a_drain_ends_nothing),
];

/// A command that takes a while, and leaves a daemon.
const TREE: &str = "setsid sleep 1000 & exec sleep 1000";

fn a_session_was_not_made(scene: &mut Scene) {
    let answer = scene.crash(|scene| scene.api.send("POST", "/api/session/create", "", r#"{"id":"t"}"#));
    assert!(answer.is_empty());
    assert_eq!(scene.sessions(), json!(["s"]));
    assert_eq!(scene.sandboxes(true).len(), 2);
    scene.api.post("/api/session/create", &json!({ "id": "t" })).ok();
}

fn a_session_was_made(scene: &mut Scene) {
    let answer = scene.crash(|scene| scene.api.send("POST", "/api/session/create", "", r#"{"id":"t"}"#));
    assert!(answer.is_empty());
    assert_eq!(scene.sessions(), json!(["s", "t"]));
    scene.api.post("/api/session/create", &json!({ "id": "t" })).fails(409, "SESSION_ALREADY_EXISTS");
    assert_eq!(scene.api.out("t", "echo usable"), "usable\n");
}

/// The same request with the same key gets the sandbox.
fn a_sandbox_was_made(scene: &mut Scene) {
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let key = "idempotency-key: k\r\n";
    let answer = scene.crash(|scene| scene.send("POST", "/v1/sandboxes", key, body.as_bytes()));
    assert!(answer.is_empty());
    assert_eq!(scene.sandboxes(true).len(), 3);
    let again = native::ask(scene.server(), "POST", "/v1/sandboxes", key, body.as_bytes()).with(200).json();
    assert_eq!(again["status"], "running");
    assert_eq!(scene.sandboxes(true).len(), 3);
}

/// Makes an exec with a daemon; returns its path and its pid.
fn exec(scene: &Scene) -> (String, i32) {
    let body = json!({ "command": ["sh", "-c", TREE] });
    let made = native::post(scene.server(), &scene.path("/execs"), &body).with(201).json();
    (scene.path(&format!("/execs/{}", made["number"])), super::super::cloudflare::pid(&made["pid"]))
}

fn an_exec_was_not_started(scene: &mut Scene) {
    let body = json!({ "command": ["sleep", "1000"] });
    assert!(scene.crash(|scene| scene.send_json(&scene.path("/execs"), &body)).is_empty());
    assert_eq!(scene.native(&scene.path("/execs"))["execs"], json!([]));
}

fn an_exec_was_started(scene: &mut Scene) {
    let body = json!({ "command": ["sh", "-c", TREE] });
    assert!(scene.crash(|scene| scene.send_json(&scene.path("/execs"), &body)).is_empty());
    let listed = scene.native(&scene.path("/execs"))["execs"].clone();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["status"]), (1, &json!("running")));
    kill_exec(scene, &scene.path(&format!("/execs/{}", listed[0]["number"])), "gone");
}

fn kill_exec(scene: &Scene, path: &str, result: &str) {
    let ended = native::post(scene.server(), &format!("{path}/kill"), &json!({})).with(200).json();
    assert_eq!((&ended["result"], &ended["report"]["verified"]), (&json!(result), &json!(true)), "{ended}");
}

fn an_exec_goes_on(scene: &mut Scene) {
    let (path, pid) = exec(scene);
    assert!(scene.crash(|scene| scene.send_json(&format!("{path}/kill"), &json!({}))).is_empty());
    assert!(alive(pid));
    assert_eq!(scene.native(&path)["status"], "running");
    kill_exec(scene, &path, "gone");
    assert!(!alive(pid));
}

fn an_exec_has_ended(scene: &mut Scene) {
    let (path, pid) = exec(scene);
    assert!(scene.crash(|scene| scene.send_json(&format!("{path}/kill"), &json!({}))).is_empty());
    assert!(!alive(pid));
    let told = scene.native(&path);
    let seen = (&told["status"], &told["cause"], &told["exit"]);
    assert_eq!(seen, (&json!("ended"), &json!("kill"), &json!({ "signal": 9 })));
    kill_exec(scene, &path, "already_gone");
}

const MAIN: &str = "/sessions/main";

fn begin_session(scene: &Scene) {
    let body = json!({ "name": "main" });
    native::post(scene.server(), &scene.path("/sessions"), &body).with(201);
}

fn run(scene: &Scene, command: &str) -> Value {
    let path = scene.path(&format!("{MAIN}/run"));
    native::post(scene.server(), &path, &json!({ "command": command })).with(200).json()
}

fn a_host_was_started(scene: &mut Scene) {
    let body = json!({ "name": "main" });
    assert!(scene.crash(|scene| scene.send_json(&scene.path("/sessions"), &body)).is_empty());
    assert_eq!(scene.native(&scene.path(MAIN))["name"], "main");
    let again = native::post(scene.server(), &scene.path("/sessions"), &body).with(409);
    assert_eq!(again.problem(), "exists");
    assert_eq!(run(scene, "echo usable")["stdout"]["text"], "usable\n");
    let ended = native::delete(scene.server(), &scene.path(MAIN)).with(200).json();
    assert_eq!((&ended["result"], &ended["report"]["verified"]), (&json!("gone"), &json!(true)));
}

fn a_host_goes_on(scene: &mut Scene) {
    begin_session(scene);
    run(scene, "A=7");
    assert!(scene.crash(|scene| scene.send("DELETE", &scene.path(MAIN), "", b"")).is_empty());
    assert_eq!(run(scene, "echo $A")["stdout"]["text"], "7\n");
    let ended = native::delete(scene.server(), &scene.path(MAIN)).with(200).json();
    assert_eq!(ended["result"], "gone");
}

fn a_host_has_ended(scene: &mut Scene) {
    begin_session(scene);
    let pid = run(scene, "setsid sleep 1000 & echo $!")["stdout"]["text"].as_str().unwrap().trim().parse();
    assert!(scene.crash(|scene| scene.send("DELETE", &scene.path(MAIN), "", b"")).is_empty());
    assert!(!alive(pid.unwrap()));
    assert_eq!(scene.native(&scene.path("/sessions"))["sessions"], json!([]));
    native::get(scene.server(), &scene.path(MAIN)).with(404);
    let again = native::delete(scene.server(), &scene.path(MAIN)).with(200).json();
    assert_eq!((&again["result"], &again["report"]["verified"]), (&json!("already_gone"), &json!(true)));
    begin_session(scene);
}

/// A command that waits for the file `go`.
fn waiting(scene: &Scene) -> String {
    let (up, go) = (scene.path_of("up"), scene.path_of("go"));
    format!("B=2; echo $$ > {up}; until [ -e {go} ]; do sleep 0.05; done; echo done")
}

fn go(scene: &Scene) {
    fs::write(scene.path_of("go"), "").unwrap();
}

fn a_command_runs_on(scene: &mut Scene) {
    begin_session(scene);
    let body = json!({ "command": waiting(scene) });
    let answer = scene.crash(|scene| scene.send_json(&scene.path(&format!("{MAIN}/run")), &body));
    assert!(answer.is_empty());
    let path = scene.path(&format!("{MAIN}/commands/1"));
    assert_eq!(scene.native(&path)["end"], Value::Null);
    assert!(alive(pid_in(&scene.path_of("up"))));
    go(scene);
    wait_until("the command has ended", || !scene.native(&path)["end"].is_null());
    let told = scene.native(&path);
    assert_eq!((&told["end"]["code"], &told["stdout"]["text"]), (&json!(0), &json!("done\n")), "{told}");
    assert_eq!(run(scene, "echo $B")["stdout"]["text"], "2\n");
}

fn a_command_was_interrupted(scene: &mut Scene) {
    begin_session(scene);
    let up = scene.path_of("up");
    let path = scene.path(&format!("{MAIN}/run?wait=0"));
    let body = json!({ "command": format!("B=2; sh -c 'echo $$ > {up}; exec sleep 1000'"), "grace_ms": 0 });
    native::post(scene.server(), &path, &body).with(202);
    let pid = pid_in(&up);
    let interrupt = scene.path(&format!("{MAIN}/interrupt"));
    assert!(scene.crash(|scene| scene.send_json(&interrupt, &json!({ "number": 1 }))).is_empty());
    let path = scene.path(&format!("{MAIN}/commands/1"));
    wait_until("the command has ended", || !scene.native(&path)["end"].is_null());
    assert_eq!(scene.native(&path)["end"]["how"], "interrupted");
    assert!(!alive(pid));
    assert_eq!(run(scene, "echo $B")["stdout"]["text"], "2\n");
}

fn an_execute_runs_on(scene: &mut Scene) {
    scene.api.out("t", "A=1");
    let body = json!({ "command": waiting(scene), "sessionId": "t" }).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/execute", "", &body)).is_empty());
    assert!(alive(pid_in(&scene.path_of("up"))));
    assert_eq!(scene.sessions(), json!(["s", "t"]));
    go(scene);
    assert_eq!(scene.api.out("t", "echo $A $B"), "1 2\n");
}

fn an_execute_has_ended(scene: &mut Scene) {
    let body = json!({ "command": "B=2; echo end", "sessionId": "t" }).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/execute", "", &body)).is_empty());
    assert_eq!(scene.api.out("t", "echo $B"), "2\n");
}

const SESSIONLESS: &str = "__DISABLE_SESSION__";

fn a_sessionless_command_runs_on(scene: &mut Scene) {
    let up = scene.path_of("up");
    let command = format!("setsid sleep 1000 & echo $$ > {up}; exec sleep 1000");
    let body = json!({ "command": command, "sessionId": SESSIONLESS }).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/execute", "", &body)).is_empty());
    let pid = pid_in(&up);
    assert!(alive(pid));
    // Its sandbox is listed, and ends with this id.
    assert_eq!(scene.sandboxes(false).len(), 3);
    scene.api.post("/api/session/delete", &json!({ "sessionId": SESSIONLESS })).ok();
    assert!(!alive(pid));
    assert_eq!(scene.sandboxes(true).len(), 2);
}

fn a_sessionless_command_has_ended(scene: &mut Scene) {
    let body = json!({ "command": "echo a", "sessionId": SESSIONLESS }).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/execute", "", &body)).is_empty());
    assert_eq!(scene.api.out(SESSIONLESS, "echo again"), "again\n");
}

fn start(command: &str) -> Value {
    json!({ "command": command, "sessionId": "s", "processId": "q" })
}

fn a_process_was_not_started(scene: &mut Scene) {
    let body = start(TREE).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/process/start", "", &body)).is_empty());
    scene.api.get("/api/process/q").fails(404, "PROCESS_NOT_FOUND");
    // The id is free.
    scene.api.process("s", "q", TREE);
}

fn a_process_was_started(scene: &mut Scene) {
    let body = start(TREE).to_string();
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/process/start", "", &body)).is_empty());
    assert_eq!(scene.api.status("q").0, "running");
    assert_eq!(scene.api.post("/api/process/start", &start(TREE)).status, 409);
    scene.api.delete("/api/process/q").ok();
    assert_eq!(scene.api.status("q"), ("killed".to_owned(), Some(143)));
}

fn a_process_goes_on(scene: &mut Scene) {
    let pid = scene.api.process("s", "q", TREE);
    assert!(scene.crash(|scene| scene.api.send("DELETE", "/api/process/q", "", "")).is_empty());
    assert!(alive(pid));
    assert_eq!(scene.api.status("q").0, "running");
    scene.api.delete("/api/process/q").ok();
    assert!(!alive(pid));
}

fn a_process_has_ended(scene: &mut Scene) {
    let pid = scene.api.process("s", "q", TREE);
    assert!(scene.crash(|scene| scene.api.send("DELETE", "/api/process/q", "", "")).is_empty());
    assert!(!alive(pid));
    assert_eq!(scene.api.status("q"), ("killed".to_owned(), Some(143)));
    scene.api.delete("/api/process/q").fails(404, "COMMAND_NOT_FOUND");
}

fn processes_go_on(scene: &mut Scene) {
    let pid = scene.api.process("t", "q", TREE);
    assert!(scene.crash(|scene| scene.api.send("DELETE", "/api/process/kill-all", "", "")).is_empty());
    assert!(alive(pid));
    assert_eq!(scene.api.status("q").0, "running");
}

fn processes_have_ended(scene: &mut Scene) {
    let pid = scene.api.process("t", "q", TREE);
    assert!(scene.crash(|scene| scene.api.send("DELETE", "/api/process/kill-all", "", "")).is_empty());
    assert!(!alive(pid));
    assert_eq!(scene.api.status("q"), ("killed".to_owned(), Some(143)));
    assert_eq!(scene.api.delete("/api/process/kill-all").ok()["cleanedCount"], 0);
    scene.is_over = true;
}

const DELETE_T: &str = r#"{"sessionId":"t"}"#;

fn a_session_goes_on(scene: &mut Scene) {
    let job = scene.api.out("t", "A=1; setsid sleep 1000 >/dev/null 2>&1 & echo $!");
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/session/delete", "", DELETE_T)).is_empty());
    assert!(alive(job.trim().parse().unwrap()));
    assert_eq!(scene.api.out("t", "echo $A"), "1\n");
}

fn a_session_has_ended(scene: &mut Scene) {
    let job = scene.api.out("t", "A=1; setsid sleep 1000 >/dev/null 2>&1 & echo $!");
    assert!(scene.crash(|scene| scene.api.send("POST", "/api/session/delete", "", DELETE_T)).is_empty());
    assert!(!alive(job.trim().parse().unwrap()));
    assert_eq!(scene.sessions(), json!(["s"]));
    // The next server finishes what the other one began; then there is none.
    scene.api.ask("POST", "/api/session/delete", "", DELETE_T).ok();
    assert_eq!(scene.sandboxes(true).len(), 2);
    scene.api.ask("POST", "/api/session/delete", "", DELETE_T).fails(500, "INTERNAL_ERROR");
    scene.api.post("/api/session/create", &json!({ "id": "t" })).ok();
    assert_eq!(scene.api.out("t", "echo fresh$A"), "fresh\n");
}

/// Makes a sandbox with a daemon; returns its path and its pid.
fn sandbox(scene: &Scene) -> (String, i32) {
    let id = native::script(scene.server(), TREE);
    let path = format!("/v1/sandboxes/{id}");
    let up = scene.path_of("up");
    let body = json!({ "command": ["sh", "-c", format!("echo $$ > {up}; exec sleep 1000")] });
    native::post(scene.server(), &format!("{path}/execs"), &body).with(201);
    (path, pid_in(&up))
}

fn a_sandbox_goes_on(scene: &mut Scene) {
    let (path, pid) = sandbox(scene);
    assert!(scene.crash(|scene| scene.send("DELETE", &path, "", b"")).is_empty());
    assert!(alive(pid));
    assert_eq!(scene.native(&path)["status"], "running");
}

fn a_sandbox_was_killed(scene: &mut Scene) {
    let (path, pid) = sandbox(scene);
    assert!(scene.crash(|scene| scene.send_json(&format!("{path}/kill"), &json!({}))).is_empty());
    assert!(!alive(pid));
    assert_eq!(scene.native(&path)["status"], "killed");
    assert_eq!(scene.native(&format!("{path}/report"))["verified"], true);
    let again = native::post(scene.server(), &format!("{path}/kill"), &json!({})).with(200).json();
    assert_eq!((&again["result"], &again["report"]["verified"]), (&json!("already_gone"), &json!(true)));
}

fn a_sandbox_was_deleted(scene: &mut Scene) {
    let (path, pid) = sandbox(scene);
    assert!(scene.crash(|scene| scene.send("DELETE", &path, "", b"")).is_empty());
    assert!(!alive(pid));
    let again = native::delete(scene.server(), &path).with(200).json();
    assert_eq!((&again["result"], &again["report"]["verified"]), (&json!("already_gone"), &json!(true)));
    native::get(scene.server(), &path).with(404);
}

/// The answer to a request that does not wait comes after the end has begun.
fn an_accepted_kill_is_completed(scene: &mut Scene) {
    let (path, pid) = sandbox(scene);
    assert!(scene.crash(|scene| scene.send_json(&format!("{path}/kill?wait=0"), &json!({}))).is_empty());
    wait_until("the sandbox has ended", || scene.native(&path)["status"] == "killed");
    assert!(!alive(pid));
}

fn an_accepted_kill_of_an_exec_is_completed(scene: &mut Scene) {
    let (path, pid) = exec(scene);
    assert!(scene.crash(|scene| scene.send_json(&format!("{path}/kill?wait=0"), &json!({}))).is_empty());
    wait_until("the exec has ended", || scene.native(&path)["status"] == "ended");
    assert_eq!(scene.native(&path)["cause"], "kill");
    assert!(!alive(pid));
}

fn lines() -> String {
    (1..=300).flat_map(|number| ["line ".to_owned(), format!("{number}\n")]).collect()
}

const LINES: &str = "for i in $(seq 1 300); do echo line $i; done; read -r _ < \"$0\"; exit 3";

fn a_stream_of_a_process_is_cut_off(scene: &mut Scene) {
    let fifo = scene.path_of("fifo");
    let command = format!("mkfifo {fifo}; bash -c '{LINES}' {fifo}");
    scene.api.process("s", "q", &command);
    let answer = scene.crash(|scene| scene.api.send("GET", "/api/process/q/stream", "", ""));
    assert!(!String::from_utf8_lossy(&answer).contains("\"exit\""));
    assert_eq!(scene.api.status("q").0, "running");
    let stream = scene.api.follow("q");
    fs::write(&fifo, "go\n").unwrap();
    let events = stream.rest();
    assert_eq!(output(&events, "stdout"), lines());
    assert_eq!(events.last().unwrap()["exitCode"], 3);
}

fn a_followed_log_goes_on(scene: &mut Scene) {
    let fifo = scene.path_of("fifo");
    let command = format!("mkfifo {fifo}; exec bash -c '{LINES}' {fifo}");
    let path = format!("/v1/sandboxes/{}", native::script(scene.server(), &command));
    let logs = format!("{path}/logs");
    let answer = scene.crash(|scene| scene.send("GET", &logs, "accept: text/event-stream\r\n", b""));
    let mut seen = Vec::new();
    let mut last = None;
    for event in Events::of_part(&answer).rest() {
        assert_eq!(event.name, "stdout", "{event:?}");
        seen.extend(native::output(&event));
        last = event.id;
    }
    let header = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
    let mut events = Events::open(scene.server(), &logs, &header);
    fs::write(&fifo, "go\n").unwrap();
    let rest = events.rest();
    seen.extend(rest.iter().filter(|event| event.name == "stdout").flat_map(native::output));
    assert_eq!(String::from_utf8(seen).unwrap(), lines());
    let end = rest.last().unwrap();
    assert_eq!((end.name.as_str(), &end.data["exit"]["code"]), ("end", &json!(3)));
}

/// Writes to a file in the workspace of the bystander.
fn upload(scene: &Scene, name: &str) -> String {
    scene.path(&format!("/files?path={name}"))
}

/// The files in the workspace.
fn files(scene: &Scene) -> Vec<String> {
    let entries = fs::read_dir(scene.api.env.path("work")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "api.sock");
    names.sort();
    names
}

fn crash_upload(scene: &mut Scene, name: &str) {
    let path = upload(scene, name);
    let kind = "content-type: application/octet-stream\r\n";
    assert!(scene.crash(|scene| scene.send("PUT", &path, kind, b"new")).is_empty());
}

fn write(scene: &Scene, name: &str, content: &[u8]) {
    let kind = "content-type: application/octet-stream\r\n";
    native::ask(scene.server(), "PUT", &upload(scene, name), kind, content).with(200);
    assert_eq!(fs::read(scene.path_of(name)).unwrap(), content);
}

fn a_file_is_as_before(scene: &mut Scene) {
    write(scene, "old", b"old");
    crash_upload(scene, "old");
    assert_eq!(fs::read(scene.path_of("old")).unwrap(), b"old");
    crash_upload(scene, "fresh");
    assert_eq!(files(scene), ["old"]);
    write(scene, "old", b"newer");
    write(scene, "fresh", b"newer");
    assert_eq!(files(scene), ["fresh", "old"]);
}

/// Only a file that is replaced has a draft with a name, for a moment.
fn a_draft_is_removed(scene: &mut Scene) {
    write(scene, "old", b"old");
    crash_upload(scene, "old");
    assert_eq!(fs::read(scene.path_of("old")).unwrap(), b"old");
    let left = files(scene);
    assert!(left.len() == 2 && left[0].starts_with(".penfold-") && left[1] == "old", "{left:?}");
    write(scene, "old", b"newer");
    write(scene, "fresh", b"new");
    assert_eq!(files(scene), ["fresh", "old"]);
}

fn a_drain_ends_nothing(scene: &mut Scene) {
    let body = json!({ "command": waiting(scene), "sessionId": "s" }).to_string();
    let answer = scene.crash(|scene| {
        let answer = scene.api.send("POST", "/api/execute", "", &body);
        pid_in(&scene.path_of("up"));
        scene.server().running.signal(Signal::TERM);
        answer
    });
    assert!(answer.is_empty());
    let shells = || scene.api.env.processes().iter().map(Process::pid).collect::<Vec<_>>();
    assert!(shells().contains(&pid_in(&scene.path_of("up"))));
    go(scene);
    assert_eq!(scene.api.out("s", "echo $B"), "2\n");
}

fn a_process_was_started_over_a_socket(scene: &mut Scene) {
    let body = json!({ "command": TREE, "sessionId": "s", "processId": "q" });
    let path = "/api/process/start";
    let request = json!({ "type": "request", "id": "1", "method": "POST", "path": path, "body": body });
    over_socket(scene, "/ws", &[request]);
    assert_eq!(scene.api.status("q").0, "running");
    scene.api.post("/api/process/start", &body).fails(409, "PROCESS_ERROR");
    scene.api.delete("/api/process/q").ok();
}

fn a_terminal_was_started(scene: &mut Scene) {
    let head =
        "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert!(
        scene
            .crash(|scene| scene.send(
                "GET",
                "/ws/pty?sessionId=s&shell=sh",
                &format!("connection: upgrade\r\n{head}"),
                b""
            ))
            .is_empty()
    );
    let running = || {
        let execs = scene.native("/v1/sandboxes?label=penfold.session=s")["sandboxes"][0]["execs"].clone();
        execs.as_array().unwrap().len()
    };
    let before = running();
    let mut socket = WebSocket::open(scene.server(), "/ws/pty?sessionId=s&shell=sh");
    let mut shown = String::new();
    socket.binary(b"echo $((6 * 7))-\r");
    while !shown.contains("42-\r\n") {
        match socket.receive() {
            Frame::Binary(bytes) => shown.push_str(&String::from_utf8_lossy(&bytes)),
            Frame::Text(_) => {}
            other => panic!("{other:?} after {shown:?}"),
        }
    }
    assert_eq!(running(), before, "the terminal that was started is used");
}

/// What a client wrote is there once, and the next client goes on.
fn an_input_was_written_once(scene: &mut Scene) {
    let body = json!({ "command": ["cat"], "open_input": true });
    let made = native::post(scene.server(), &scene.path("/execs"), &body).with(201).json();
    let path = scene.path(&format!("/execs/{}", made["number"]));
    over_socket(scene, &format!("{path}/attach"), &[json!({ "input": "before " })]);
    let mut socket = WebSocket::open(scene.server(), &format!("{path}/attach"));
    socket.json(&json!({ "input": "after" }));
    socket.json(&json!({ "end_input": true }));
    while socket.receive() != Frame::Gone {}
    let log = native::get(scene.server(), &format!("{path}/logs")).with(200).json();
    let texts = log["frames"].as_array().unwrap().iter().map(|frame| frame["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), "before after");
}

/// tar goes on without the server, which nothing tells of it: the archive is there once it is whole.
fn an_archive_is_completed(scene: &mut Scene) {
    let (dir, archive) = (scene.path_of("dir"), scene.path_of("archive"));
    fs::create_dir(&dir).unwrap();
    fs::write(format!("{dir}/a"), "a").unwrap();
    let body = json!({ "dir": dir, "archivePath": archive, "sessionId": "s" });
    let send = |scene: &Scene| scene.api.send("POST", "/api/backup/create", "", &body.to_string());
    assert!(scene.crash(send).is_empty());
    wait_until("the archive is whole", || fs::exists(&archive).unwrap());
    fs::remove_file(format!("{dir}/a")).unwrap();
    scene.api.post("/api/backup/restore", &body).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/a")).unwrap(), "a");
}
