//! `/ws`, all routes over one WebSocket, and `/ws/pty`, the terminal of a session.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Api, Server};
use crate::serve::websocket::{Frame, WebSocket};
use crate::support::{Process, TestEnv, wait_until};

/// Sends a request over a socket.
fn send(socket: &mut WebSocket, id: &str, method: &str, path: &str, body: &Value) {
    socket.json(&json!({ "type": "request", "id": id, "method": method, "path": path, "body": body }));
}

/// Waits for the message of this kind about a request; others are dropped.
#[track_caller]
fn told(socket: &mut WebSocket, id: &str, kind: &str) -> Value {
    loop {
        let message = socket.value();
        if message["id"] == id && message["type"] == kind {
            return message;
        }
        assert_ne!((&message["id"], &message["type"]), (&json!(id), &json!("error")), "{message}");
    }
}

/// spec: 15.20
#[test]
fn requests_over_one_socket_are_answered_when_they_are_ready() {
    let api = Api::start();
    let mut socket = WebSocket::open(&api.server, "/ws");
    let go = api.path("go");
    let command = |text: &str, session: &str| json!({ "command": text, "sessionId": session });
    send(
        &mut socket,
        "slow",
        "POST",
        "/api/execute",
        &command(&format!("while ! test -e {go}; do sleep 0.05; done"), "a"),
    );
    send(&mut socket, "fast", "POST", "/api/execute", &command("echo out; (exit 3)", "b"));
    let fast = told(&mut socket, "fast", "response");
    assert_eq!(
        (&fast["status"], &fast["done"], &fast["body"]["stdout"]),
        (&json!(200), &json!(true), &json!("out\n"))
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(told(&mut socket, "slow", "response")["body"]["exitCode"], 0);
    // An answer that is an error, an unknown route, a route of a socket.
    for (path, status, code) in [
        ("/api/process/none", 404, "PROCESS_NOT_FOUND"),
        ("/api/none", 404, "UNKNOWN_ERROR"),
        ("/ws", 404, "UNKNOWN_ERROR"),
    ] {
        send(&mut socket, path, "GET", path, &Value::Null);
        let answer = told(&mut socket, path, "response");
        assert_eq!((&answer["status"], &answer["body"]["code"]), (&json!(status), &json!(code)), "{answer}");
    }
    for (text, code) in [
        ("no JSON", "PARSE_ERROR"),
        ("{}", "INVALID_REQUEST"),
        (r#"{"type":"request","method":"GET","path":"/"}"#, "INVALID_REQUEST"),
        (r#"{"type":"request","id":"x","method":"GET","path":"no path"}"#, "INVALID_REQUEST"),
    ] {
        socket.text(text);
        let error = loop {
            let message = socket.value();
            if message["type"] == "error" {
                break message;
            }
        };
        assert_eq!((&error["code"], &error["status"]), (&json!(code), &json!(400)), "{text}");
    }
    let refused = api.get("/ws");
    assert_eq!(refused.fails(426, "UNKNOWN_ERROR")["httpStatus"], 426);
}

/// spec: 15.20
#[test]
fn a_stream_over_a_socket_is_cancelled_and_its_process_goes_on() {
    let api = Api::start();
    let mut socket = WebSocket::open(&api.server, "/api/ws");
    let pid = api.process("s", "p", "while :; do echo tick; sleep 0.01; done");
    let process = Process::find(pid).expect("it lives");
    send(&mut socket, "log", "GET", "/api/process/p/stream", &Value::Null);
    let is_tick = |message: &Value| message["data"].as_str().unwrap().contains("tick");
    while !is_tick(&told(&mut socket, "log", "stream")) {}
    socket.json(&json!({ "type": "cancel", "id": "log" }));
    send(&mut socket, "ping", "GET", "/api/ping", &Value::Null);
    while socket.value()["id"] != "ping" {}
    // Nothing of the stream comes after what had begun.
    send(&mut socket, "kill", "DELETE", "/api/process/p", &Value::Null);
    assert_eq!(told(&mut socket, "kill", "response")["status"], 200);
    assert!(process.has_ended());
    send(&mut socket, "end", "GET", "/api/ping", &Value::Null);
    assert_eq!(socket.value()["id"], "end");
    // A stream to its end.
    let body = json!({ "command": "echo one; exit 4", "sessionId": "s" });
    send(&mut socket, "run", "POST", "/api/execute/stream", &body);
    let mut events: Vec<Value> = Vec::new();
    let last = loop {
        let message = socket.value();
        match message["data"].as_str() {
            Some(data) => events.push(serde_json::from_str(data).unwrap()),
            None => break message,
        }
    };
    assert_eq!((&last["type"], &last["done"], last.get("body")), (&json!("response"), &json!(true), None));
    assert_eq!((&events[0]["type"], &events.last().unwrap()["exitCode"]), (&json!("start"), &json!(4)));
}

/// spec: 15.20
#[test]
fn a_socket_has_a_number_of_requests_at_one_time_and_its_end_ends_nothing() {
    let api = Api::start();
    let mut socket = WebSocket::open(&api.server, "/ws");
    let pid = api.process("s", "p", "echo begun; sleep 4831");
    // A stream without an end, which takes no watch of the host: other tests need theirs.
    let port = json!({ "port": 1, "mode": "tcp", "interval": 10_000 });
    for number in 0..129 {
        send(&mut socket, &format!("r{number}"), "POST", "/api/port-watch", &port);
    }
    let refused = loop {
        let message = socket.value();
        if message["type"] == "error" {
            break message;
        }
    };
    assert_eq!((&refused["id"], &refused["status"]), (&json!("r128"), &json!(429)), "{refused}");
    drop(socket);
    let threads = format!("/proc/{}/task", api.server.running.pid());
    wait_until("the streams are gone", || std::fs::read_dir(&threads).unwrap().count() < 40);
    assert!(!Process::find(pid).unwrap().has_ended());
    // Who leaves without a word is noticed, too: there is room for all requests again.
    let mut socket = WebSocket::open(&api.server, "/ws");
    for number in 0..128 {
        send(&mut socket, &format!("r{number}"), "POST", "/api/port-watch", &port);
        told(&mut socket, &format!("r{number}"), "stream");
    }
    api.delete("/api/process/p").ok();
}

/// spec: 15.20
#[test]
fn unfinished_messages_of_all_sockets_have_a_limit() {
    let api = Api::start();
    let mut sockets: Vec<WebSocket> = (0..24).map(|_| WebSocket::open(&api.server, "/ws")).collect();
    let mib = vec![b'x'; 1 << 20];
    let mut refused = 0;
    for socket in &mut sockets {
        // A message of 15 parts without its end; a ping between two of them changes nothing.
        let is_taken = (0..15).all(|number| {
            socket.part(u8::from(number == 0), &mib) && socket.send(9, b"") && socket.receive_pong()
        });
        refused += usize::from(!is_taken);
    }
    assert!((4..=12).contains(&refused), "{refused} of 24: 256 MiB are for 17");
    drop(sockets);
    let mut socket = WebSocket::open(&api.server, "/ws");
    send(&mut socket, "ping", "GET", "/api/ping", &Value::Null);
    assert_eq!(told(&mut socket, "ping", "response")["status"], 200);
}

/// A server whose shells read no file of this user.
#[track_caller]
fn start() -> Api {
    let env = TestEnv::new();
    let home = env.path("work");
    let server = Server::start_with(&env, "api.sock", &["--api", "cloudflare"], |command| {
        command.env("HOME", home);
    });
    Api { env, server }
}

/// A client of a terminal.
struct Pty {
    socket: WebSocket,
    shown: String,
    said: Vec<Value>,
}

impl Pty {
    #[track_caller]
    fn open(server: &Server, session: &str, query: &str) -> Pty {
        let socket = WebSocket::open(server, &format!("/ws/pty?sessionId={session}{query}"));
        let mut pty = Pty { socket, shown: String::new(), said: Vec::new() };
        pty.until(|pty| !pty.said.is_empty());
        assert_eq!(pty.said[0], json!({ "type": "ready" }));
        pty
    }

    #[track_caller]
    fn until(&mut self, holds: impl Fn(&Pty) -> bool) {
        while !holds(self) {
            match self.socket.receive() {
                Frame::Text(text) => self.said.push(serde_json::from_str(&text).unwrap()),
                Frame::Binary(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                other => panic!("{other:?} after {:?} {:?}", self.shown, self.said),
            }
        }
    }

    #[track_caller]
    fn shows(&mut self, text: &str) {
        self.until(|pty| pty.shown.contains(text));
    }

    fn types(&mut self, text: &str) {
        self.socket.binary(text.as_bytes());
    }
}

/// spec: 15.21
#[test]
fn a_terminal_has_its_size_its_viewers_and_its_end() {
    let api = start();
    let mut first = Pty::open(&api.server, "s", "&cols=100&rows=30");
    first.types("stty size; echo $TERM\n");
    first.shows("30 100\r\nxterm-256color\r\n");
    let mut second = Pty::open(&api.server, "s", "&cols=20&rows=20");
    assert!(second.shown.contains("30 100\r\n"), "what was shown before comes first: {:?}", second.shown);
    first.socket.json(&json!({ "type": "resize", "cols": 120, "rows": 40 }));
    // The size and the keys come on two ways.
    second.types("until test \"$(stty size)\" = '40 120'; do :; done; stty size\n");
    first.shows("40 120\r\n");
    second.shows("40 120\r\n");
    for (text, why) in [
        (r#"{"type":"resize","cols":0,"rows":40}"#, "Invalid dimensions: cols and rows must be positive"),
        ("nonsense", "Invalid control message"),
    ] {
        first.socket.text(text);
        let count = first.said.len();
        first.until(|pty| pty.said.len() > count);
        assert_eq!(first.said.last().unwrap(), &json!({ "type": "error", "message": why }));
    }
    // A session of its own has a terminal of its own.
    let mut other = Pty::open(&api.server, "other", "");
    other.types("echo other-$((1 + 1)); exit 7\n");
    other.until(|pty| pty.said.len() > 1);
    assert_eq!(
        (other.said.last().unwrap()["code"].clone(), other.shown.contains("other-2\r\n")),
        (json!(7), true)
    );
    assert_eq!(other.socket.receive(), Frame::Close(1000, String::new()));
    assert!(!first.shown.contains("other"));
    // After its end, a new one.
    let mut fresh = Pty::open(&api.server, "other", "&shell=sh");
    fresh.types("echo $0-$((2 + 2))\n");
    fresh.shows("sh-4\r\n");
    // A terminal is no process of the API.
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
    assert_eq!(api.server.get("/ws/pty?sessionId=s", "").status, 426);
}

/// spec: 15.21
#[test]
fn a_terminal_outlives_its_server_and_ends_with_its_session() {
    let mut api = start();
    let mut pty = Pty::open(&api.server, "s", "");
    pty.types("echo pid-$$; X=kept; sleep 4832 &\n");
    pty.shows("pid-");
    pty.until(|pty| {
        pty.shown.rsplit_once("pid-").is_some_and(|(_, rest)| rest.contains("\r\n") && !rest.starts_with('$'))
    });
    let pid = pty.shown.rsplit_once("pid-").unwrap().1.split('\r').next().unwrap().parse().unwrap();
    let shell = Process::find(pid).expect("it lives");
    wait_until("its job runs", || api.env.is_running("sleep 4832"));
    api.replace_server();
    assert!(!shell.has_ended());
    let mut pty = Pty::open(&api.server, "s", "");
    assert!(pty.shown.contains("pid-"), "{:?}", pty.shown);
    pty.types("echo $X-$((3 + 3))\n");
    pty.shows("kept-6\r\n");
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    assert!(shell.has_ended() && !api.env.is_running("sleep 4832"));
    pty.until(|pty| pty.said.len() > 1);
    assert_eq!(pty.said[1]["type"], "exit");
    assert!(matches!(pty.socket.receive(), Frame::Close(1000, _)));
}

/// spec: 13.7, 15.21
#[test]
fn terminals_that_write_without_end_do_not_delay_a_kill() {
    let api = start();
    let pid = api.process("other", "p", "sleep 4833");
    // Their clients read nothing more. All begin late: they take the processors from each other.
    let mut silent: Vec<Pty> =
        (0..8).map(|number| Pty::open(&api.server, &format!("s{number}"), "")).collect();
    for pty in &mut silent {
        pty.types("yes\n");
        pty.shows("y\r\ny\r\n");
    }
    let process = Process::find(pid).unwrap();
    let begun = std::time::Instant::now();
    api.delete("/api/process/p").ok();
    assert!(process.has_ended());
    for number in 0..8 {
        api.post("/api/session/delete", &json!({ "sessionId": format!("s{number}") })).ok();
    }
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    assert!(!api.env.is_running("yes"));
    api.server.running.signal(Signal::TERM);
}
