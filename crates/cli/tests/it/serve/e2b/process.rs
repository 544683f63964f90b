//! Commands.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{Api, Guest, frame, running};
use crate::support::wait_until;

/// spec: 36.5
#[test]
fn a_command_has_its_streams_and_its_exit() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let (said, end) = api.start_command(&guest, "echo out; echo err >&2; exit 3").finish();
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(
        end,
        json!({ "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3" })
    );
    let (_, end) = api.start_command(&guest, "kill -ABRT $$").finish();
    assert_eq!(
        end,
        json!({ "exitCode": -1, "exited": false, "status": "signal: aborted", "error": "signal: aborted" })
    );
    let set = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", "echo $A; pwd"], "envs": { "A": "b" }, "cwd": "/tmp" } });
    let (said, _) = api.stream(&guest, "/process.Process/Start", "", &set).finish();
    assert_eq!(said.stdout, "b\n/tmp\n");
    for (cmd, code) in [("/nonexistent", 127), ("/etc", 126)] {
        let message = json!({ "process": { "cmd": cmd } });
        let (said, end) = api.stream(&guest, "/process.Process/Start", "", &message).finish();
        assert_eq!(end["exitCode"], code, "{said:?}");
    }
    let nowhere = json!({ "process": { "cmd": "/bin/sh", "cwd": "/nonexistent" } });
    assert_eq!(
        api.stream(&guest, "/process.Process/Start", "", &nowhere).error()["code"],
        "invalid_argument"
    );
    for bad in [
        json!({ "process": { "cmd": "" } }),
        json!({ "process": { "cmd": "x", "envs": { "A=": "b" } } }),
        json!([]),
    ] {
        assert_eq!(
            api.stream(&guest, "/process.Process/Start", "", &bad).error()["code"],
            "invalid_argument",
            "{bad}"
        );
    }
}

/// spec: 36.5
#[test]
fn a_kill_ends_the_whole_tree_before_the_answer() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let mut command = api.start_command(&guest, "setsid sleep 1012 & (sleep 1012 &); echo up; sleep 1012");
    let pid = command.pid();
    command.await_output("up");
    wait_until("three live", || running("sleep 1012") == 3);
    // Its pid is that which other commands of the sandbox see.
    assert_eq!(api.out(&guest, &format!("kill -0 {pid} && echo lives")), "lives\n");
    let listed = api.ok(&guest, "/process.Process/List", &json!({}));
    assert_eq!(
        (&listed["processes"][0]["pid"], &listed["processes"][0]["config"]["cmd"]),
        (&json!(pid), &json!("/bin/sh"))
    );
    let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    api.ok(&guest, "/process.Process/SendSignal", &kill);
    assert_eq!(running("sleep 1012"), 0);
    assert_eq!(command.finish().1["status"], "signal: killed");
    assert_eq!(api.call(&guest, "/process.Process/SendSignal", &kill).0, 404);
    assert_eq!(api.ok(&guest, "/process.Process/List", &json!({})), json!({ "processes": [] }));
    assert_eq!(api.out(&guest, "echo usable"), "usable\n");
}

/// spec: 36.5
#[test]
fn a_time_limit_ends_the_whole_tree_before_the_answer() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let script = "trap '' TERM; setsid sleep 1013 & echo up; sleep 1013";
    let mut command = api.start_with(&guest, "connect-timeout-ms: 700\r\n", &json!({}), script);
    command.await_output("up");
    wait_until("two live", || running("sleep 1013") == 2);
    assert_eq!(command.error()["code"], "deadline_exceeded");
    assert_eq!(running("sleep 1013"), 0);
}

/// spec: 36.5
#[test]
fn other_signals_are_for_the_first_process() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let mut command = api.start_command(
        &guest,
        "trap 'echo usr1' USR1; trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done",
    );
    let pid = command.pid();
    command.await_output("up");
    let send = |signal| {
        api.call(
            &guest,
            "/process.Process/SendSignal",
            &json!({ "process": { "pid": pid }, "signal": signal }),
        )
        .0
    };
    assert_eq!(send(json!(10)), 200);
    command.await_output("usr1");
    assert_eq!((send(json!(4711)), send(json!("SIGNAL_X"))), (400, 400));
    assert_eq!(send(json!("SIGNAL_SIGTERM")), 200);
    assert_eq!(command.finish().1["exitCode"], 5);
}

