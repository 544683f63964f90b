//! The WebSockets of execs and terminals.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Server, delete, get, post, script, start};
use crate::serve::websocket::{Frame, WebSocket};
use crate::support::{Process, TestEnv, wait_until};

/// What a socket has told.
#[derive(Debug, Default)]
struct Heard {
    stdout: String,
    stderr: String,
    /// Other events.
    others: Vec<(String, Value)>,
    last_id: Option<String>,
}

impl Heard {
    /// Takes an event.
    fn take(&mut self, event: &Value) {
        let text = event["data"]["text"].as_str().unwrap_or_default();
        match event["event"].as_str().unwrap() {
            "stdout" => self.stdout.push_str(text),
            "stderr" => self.stderr.push_str(text),
            other => self.others.push((other.to_owned(), event["data"].clone())),
        }
        self.last_id = event["id"].as_str().map(str::to_owned).or(self.last_id.take());
    }

    /// Reads until this holds.
    #[track_caller]
    fn until(&mut self, socket: &mut WebSocket, holds: impl Fn(&Heard) -> bool) {
        while !holds(self) {
            match socket.receive() {
                Frame::Text(text) => self.take(&serde_json::from_str(&text).unwrap()),
                other => panic!("{other:?} after {self:?}"),
            }
        }
    }
}

/// Reads to the end of the socket, which is one without an error.
#[track_caller]
fn to_the_end(socket: &mut WebSocket) -> Heard {
    let mut heard = Heard::default();
    heard.until(socket, |heard| heard.others.iter().any(|(name, _)| name == "end"));
    assert_eq!(socket.receive(), Frame::Close(1000, String::new()), "{heard:?}");
    heard
}

/// Starts an exec; returns the path of its routes.
#[track_caller]
fn exec(server: &Server, id: &str, body: &Value) -> String {
    let made = post(server, &format!("/v1/sandboxes/{id}/execs"), body).with(201).json();
    format!("/v1/sandboxes/{id}/execs/{}", made["number"])
}

/// A command that shows the size of its terminal once it is this one: size and keys come on two ways.
fn resized(size: &str) -> String {
    format!("until test \"$(stty size)\" = '{size}'; do :; done; stty size")
}

fn attach(server: &Server, path: &str) -> WebSocket {
    WebSocket::open(server, &format!("{path}/attach"))
}

