//! Tokens that change while the server runs, and sandboxes from before there were tenants.

use std::io::{BufRead, BufReader, Read as _, Write as _};

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{ALICE, ALICE_READS, BOB, OPS, all_lines, by, create, names, serve, write_tokens};
use crate::serve::Server;
use crate::serve::native::Events;
use crate::serve::websocket::{Frame, WebSocket};
use crate::support::{Terminal, TestEnv, wait_until};

/// Has the server read this file, and waits until it has done so for the `count`th time.
#[track_caller]
fn reload(env: &TestEnv, server: &Server, lines: &str, said: &str, count: usize) {
    write_tokens(env, lines);
    server.running.signal(Signal::HUP);
    server.running.hear_error(said, count);
}

/// spec: 15.17.4
#[test]
fn tokens_are_read_again_and_a_removed_one_ends_nothing_but_access() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("alice {ALICE}\nbob {BOB}\n"));
    let (alices, bobs) = (create(&server, ALICE, "web"), create(&server, BOB, "web"));
    let follow = |token: &str, id: &str| {
        let path = format!("/v1/sandboxes/{id}/logs?follow=true");
        Events::open(&server, &path, &format!("x-penfold-token: {token}\r\n"))
    };
    let (mut alices_log, mut bobs_log) = (follow(ALICE, &alices), follow(BOB, &bobs));
    let mut socket = WebSocket::with(&server, "/ws", &format!("x-penfold-token: {ALICE}\r\n"));
    let mut feed = Events::open(&server, "/v1/events", &format!("x-penfold-token: {ALICE}\r\n"));
    // A file that cannot be followed changes nothing.
    reload(&env, &server, &format!("alice {ALICE}\nbob short\n"), "the old ones stay", 1);
    assert_eq!(
        (names(&server, ALICE, ""), names(&server, BOB, "")),
        (vec!["web".to_owned()], vec!["web".to_owned()])
    );
    reload(&env, &server, &format!("bob {BOB}\nops {OPS} admin\n"), "read the tokens again", 2);
    // The streams end without the end of the sandbox.
    for stream in [&mut alices_log, &mut feed] {
        let last = stream.next().expect("the stream says why it ends");
        assert_eq!(
            (last.name.as_str(), &last.data["type"]),
            ("error", &json!("urn:penfold:problem:draining"))
        );
        assert_eq!(stream.next(), None);
    }
    let told = by(&server, ALICE, "GET", "/v1/sandboxes/web", &Value::Null);
    assert_eq!((told.status, told.problem().as_str()), (401, "unauthorized"));
    let changed = "the access of this tenant has changed".to_owned();
    assert_eq!(socket.receive(), Frame::Close(1008, changed));
    assert_eq!(names(&server, OPS, ""), ["alice~web", "bob~web"], "her sandbox goes on");
    // The stream of a tenant whose lines are the same goes on.
    by(&server, BOB, "POST", &format!("/v1/sandboxes/{bobs}/kill"), &Value::Null).with(200);
    let last = std::iter::from_fn(|| bobs_log.next()).last().expect("the log ends");
    assert_eq!((last.name.as_str(), &last.data["status"]), ("end", &json!("killed")));
    // A new token of the same name is for the same sandboxes.
    reload(&env, &server, &format!("alice {ALICE_READS}\nops {OPS} admin\n"), "read the tokens again", 3);
    by(&server, ALICE_READS, "DELETE", &format!("/v1/sandboxes/{alices}"), &Value::Null).with(200);
    server.end();
}

/// spec: 15.17.4
#[test]
fn a_watch_ends_when_the_token_is_removed() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("alice {ALICE}\nbob {BOB}\n"));
    let body = json!({ "path": env.path("work/") }).to_string();
    let watch = |token: &str| {
        let mut stream = server.connect();
        let head = format!("POST /api/watch HTTP/1.1\r\nhost: a\r\nx-penfold-token: {token}\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut stream = BufReader::new(stream);
        hear(&mut stream, "watching");
        stream
    };
    let (mut alices, mut bobs) = (watch(ALICE), watch(BOB));
    // Alone, bob would be another tenant.
    reload(&env, &server, &format!("bob {BOB}\nops {OPS} admin\n"), "read the tokens again", 1);
    let last = hear(&mut alices, "\"error\"");
    assert!(last.contains("the token was removed"), "{last}");
    std::fs::write(env.path("work/file"), "").unwrap();
    hear(&mut bobs, "work/file");
    server.end();
}

/// Reads until a line has a text, and returns the line.
#[track_caller]
fn hear(stream: &mut impl BufRead, text: &str) -> String {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended without {text}");
    }
    line
}