/// spec: 36.5
#[test]
fn input_comes_in_order_and_has_an_end() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let mut command = api.start_with(&guest, "", &json!({ "stdin": true, "tag": "in" }), "cat; echo end");
    let pid = command.pid();
    let encode = |text: &str| STANDARD.encode(text);
    for text in ["a\n", "b\n"] {
        let message = json!({ "process": { "tag": "in" }, "input": { "stdin": encode(text) } });
        assert_eq!(api.ok(&guest, "/process.Process/SendInput", &message), json!({}));
    }
    let messages = [
        json!({ "start": { "process": { "pid": pid } } }),
        json!({ "data": { "input": { "stdin": encode("c\n") } } }),
        json!({ "keepalive": {} }),
        json!({ "data": { "input": { "stdin": encode("d\n") } } }),
    ];
    let headers = format!("content-type: application/connect+json\r\n{}", guest.headers());
    let body: Vec<u8> = messages.iter().flat_map(frame).collect();
    let told = super::Told::read(&mut api.send("POST", "/process.Process/StreamInput", &headers, &body));
    assert_eq!(told.status, 200);
    let wrong = json!({ "process": { "pid": pid }, "input": { "pty": encode("x") } });
    assert_eq!(api.call(&guest, "/process.Process/SendInput", &wrong).1["code"], "failed_precondition");
    api.ok(&guest, "/process.Process/CloseStdin", &json!({ "process": { "pid": pid } }));
    assert_eq!(command.finish().0.stdout, "a\nb\nc\nd\nend\n");
    let closed = api.call(
        &guest,
        "/process.Process/SendInput",
        &json!({ "process": { "pid": pid }, "input": { "stdin": "" } }),
    );
    assert_eq!(closed.1["code"], "not_found");
    let mut deaf = api.start_command(&guest, "echo up; sleep 1014");
    let pid = deaf.pid();
    let refused = api.call(
        &guest,
        "/process.Process/SendInput",
        &json!({ "process": { "pid": pid }, "input": { "stdin": "" } }),
    );
    assert_eq!(refused.1["code"], "failed_precondition");
}

/// spec: 36.5
#[test]
fn a_terminal_has_a_size_and_takes_keys() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let size = |cols: u16, rows: u16| json!({ "size": { "cols": cols, "rows": rows } });
    let mut terminal = api.start_with(&guest, "", &json!({ "pty": size(100, 30) }), "exec sh -i");
    let pid = terminal.pid();
    let type_keys = |keys: &str| {
        let message = json!({ "process": { "pid": pid }, "input": { "pty": STANDARD.encode(keys) } });
        api.ok(&guest, "/process.Process/SendInput", &message);
    };
    type_keys("stty size; echo $TERM\n");
    terminal.await_output("30 100");
    api.ok(&guest, "/process.Process/Update", &json!({ "process": { "pid": pid }, "pty": size(120, 40) }));
    type_keys("stty size\n");
    terminal.await_output("40 120");
    let close = api.call(&guest, "/process.Process/CloseStdin", &json!({ "process": { "pid": pid } }));
    assert_eq!(close.1["code"], "failed_precondition");
    type_keys("exit 4\n");
    assert_eq!(terminal.finish().1["exitCode"], 4);
}

/// spec: 36.6
#[test]
fn a_command_goes_on_without_its_client_and_without_the_server() {
    let mut api = Api::start();
    let guest = api.create(&json!({}));
    let mut left =
        api.start_with(&guest, "", &json!({ "tag": "job" }), "echo up; read x < go; echo done; exit 6");
    assert_eq!(api.out(&guest, "mkfifo go2; echo made"), "made\n");
    let pid = left.pid();
    drop(left);
    api.replace_server();
    let other = api.start_with(&guest, "", &json!({ "tag": "other" }), "sleep 1015");
    let connect = |api: &Api, by: serde_json::Value| {
        api.stream(&guest, "/process.Process/Connect", "", &json!({ "process": by }))
    };
    // `go` is a missing file: the shell has ended, and its exit is kept.
    for by in [json!({ "pid": pid }), json!({ "tag": "job" })] {
        let (_, end) = connect(&api, by.clone()).finish();
        assert!(end["exitCode"].as_i64().is_some_and(|code| code > 0), "{by}: {end}");
    }
    let unknown = connect(&api, json!({ "tag": "none" })).error();
    assert_eq!(unknown["code"], "not_found");
    let mut waiting = api.start_command(&guest, "echo up; read x < go2; echo $x; exit 6");
    let pid = waiting.pid();
    waiting.await_output("up");
    drop(waiting);
    let mut again = connect(&api, json!({ "pid": pid }));
    assert_eq!(again.pid(), pid);
    api.out(&guest, "echo went > go2");
    let (said, end) = again.finish();
    assert_eq!((said.stdout.as_str(), &end["exitCode"]), ("went\n", &json!(6)));
    drop(other);
}

