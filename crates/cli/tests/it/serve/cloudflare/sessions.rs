//! Sessions: made, listed, ended.

use std::collections::BTreeSet;
use std::io::{BufReader, Write as _};

use serde_json::{Value, json};

use super::super::Server;
use super::{Api, Told, alive, pid_in};
use crate::support::{Running, TestEnv, penfold, wait_until};

#[test]
fn a_session_is_made_once_listed_and_deleted() {
    let api = Api::start();
    let create = json!({ "id": "one", "env": { "COLOUR": "blue" }, "cwd": api.path("") });
    api.post("/api/session/create", &create).ok();
    let error = api.post("/api/session/create", &create).fails(409, "SESSION_ALREADY_EXISTS");
    assert_eq!(error["context"]["sessionId"], "one");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["one"]));
    let told = api.out("one", "echo $COLOUR $LANG; pwd");
    assert_eq!(told, format!("blue C.UTF-8\n{}\n", api.path("").trim_end_matches('/')));
    assert_eq!(api.post("/api/session/delete", &json!({ "sessionId": "one" })).ok()["sessionId"], "one");
    let error = api.post("/api/session/delete", &json!({ "sessionId": "one" })).fails(500, "INTERNAL_ERROR");
    assert_eq!(error["message"], "Session 'one' not found");
    api.post("/api/session/delete", &json!({})).fails(400, "VALIDATION_FAILED");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!([]));
    api.post("/api/session/create", &create).ok();
}

#[test]
fn a_session_without_a_body_or_with_odd_settings() {
    let api = Api::start();
    api.ask("POST", "/api/session/create", "", "").ok();
    api.post("/api/session/create", &json!({ "id": "x", "env": { "A-B": "1" } }))
        .fails(400, "VALIDATION_FAILED");
    api.post("/api/session/create", &json!({ "id": "__DISABLE_SESSION__" })).fails(400, "VALIDATION_FAILED");
    api.post("/api/session/create", &json!({ "id": "lost", "cwd": "/no/such" })).ok();
    api.out("lost", "true");
}

#[test]
fn the_session_is_selected_by_body_bearer_header_and_query() {
    let api = Api::start();
    for (path, headers, id) in [
        ("/api/execute", "authorization: Bearer by-bearer\r\nx-session-id: no\r\n", "by-bearer"),
        ("/api/execute?session=no", "x-session-id: by-header\r\n", "by-header"),
        ("/api/execute?session=by-query", "", "by-query"),
        ("/api/execute", "", "default"),
    ] {
        let told = api.ask("POST", path, headers, &json!({ "command": "true" }).to_string()).ok();
        assert_eq!(told["sessionId"], id);
    }
    assert_eq!(
        api.get("/api/session/list").ok()["data"],
        json!(["by-bearer", "by-header", "by-query", "default"])
    );
}

#[test]
fn of_fifty_creations_of_one_id_one_succeeds() {
    let api = Api::start();
    let create = |_| api.post("/api/session/create", &json!({ "id": "same" })).status;
    let mut all: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..50).map(|number| scope.spawn(move || create(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_eq!(all[0], 200);
    assert_eq!(all[1..], [409; 49]);
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["same"]));
    api.post("/api/session/delete", &json!({ "sessionId": "same" })).ok();
    assert!(!api.env.is_running("session-host"), "a host without a session");
}

#[test]
fn fifty_commands_for_an_unknown_session_make_one() {
    let api = Api::start();
    let pids: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..50).map(|_| scope.spawn(|| api.out("auto", "echo $$"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["auto"]));
}

#[test]
fn a_delete_ends_all_that_the_session_started_while_a_command_runs() {
    let api = Api::start();
    let file = |name: &str| api.path(name);
    api.out("busy", &format!("sleep 1000 & echo $! > {}", file("job")));
    let setsid =
        format!("setsid sh -c 'trap \"\" TERM; echo $$ > {}; sleep 1000' & sleep 1001; true", file("daemon"));
    let process = api.process("busy", "p", &setsid);
    let mut stream = api.follow("p");
    stream.next();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| api.run("busy", &format!("echo $$ > {}; sleep 1000", file("shell"))));
        let pids = [pid_in(&file("job")), pid_in(&file("daemon")), pid_in(&file("shell")), process];
        assert!(pids.into_iter().all(alive));
        let begun = std::time::Instant::now();
        api.post("/api/session/delete", &json!({ "sessionId": "busy" })).ok();
        assert!(!pids.into_iter().any(alive), "{pids:?}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(5));
        running.join().unwrap().fails(410, "SESSION_DESTROYED");
    });
    let last = stream.rest().pop().unwrap();
    assert_eq!((last["type"].as_str(), last["exitCode"].as_i64()), (Some("exit"), Some(137)));
    api.get("/api/process/p").fails(404, "PROCESS_NOT_FOUND");
    wait_until("no record is left", || {
        std::fs::read_dir(api.env.root().join("sandboxes")).unwrap().count() == 0
    });
}

/// spec: 13.15
#[test]
fn a_shell_that_exits_is_told_once_and_replaced() {
    let api = Api::start();
    api.out("s", "export A=1");
    for (command, code) in [("exit 7", 7), ("exec true", 0), ("set -e; false", 1), ("kill -9 $$", 137)] {
        let error = api.run("s", command).fails(410, "SESSION_TERMINATED");
        assert_eq!(
            (error["context"]["sessionId"].as_str(), error["context"]["exitCode"].as_i64()),
            (Some("s"), Some(code))
        );
        assert_eq!(api.out("s", "echo again"), "again\n", "{command}");
    }
    assert_eq!(api.out("s", "echo \"<$A>\""), "<>\n");
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["s"]));
}