/// spec: 15.17.5
#[test]
fn what_belongs_to_no_tenant_is_reached_by_the_only_tenant_or_by_admins() {
    let env = TestEnv::new();
    // One token without a name: a server for one user, as before there were tenants.
    let server = serve(&env, &format!("{ALICE}\n"));
    let old = create(&server, ALICE, "old");
    let local = env.detach(["sleep", "600"]);
    assert_eq!(names(&server, ALICE, ""), ["old"]);
    by(&server, ALICE, "GET", &format!("/v1/sandboxes/{}", local.id), &Value::Null).with(200);
    let said = server.end();
    assert!(!said.contains("belong to no tenant"), "{said}");
    // The same token with a name.
    let server = serve(&env, &format!("alice {ALICE}\n"));
    let new = create(&server, ALICE, "new");
    assert_eq!(names(&server, ALICE, ""), ["new", "old"]);
    let taken = by(&server, ALICE, "GET", "/v1/sandboxes/old", &Value::Null).with(200).json();
    assert_eq!(taken["id"], old.as_str());
    by(&server, ALICE, "GET", "/v1/doctor", &Value::Null).with(200);
    let said = server.end();
    assert!(said.contains("belong to no tenant") && said.contains("the only tenant, alice"), "{said}");
    // A second one.
    let server = serve(&env, &all_lines());
    assert_eq!((names(&server, ALICE, ""), names(&server, BOB, "")), (vec!["new".to_owned()], vec![]));
    by(&server, ALICE, "GET", &format!("/v1/sandboxes/{old}"), &Value::Null).with(404);
    assert_eq!(names(&server, OPS, ""), ["alice~new", "old"]);
    for id in [&old, &new, &local.id] {
        by(&server, OPS, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
    }
    let said = server.end();
    assert!(said.contains("admins only"), "{said}");
    env.assert_nothing_left();
}

/// spec: 15.17.1
#[test]
fn tokens_without_a_name_are_tenants_of_their_own_wherever_their_lines_are() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("{ALICE}\n{BOB}\n"));
    let alices = create(&server, ALICE, "web");
    create(&server, BOB, "web");
    server.end();
    let server = serve(&env, &format!("ops {OPS} admin\n{BOB}\n{ALICE}\n"));
    let seen = by(&server, ALICE, "GET", "/v1/sandboxes/web", &Value::Null).with(200).json();
    assert_eq!(seen["id"], alices.as_str());
    let owner = seen["labels"]["penfold.tenant"].as_str().unwrap();
    assert!(owner.starts_with("token-") && !ALICE.contains(owner), "{owner}");
    for token in [ALICE, BOB] {
        by(&server, token, "DELETE", "/v1/sandboxes/web", &Value::Null).with(200);
    }
}

/// spec: 15.17.5
#[test]
fn the_last_token_of_a_file_reaches_nothing_of_tenants_that_were_removed() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("{ALICE}\n{BOB}\n"));
    let (alices, bobs) = (create(&server, ALICE, "a"), create(&server, BOB, "b"));
    let local = env.detach(["sleep", "600"]);
    reload(&env, &server, &format!("{BOB}\n"), "read the tokens again", 1);
    assert_eq!(names(&server, BOB, "").len(), 1, "its own, which has another's name now");
    by(&server, BOB, "GET", &format!("/v1/sandboxes/{bobs}"), &Value::Null).with(200);
    by(&server, BOB, "GET", &format!("/v1/sandboxes/{}", local.id), &Value::Null).with(200);
    for method in ["GET", "DELETE"] {
        by(&server, BOB, method, &format!("/v1/sandboxes/{alices}"), &Value::Null).with(404);
    }
    // Of an id without any trace it can say that it is gone.
    by(&server, BOB, "DELETE", "/v1/sandboxes/000000000000", &Value::Null).with(200);
    // A record whose intent is damaged tells by its report whose it is.
    by(&server, "", "POST", &format!("/v1/sandboxes/{alices}/kill"), &Value::Null).with(200);
    std::fs::write(env.root().join(format!("sandboxes/{alices}/intent.json")), "{").unwrap();
    for path in ["", "/logs", "/report"] {
        by(&server, BOB, "GET", &format!("/v1/sandboxes/{alices}{path}"), &Value::Null).with(404);
    }
    // Another tenant with the same token.
    reload(&env, &server, &format!("carol {ALICE}\nbob {BOB}\n"), "read the tokens again", 2);
    by(&server, ALICE, "GET", &format!("/v1/sandboxes/{alices}/report"), &Value::Null).with(404);
    reload(&env, &server, &format!("{ALICE}\n{BOB}\n"), "read the tokens again", 3);
    by(&server, ALICE, "GET", &format!("/v1/sandboxes/{alices}/report"), &Value::Null).with(200);
    for id in [&alices, &bobs, &local.id] {
        by(&server, "", "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
    }
}