/// spec: 36.6
#[test]
fn output_that_nobody_reads_holds_nothing_up_and_a_slow_reader_gets_all() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    // More than the buffers on the way.
    let mut slow = api.start_command(&guest, "seq 1 400000; echo written > done");
    let pid = slow.pid();
    wait_until("the command has ended", || {
        let told = api.start_command(&guest, "cat done 2>/dev/null || exit 0").finish();
        told.0.stdout == "written\n"
    });
    assert!(pid > 0);
    let (said, end) = slow.finish();
    assert_eq!(
        (said.stdout.len(), &end["exitCode"]),
        ((1..=400_000).map(|n: u32| n.to_string().len() + 1).sum(), &json!(0))
    );
}

/// spec: 36.5
#[test]
fn there_is_one_user() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let as_user = |name: &str| format!("authorization: Basic {}\r\n", STANDARD.encode(format!("{name}:")));
    let (said, _) = api.start_with(&guest, &as_user("user"), &json!({}), "id -u").finish();
    assert_eq!(said.stdout, "1000\n");
    for other in ["root", "nobody"] {
        let refused = api.start_with(&guest, &as_user(other), &json!({}), "id -u").error();
        assert_eq!(refused["code"], "unauthenticated", "{refused}");
    }
}

/// spec: 36.5
#[test]
fn a_silent_stream_says_that_it_lives() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let mut command =
        api.start_with(&guest, "keepalive-ping-interval: 1\r\n", &json!({}), "echo up; sleep 1016");
    command.await_output("up");
    assert_eq!(command.event(), json!({ "keepalive": {} }));
}

/// spec: 36.6.1
#[test]
fn messages_that_are_none_are_refused() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let ask = |kind: &str, path: &str, body: &[u8]| {
        let headers = format!("content-type: {kind}\r\n{}", guest.headers());
        super::Told::read(&mut api.send("POST", path, &headers, body)).status
    };
    assert_eq!(ask("application/grpc", "/process.Process/List", b""), 415);
    assert_eq!(ask("application/grpc-web+proto", "/process.Process/Start", b"\0\0\0\0\0"), 415);
    assert_eq!(ask("application/json", "/process.Process/List", b"{"), 400);
    assert_eq!(ask("application/json", "/process.Process/None", b"{}"), 404);
    for broken in [&b""[..], b"\0\0\0", b"\0\0\0\0\x05ab", b"\0\xff\xff\xff\xff", b"\x01\0\0\0\x02{}"] {
        let headers = format!("content-type: application/connect+json\r\n{}", guest.headers());
        let told = super::Told::read(&mut api.send("POST", "/process.Process/Start", &headers, broken));
        assert_eq!((told.status, told.body[0]), (200, 2), "{broken:?}");
    }
    // A stream whose client goes in the middle of a message.
    let mut stream = api.server.connect();
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\n{}",
        guest.headers()
    );
    write!(stream, "{head}transfer-encoding: chunked\r\n\r\n3\r\n\0\0\0\r\n").unwrap();
    drop(stream);
    assert_eq!(api.out(&guest, "echo usable"), "usable\n");
}

/// Starts nothing more than it is told to: the id of a guest alone is needed by its helpers.
#[test]
fn a_guest_is_found_by_its_host_name() {
    let api = Api::start();
    let guest = api.create(&json!({ "metadata": {} }));
    let Guest { id, token } = &guest;
    let headers = format!("host: 49983-{id}.example.org\r\nx-access-token: {}\r\n", token.as_ref().unwrap());
    let health = super::read_head(&mut api.send("GET", "/health", &headers, b""));
    assert_eq!(health.0, 204);
}