/// spec: 13.16
#[test]
fn a_command_reads_what_its_clients_write_to_the_end() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let body = json!({ "command": ["sh", "-c", "cat; echo done >&2; exit 3"], "open_input": true });
    let path = exec(&server, &id, &body);
    let (mut first, mut second) = (attach(&server, &path), attach(&server, &path));
    first.json(&json!({ "input": "one\n" }));
    Heard::default().until(&mut second, |heard| heard.stdout == "one\n");
    second.binary(b"two\n");
    second.json(&json!({ "end_input": true }));
    let heard = to_the_end(&mut first);
    assert_eq!((heard.stdout.as_str(), heard.stderr.as_str()), ("one\ntwo\n", "done\n"));
    let end = &heard.others.last().unwrap().1;
    assert_eq!((&end["exit"], &end["cause"]), (&json!({ "code": 3 }), &json!("exit")));
    // From the beginning, and from any place.
    let whole = to_the_end(&mut attach(&server, &path));
    assert_eq!(whole.stdout, "one\ntwo\n");
    let mut socket = WebSocket::open(&server, &format!("{path}/attach?offset=0"));
    let mut part = Heard::default();
    part.until(&mut socket, |heard| heard.stdout.starts_with("one\n"));
    let from = part.last_id.take().unwrap();
    let rest = to_the_end(&mut WebSocket::open(&server, &format!("{path}/attach?offset={from}")));
    assert_eq!(part.stdout + &rest.stdout, "one\ntwo\n");
    // Who comes later is told that there is no input.
    let mut late = attach(&server, &path);
    late.json(&json!({ "input": "x" }));
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16
#[test]
fn input_that_nobody_reads_holds_up_neither_output_nor_signals() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let command = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let path = exec(&server, &id, &json!({ "command": ["bash", "-c", command], "open_input": true }));
    let mut socket = attach(&server, &path);
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| heard.stdout == "ready\n");
    // More than the pipe holds.
    for _ in 0..8 {
        assert!(socket.binary(&vec![b'x'; 32 << 10]));
    }
    socket.json(&json!({ "signal": "USR1" }));
    let rest = to_the_end(&mut socket);
    assert_eq!(
        (rest.stdout.as_str(), &rest.others.last().unwrap().1["exit"]),
        ("caught\n", &json!({ "code": 5 }))
    );
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16
#[test]
fn an_open_input_outlives_its_server() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let path =
        exec(&server, &id, &json!({ "command": ["sh", "-c", "cat; exec sleep 4812"], "open_input": true }));
    let mut socket = attach(&server, &path);
    socket.binary(b"before ");
    Heard::default().until(&mut socket, |heard| heard.stdout == "before ");
    server.running.signal(Signal::KILL);
    assert_eq!(socket.receive(), Frame::Gone);
    server.running.finish().with_code(137);
    let server = Server::start(&env, &[]);
    let mut socket = attach(&server, &path);
    socket.json(&json!({ "input": "after" }));
    socket.json(&json!({ "end_input": true }));
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| {
        heard.stdout == "before after" && heard.others.iter().any(|(name, _)| name == "input_ended")
    });
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16
#[test]
fn a_terminal_of_an_exec_has_its_size_its_keys_and_several_viewers() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let body = json!({ "command": ["bash", "--norc"], "env": { "PS1": "$ " }, "open_input": true,
        "terminal": { "rows": 24, "columns": 80 } });
    let path = exec(&server, &id, &body);
    let (mut first, mut second) = (attach(&server, &path), attach(&server, &path));
    let (mut one, mut two) = (Heard::default(), Heard::default());
    one.until(&mut first, |heard| heard.stdout.contains("$ "));
    first.json(&json!({ "resize": { "rows": 41, "columns": 123 } }));
    first.json(&json!({ "input": format!("{}; sh -c 'echo up; exec cat'\n", resized("41 123")) }));
    for (heard, socket) in [(&mut one, &mut first), (&mut two, &mut second)] {
        heard.until(socket, |heard| heard.stdout.contains("41 123\r\nup\r\n"));
    }
    // A key, which ends `cat`.
    second.binary(b"\x03");
    // bash drops what is typed until it has shown the key.
    two.until(&mut second, |heard| {
        heard.stdout.split_once("^C").is_some_and(|(_, rest)| rest.contains("$ "))
    });
    second.json(&json!({ "input": "echo $((3 * 4)); exit 6\n" }));
    first.close();
    two.until(&mut second, |heard| heard.stdout.contains("12\r\n"));
    let end = to_the_end(&mut second);
    assert_eq!(end.others.last().unwrap().1["exit"], json!({ "code": 6 }));
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16.1
#[test]
fn a_client_that_leaves_ends_the_exec_only_if_it_said_so() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let body = json!({ "command": ["sh", "-c", "sleep 4811 & echo $!; wait"], "open_input": true });
    let leave = |query: &str| {
        let path = exec(&server, &id, &body);
        let mut socket = WebSocket::open(&server, &format!("{path}/attach{query}"));
        let mut heard = Heard::default();
        heard.until(&mut socket, |heard| heard.stdout.ends_with('\n'));
        let child = Process::find(heard.stdout.trim().parse().unwrap()).expect("it lives");
        // Without a word.
        drop(socket);
        (path, child)
    };
    let (left, child) = leave("?ends_with_client=true");
    wait_until("the tree of the exec is gone", || child.has_ended());
    let ended = get(&server, &format!("{left}/wait")).with(200).json();
    assert_eq!((&ended["ended"], &ended["cause"]), (&json!(true), &json!("stop")));
    let (path, child) = leave("");
    // Another client finds it alive.
    let mut socket = attach(&server, &path);
    Heard::default().until(&mut socket, |heard| heard.stdout.ends_with('\n'));
    assert!(!child.has_ended());
    post(&server, &format!("{path}/kill"), &json!({})).with(200);
    assert!(child.has_ended());
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16.1
#[test]
fn a_client_that_leaves_is_noticed_although_its_input_is_not_read() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let path = exec(
        &server,
        &id,
        &json!({ "command": ["sh", "-c", "echo $$; exec sleep 4812"], "open_input": true }),
    );
    let mut socket = WebSocket::open(&server, &format!("{path}/attach?ends_with_client=true"));
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| heard.stdout.ends_with('\n'));
    let command = Process::find(heard.stdout.trim().parse().unwrap()).unwrap();
    // More than the pipe and the queue of the server hold.
    for _ in 0..24 {
        assert!(socket.binary(&vec![b'x'; 32 << 10]));
    }
    assert!(!command.has_ended());
    drop(socket);
    wait_until("the command has ended", || command.has_ended());
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.16
#[test]
fn what_a_socket_cannot_do_is_told_and_the_socket_goes_on() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let path = exec(&server, &id, &json!({ "command": ["sleep", "600"] }));
    let mut socket = attach(&server, &path);
    let cases = [
        ("nonsense", "invalid_json"),
        (r#"{"unknown": 1}"#, "invalid_field"),
        (r#"{"signal": "NOPE"}"#, "invalid_field"),
        (r#"{"input": "nobody reads it"}"#, "refused"),
    ];
    for (text, kind) in cases {
        socket.text(text);
        let event = socket.value();
        assert_eq!(event["event"], "refused", "{event}");
        assert_eq!(event["data"]["type"], format!("urn:penfold:problem:{kind}"), "{text}");
    }
    socket.json(&json!({ "signal": "KILL" }));
    assert_eq!(to_the_end(&mut socket).others.last().unwrap().1["exit"], json!({ "signal": 9 }));
    // A request that is none for a socket is a problem, and starts nothing.
    assert_eq!(get(&server, &format!("{path}/attach")).with(400).problem(), "bad_request");
    let missing = server.get(&format!("/v1/sandboxes/{id}/execs/99/attach"), "upgrade: websocket\r\n");
    assert_eq!(missing.status, 404);
    let body = json!({ "command": ["cat"], "open_input": true, "stdin": "x" });
    assert_eq!(
        post(&server, &format!("/v1/sandboxes/{id}/execs"), &body).with(422).problem(),
        "invalid_field"
    );
    // A message that is too long ends its socket only.
    let path = exec(&server, &id, &json!({ "command": ["cat"], "open_input": true }));
    let mut long = attach(&server, &path);
    long.binary(&vec![b'x'; (1 << 20) + 1]);
    assert!(matches!(long.receive(), Frame::Close(1009, _) | Frame::Gone));
    let mut socket = attach(&server, &path);
    socket.json(&json!({ "end_input": true }));
    assert_eq!(to_the_end(&mut socket).stdout, "");
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// spec: 13.7
#[test]
fn a_viewer_that_reads_nothing_delays_nobody() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 600");
    let command = "read x; head -c 20000000 /dev/zero | tr '\\0' y; echo; exit 2";
    let path = exec(&server, &id, &json!({ "command": ["sh", "-c", command], "open_input": true }));
    let silent: Vec<WebSocket> = (0..3).map(|_| attach(&server, &path)).collect();
    let mut socket = attach(&server, &path);
    socket.json(&json!({ "input": "go\n" }));
    let heard = to_the_end(&mut socket);
    assert_eq!(
        (heard.stdout.len(), &heard.others.last().unwrap().1["exit"]),
        (20_000_001, &json!({ "code": 2 }))
    );
    // It finds all of it later.
    for mut socket in silent {
        assert_eq!(to_the_end(&mut socket).stdout.len(), 20_000_001);
    }
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}

/// Starts a sandbox with a terminal, in which bash runs; returns its path.
fn terminal(server: &Server) -> String {
    let body = json!({ "command": ["bash", "--norc"], "terminal": true, "env": { "PS1": "$ " } });
    let made = post(server, "/v1/sandboxes", &body).with(201).json();
    format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
}

/// spec: 13.17
#[test]
fn a_terminal_of_a_sandbox_is_shown_anew_or_from_the_beginning() {
    let (env, server) = start();
    let path = terminal(&server);
    let mut socket = WebSocket::open(&server, &format!("{path}/attach?rows=33&columns=99"));
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| heard.stdout.contains("$ "));
    socket.json(&json!({ "input": "echo first-$((1 + 1))\n" }));
    heard.until(&mut socket, |heard| heard.stdout.contains("first-2\r\n"));
    // Its size is that of the smallest viewer.
    socket.json(&json!({ "resize": { "rows": 30, "columns": 90 } }));
    socket.json(&json!({ "input": format!("{}\n", resized("30 90")) }));
    heard.until(&mut socket, |heard| heard.stdout.contains("30 90\r\n"));
    for (text, kind) in
        [(r#"{"signal": "INT"}"#, "invalid_field"), (r#"{"resize": {"rows": 1}}"#, "invalid_field")]
    {
        socket.text(text);
        heard.until(&mut socket, |heard| !heard.others.is_empty());
        let (name, problem) = heard.others.pop().unwrap();
        assert_eq!(
            (name.as_str(), &problem["type"]),
            ("refused", &json!(format!("urn:penfold:problem:{kind}")))
        );
    }
    drop(socket);
    let mut socket = WebSocket::open(&server, &format!("{path}/attach?offset=0"));
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| heard.stdout.contains("first-2\r\n"));
    assert!(heard.last_id.is_some());
    socket.json(&json!({ "input": "exit 7\n" }));
    let end = to_the_end(&mut socket).others.pop().unwrap().1;
    assert_eq!(end["exit"], json!({ "code": 7 }));
    // After the end: its output, or a problem.
    let heard = to_the_end(&mut WebSocket::open(&server, &format!("{path}/attach?offset=0")));
    assert!(heard.stdout.contains("first-2\r\n"), "{heard:?}");
    server.end();
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 13.17
#[test]
fn a_terminal_of_a_sandbox_survives_its_viewers_and_its_supervisor() {
    let (env, server) = start();
    let sandbox = env.detach(["-t", "--on-supervisor-exit", "keep", "-e", "PS1=$ ", "bash", "--norc"]);
    let path = format!("/v1/sandboxes/{}", sandbox.id);
    let mut socket = WebSocket::open(&server, &format!("{path}/attach?offset=0"));
    let mut heard = Heard::default();
    heard.until(&mut socket, |heard| heard.stdout.contains("$ "));
    let supervisor = sandbox.supervisors_now().pop().unwrap();
    supervisor.signal(Signal::KILL);
    heard.until(&mut socket, |heard| !heard.others.is_empty());
    let (name, problem) = &heard.others[0];
    assert_eq!((name.as_str(), &problem["type"]), ("error", &json!("urn:penfold:problem:unanswered")));
    let again = format!("{path}/attach?offset={}", heard.last_id.clone().unwrap());
    let mut sockets = Vec::new();
    wait_until("another supervisor has taken over", || {
        sockets.extend(WebSocket::try_with(&server, &again, ""));
        !sockets.is_empty()
    });
    let mut socket = sockets.pop().unwrap();
    socket.json(&json!({ "input": "echo again-$((2 + 2)); exit 8\n" }));
    let heard = to_the_end(&mut socket);
    assert!(heard.stdout.contains("again-4\r\n"), "{heard:?}");
    assert_eq!(heard.others.last().unwrap().1["exit"], json!({ "code": 8 }));
    server.end();
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 15.20
#[test]
fn sockets_end_with_the_server_and_count_as_connections() {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--max-connections", "3"]);
    let id = script(&server, "exec sleep 600");
    let path = exec(&server, &id, &json!({ "command": ["cat"], "open_input": true }));
    let mut sockets = Vec::new();
    wait_until("there are three sockets: the connections of before are gone", || {
        sockets.extend(WebSocket::try_with(&server, &format!("{path}/attach"), ""));
        sockets.len() == 3
    });
    assert_eq!(server.get("/healthz", "").status, 429);
    drop(sockets.pop());
    wait_until("there is room for a connection", || server.get("/healthz", "").status == 200);
    server.running.signal(Signal::TERM);
    for mut socket in sockets {
        let mut last = socket.receive();
        let mut texts = Vec::new();
        while let Frame::Text(text) = last {
            texts.push(text);
            last = socket.receive();
        }
        assert!(texts.iter().any(|text| text.contains("urn:penfold:problem:draining")), "{texts:?}");
        assert_eq!(last, Frame::Close(1001, "the server ends".to_owned()));
    }
    server.running.finish().with_code(0);
    // The command goes on.
    let server = Server::start(&env, &[]);
    let mut socket = attach(&server, &path);
    socket.json(&json!({ "input": "still here" }));
    socket.json(&json!({ "end_input": true }));
    assert_eq!(to_the_end(&mut socket).stdout, "still here");
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    server.end();
    env.assert_nothing_left();
}