/// spec: 15.17.4
#[test]
fn a_removed_token_ends_the_requests_that_are_under_way() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("alice {ALICE}\nbob {BOB}\n"));
    let work = env.path("work/dir");
    std::fs::create_dir(&work).unwrap();
    let body = json!({ "command": ["sleep", "600"], "dir": work });
    let id = by(&server, ALICE, "POST", "/v1/sandboxes", &body).with(201).json()["id"].clone();
    let path = format!("/v1/sandboxes/{}", id.as_str().unwrap());
    let send = |head: &str, kind: &str, length: usize| {
        let mut stream = server.connect();
        let lines =
            format!("host: a\r\nconnection: close\r\nx-penfold-token: {ALICE}\r\nexpect: 100-continue");
        let body = format!("content-type: application/{kind}\r\ncontent-length: {length}");
        write!(stream, "{head} HTTP/1.1\r\n{lines}\r\n{body}\r\n\r\n").unwrap();
        // The body is waited for: the route is at work.
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    };
    let mut upload = send(&format!("PUT {path}/files?path=made"), "octet-stream", 10);
    upload.write_all(b"abc").unwrap();
    let run = json!({ "command": "echo begun > begun; sleep 603", "sessionId": "s", "cwd": work });
    let run = run.to_string();
    let mut execute = send("POST /api/execute", "json", run.len());
    execute.write_all(run.as_bytes()).unwrap();
    wait_until("the command runs", || env.is_running("sleep 603"));
    reload(&env, &server, &format!("bob {BOB}\n"), "read the tokens again", 1);
    for mut stream in [upload, execute] {
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        assert!(told.contains("401") && told.to_lowercase().contains("unauthorized"), "{told}");
    }
    let left: Vec<_> = std::fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.contains(&"made".into()), "{left:?}");
    assert!(env.is_running("sleep 603"), "only access has ended");
    env.call(["kill", "--all", "-f"]).with_code(0);
}

/// spec: 15.17.4
#[test]
fn a_pipe_in_place_of_the_file_does_not_keep_the_server_from_reading_later_ones() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let path = env.path("work/tokens");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    server.running.signal(Signal::HUP);
    server.running.hear_error("it is no file that can be read again", 1);
    std::fs::remove_file(&path).unwrap();
    reload(&env, &server, &format!("ops {OPS} admin\n"), "read the tokens again", 2);
    by(&server, BOB, "GET", "/v1/sandboxes", &Value::Null).with(401);
}

/// spec: 15.2.1
#[test]
fn a_token_in_a_wrong_place_of_the_path_is_not_in_the_log() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    for path in [
        "//t/TOKEN/v1/sandboxes",
        "/T/TOKEN/v1",
        "/%74/TOKEN/v1",
        "/v1/../t/TOKEN/v1",
        "/t/TOKEN/t/TOKEN/v1",
        "/v1/TOKEN",
    ] {
        let told = by(&server, "", "GET", &path.replace("TOKEN", ALICE), &Value::Null);
        assert!(told.status >= 400, "{path} {told:?}");
    }
    let said = server.end();
    assert!(said.matches("******").count() >= 6 && !said.contains(ALICE), "{said}");
}

/// spec: 15.17.4
#[test]
fn a_file_that_others_can_read_is_named_by_the_server_and_by_doctor() {
    use std::os::unix::fs::PermissionsExt as _;
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let warned = || {
        let found = env.call(["doctor", "--json"]).json();
        let named = |ability: &&Value| ability["name"] == "token-file";
        found["abilities"].as_array().unwrap().iter().find(named).cloned()
    };
    let set = |path: &str, mode: u32| {
        std::fs::set_permissions(env.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The directory of the test keeps others out.
    set("work/tokens", 0o644);
    set(".", 0o700);
    assert_eq!(warned(), None);
    set(".", 0o711);
    set("work", 0o711);
    let warning = warned().expect("the file of the server that runs is looked at");
    assert_eq!(warning["state"], "warn");
    let path = env.path("work/tokens").display().to_string();
    assert_eq!(warning["mend"], format!("chmod 600 {path}"));
    server.running.signal(Signal::HUP);
    assert!(server.running.hear_error("read the tokens again", 1).contains("can read or change the tokens"));
    set("work/tokens", 0o600);
    assert_eq!(warned(), None);
    server.end();
    // Without a server, the file that is named.
    set("work/tokens", 0o644);
    assert_eq!(warned(), None);
    let found = env.call(["--token-file", &path, "doctor", "--json"]).json();
    assert!(found["abilities"].as_array().unwrap().iter().any(|one| one["name"] == "token-file"), "{found}");
}

/// spec: 15.17.4
#[test]
fn without_a_token_file_sighup_ends_the_server() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    server.running.signal(Signal::HUP);
    assert_eq!(server.running.finish().signal(), Some(Signal::HUP.as_raw()));
}

/// spec: 15.17.4
#[test]
fn a_server_with_tokens_ends_with_its_terminal() {
    let env = TestEnv::new();
    let tokens = write_tokens(&env, &all_lines());
    let Some(terminal) = Terminal::open(&env) else { return };
    let socket = env.path("work/api.sock");
    terminal.line(&format!(
        "exec {} --root {} serve --listen unix:{} --token-file {tokens}",
        crate::support::penfold().display(),
        env.root().display(),
        socket.display()
    ));
    wait_until("the server listens", || std::fs::exists(&socket).unwrap());
    terminal.tmux(&["kill-server"]);
    wait_until("the server is gone with its socket", || !std::fs::exists(&socket).unwrap());
}