#[test]
fn a_session_whose_shell_exited_can_be_made_again_until_a_command_runs_in_it() {
    let api = Api::start();
    let create = |value: &str| {
        let body = json!({ "id": "s", "cwd": "/", "env": { "NAME": value } });
        api.post("/api/session/create", &body)
    };
    create("one").ok();
    create("two").fails(409, "SESSION_ALREADY_EXISTS");
    let pid = api.process("s", "p", "sleep 1000");
    api.run("s", "exit 7").fails(410, "SESSION_TERMINATED");
    assert!(alive(pid), "the end of a shell ends no process");
    create("two").ok();
    assert!(!alive(pid), "the new session has none of the old one's processes");
    assert_eq!(api.out("s", "echo $NAME"), "two\n");
    create("three").fails(409, "SESSION_ALREADY_EXISTS");
    api.run("s", "exit 7").fails(410, "SESSION_TERMINATED");
    assert_eq!(api.out("s", "echo $NAME"), "two\n", "the fresh shell has the session's environment");
    create("three").fails(409, "SESSION_ALREADY_EXISTS");
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
}

#[test]
fn session_runs_where_the_state_root_is_a_relative_path() {
    let env = TestEnv::new();
    let mut command = env.command(penfold());
    command.args(["--root", "../root", "serve", "--api", "cloudflare", "--insecure-no-token"]);
    let server = Server::of(Running::start(command.args(["--listen", "127.0.0.1:0"])));
    let api = Api { env, server };
    assert_eq!(api.out("s", "echo here"), "here\n");
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
}

/// Sends a request to one of several servers.
fn ask(server: &Server, path: &str, body: &Value) -> Told {
    let mut stream = server.connect();
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    Told::read(&mut BufReader::new(stream))
}

/// Asks two servers of one state root at the same time, fifty times.
fn fifty(servers: [&Server; 2], path: &str, body: &Value) -> Vec<Told> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            servers.iter().cycle().take(50).map(|server| scope.spawn(|| ask(server, path, body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn of_fifty_creations_through_two_servers_one_succeeds() {
    let api = Api::start();
    let other = Server::start_tcp(&api.env, &["--api", "cloudflare", "--insecure-no-token"]);
    for round in 0..4 {
        let id = format!("same{round}");
        let all = fifty([&api.server, &other], "/api/session/create", &json!({ "id": id }));
        let (made, refused): (Vec<&Told>, Vec<&Told>) = all.iter().partition(|told| told.status == 200);
        assert_eq!(made.len(), 1, "{:?}", made.iter().map(|told| told.json()).collect::<Vec<_>>());
        for told in refused {
            told.fails(409, "SESSION_ALREADY_EXISTS");
        }
        assert_eq!(api.get("/api/session/list").ok()["data"], json!([id]));
        assert_eq!(ask(&other, "/api/execute", &json!({ "command": "true", "sessionId": id })).status, 200);
        api.post("/api/session/delete", &json!({ "sessionId": id })).ok();
        assert!(!api.env.is_running("session-host"), "a host without a session");
    }
}

#[test]
fn fifty_commands_through_two_servers_for_an_unknown_session_make_one() {
    let api = Api::start();
    let other = Server::start_tcp(&api.env, &["--api", "cloudflare", "--insecure-no-token"]);
    for round in 0..3 {
        let body = json!({ "command": "echo $$", "sessionId": format!("auto{round}") });
        let all = fifty([&api.server, &other], "/api/execute", &body);
        let pids: BTreeSet<String> = all.iter().map(|told| told.ok()["stdout"].to_string()).collect();
        assert_eq!(pids.len(), 1, "{pids:?}");
        api.post("/api/session/delete", &json!({ "sessionId": format!("auto{round}") })).ok();
        assert!(!api.env.is_running("session-host"), "a host without a session");
    }
}

/// spec: 15.8
#[test]
fn the_id_of_a_process_is_free_after_the_delete_of_its_session() {
    let api = Api::start();
    let other = Server::start_tcp(&api.env, &["--api", "cloudflare", "--insecure-no-token"]);
    let start = json!({ "command": "sleep 1000", "sessionId": "s", "processId": "p" });
    // Each server has seen the process of the other.
    for server in [&api.server, &other, &api.server, &other, &other] {
        ask(server, "/api/process/start", &start).ok();
        ask(server, "/api/process/start", &start).fails(409, "PROCESS_ERROR");
        api.status("p");
        api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    }
}

/// With the next session the server looks for what others have removed. The claim of the id shows that.
#[test]
fn a_session_that_the_command_line_removes_is_forgotten() {
    let api = Api::start();
    let claims = || {
        let names = std::fs::read_dir(api.env.root().join("names")).unwrap();
        names.filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().contains("cfp-")).count()
    };
    let pid = api.process("s", "p", "sleep 1000");
    let listed = api.env.call(["ps", "--json", "--filter", "label=penfold.session=s"]).with_code(0).json();
    api.env.call(["rm", "-f", listed[0]["id"].as_str().unwrap()]).with_code(0);
    assert_eq!((alive(pid), claims()), (false, 1));
    api.out("t", "true");
    assert_eq!(claims(), 0);
    api.process("t", "p", "sleep 1000");
    api.post("/api/session/delete", &json!({ "sessionId": "t" })).ok();
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}
