//! Malformed, slow and oversized requests: 4xx or a closed connection, and the next request is answered.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::{Answer, Server, read_all};
use crate::support::{TestEnv, wait_until};

/// A request that is answered with this status, or with a closed connection where it is 0.
const MALFORMED: &[(&str, u16)] = &[
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 1\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 2\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x2\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length\t: 2\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n", 400),
    (
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: a\r\n content-length: 40\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +4\r\n\r\nabcd", 400),
    ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n", 400),
    ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    ("GET /a\0b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("GET /%00 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nx: a\r\n folded: b\r\n\r\n", 400),
    ("GET / HTTP/9.9\r\nhost: a\r\n\r\n", 400),
    ("\u{16}\u{3}\u{1}\u{0}\u{0}", 400),
    ("nonsense\r\n\r\n", 400),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
];

/// spec: 15.4
#[test]
fn malformed_requests_are_refused_and_nothing_follows_them() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    for (request, status) in MALFORMED {
        let smuggled = format!("{request}GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
        let said = server.say(smuggled.as_bytes());
        let answers = said.matches("HTTP/1.1 ").count();
        if *status > 0 || answers > 0 {
            let answer = Answer::parse(&said);
            assert_eq!(answer.status, *status, "{request:?}: {said}");
        }
        assert_eq!(answers, usize::from(answers > 0), "{request:?}: {said}");
        assert!(!said.contains("ok\n"), "{request:?}: {said}");
    }
    assert_eq!(server.get("/healthz", "").status, 200);
    let said = server.end();
    assert!(!said.contains("panicked"), "{said}");
}

/// hyper takes the length away, so that only the bytes show it.
///
/// spec: 15.4
#[test]
fn a_command_with_a_length_and_a_transfer_coding_does_not_run() {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--api", "native,cloudflare"]);
    let ran = env.path("work/ran");
    let native = serde_json::json!({ "command": ["touch", ran] }).to_string();
    let cloudflare = serde_json::json!({ "command": format!("touch {}", ran.display()) }).to_string();
    for (path, body) in [("/v1/sandboxes", native), ("/api/execute", cloudflare)] {
        let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let send = |before: &str, fields: &str| {
            let request = format!(
                "{before}POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{fields}\r\n{body}"
            );
            server.say(request.as_bytes())
        };
        let (coding, length) = ("Transfer-Encoding: chunked\r\n", "Content-Length: 4\r\n");
        // Also behind another request.
        let first = "POST /none HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
        for (before, answers) in [("", 1), (first, 2)] {
            for fields in [format!("{coding}{length}"), format!("{length}{coding}")] {
                let said = send(before, &fields);
                assert_eq!(said.matches("HTTP/1.1 ").count(), answers, "{said}");
                assert_eq!(said.matches("HTTP/1.1 400").count(), 1, "{said}");
                assert!(said.contains("exclude each other"), "{said}");
                assert!(!ran.try_exists().unwrap());
            }
        }
        // The same with a coding only.
        assert!(send("", coding).starts_with("HTTP/1.1 20"));
        wait_until("the command has run", || ran.try_exists().unwrap());
        std::fs::remove_file(&ran).unwrap();
    }
    server.end();
}

/// spec: 15.4
#[test]
fn nothing_follows_a_chunked_request_on_its_connection() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    for body in
        ["0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "zz\r\n", "ffffffffffffffffff\r\n", "3\r\nabcdef\r\n0\r\n\r\n"]
    {
        let request = format!(
            "POST /healthz HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n{body}GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
        );
        let said = server.say(request.as_bytes());
        assert!(said.matches("HTTP/1.1 ").count() <= 1 && !said.contains("ok\n"), "{body:?}: {said}");
    }
    server.end();
}

/// spec: 15.4
#[test]
fn large_heads_are_refused() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let long = "a".repeat(100_000);
    let many: String = "x: y\r\n".repeat(200);
    for request in [
        format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"),
    ] {
        let said = server.say(request.as_bytes());
        let status = Answer::parse(&said).status;
        assert!([400, 414, 431].contains(&status), "{said}");
    }
    assert_eq!(server.get("/healthz", "").status, 200);
    server.end();
}

/// A server reads equal lengths as one length; the bytes behind the body are the next request and nothing else.
///
/// spec: 15.4
#[test]
fn equal_lengths_have_one_meaning() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let body = "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = body.len();
    let said = server.say(
        format!("POST /none HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\ncontent-length: {length}\r\n\r\n{body}")
            .as_bytes(),
    );
    assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{said}");
    assert!((400..500).contains(&Answer::parse(&said).status), "{said}");
    server.end();
}

/// spec: 15.4
#[test]
fn a_body_of_a_hundred_megabytes_is_refused_and_not_kept() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let pid = server.running.pid();
    super::load::forget_peak(pid);
    let before = super::load::peak(pid);
    let part = vec![b'x'; 1 << 20];
    for path in ["/v1/sandboxes", "/v1/gc", "/api/execute", "/api/rename"] {
        for is_chunked in [false, true] {
            let coding = if is_chunked { "transfer-encoding: chunked" } else { "content-length: 100000000" };
            let mut stream = server.connect();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{coding}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            // The server answers and closes before it has read all.
            let mut left = 100_000_000_usize;
            while left > 0 {
                let part = &part[..left.min(part.len())];
                let sent = if is_chunked {
                    let head = format!("{:x}\r\n", part.len());
                    [head.as_bytes(), part, b"\r\n"].iter().try_for_each(|bytes| stream.write_all(bytes))
                } else {
                    stream.write_all(part)
                };
                if sent.is_err() {
                    break;
                }
                left -= part.len();
            }
            assert!(left > 0, "{path}: the server read all");
            let said = read_all(&mut *stream);
            assert!(said.is_empty() || Answer::parse(&said).status == 413, "{path}: {said}");
        }
    }
    let grown = super::load::peak(pid) - before;
    assert!(grown < 64 << 20, "{grown} bytes");
    assert_eq!(server.get("/healthz", "").status, 200);
    let said = server.end();
    assert!(!said.contains("panicked"), "{said}");
}

/// Opens as many connections as the server has room for, each with an answer: then the server has counted it.
fn fill(server: &Server, count: usize) -> Vec<Box<dyn super::Stream>> {
    let mut held = Vec::new();
    crate::support::wait_until("earlier connections are over", || {
        held.clear();
        for _ in 0..count {
            let mut stream = server.connect();
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
            let mut buffer = [0_u8; 12];
            if stream.read_exact(&mut buffer).is_err() || &buffer != b"HTTP/1.1 200" {
                return false;
            }
            held.push(stream);
        }
        true
    });
    held
}

/// spec: 15.4, 15.4.3
#[test]
fn connections_beyond_the_limit_are_told_so() {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--max-connections", "3"]);
    let held = fill(&server, 3);
    for (path, kind) in [("/v1/sandboxes", "urn:penfold:problem:too_many"), ("/api/ping", "TOO_MANY")] {
        let answer = server.get(path, "");
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{answer:?}");
        assert!(answer.body.contains(kind) && answer.header("connection") == Some("close"), "{answer:?}");
    }
    // Those that ask for nothing take what is left, too.
    let mut idle: Vec<_> = (0..16).map(|_| server.connect()).collect();
    let mut refused = server.connect();
    let answer = Answer::parse(&read_all(&mut *refused));
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    // They are not waited for as long as others.
    let began = Instant::now();
    assert_eq!(read_all(&mut *idle.remove(0)), "");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop((held, idle));
    crate::support::wait_until("there is room again", || {
        server.say(b"GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200")
    });
    server.end();
}

/// spec: 15.4.3
#[test]
fn a_kill_finds_room_beside_as_many_connections_as_there_can_be() {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--max-connections", "3"]);
    let [killed, stopped] =
        ["killed", "stopped"].map(|_| super::native::script(&server, "sleep 4813 & wait"));
    let api = super::cloudflare::Api { env, server };
    api.out("s", "true");
    api.process("s", "p", "sleep 4814");
    let super::cloudflare::Api { env, server } = api;
    let held = fill(&server, 3);
    assert_eq!(server.get("/v1/sandboxes", "").status, 429);
    let ends = [
        ("POST", format!("/v1/sandboxes/{killed}/kill"), ""),
        ("POST", format!("/v1/sandboxes/{stopped}/stop"), ""),
        ("DELETE", format!("/v1/sandboxes/{killed}"), ""),
        ("DELETE", "/api/process/p".to_owned(), ""),
        ("POST", "/api/session/delete".to_owned(), r#"{"sessionId":"s"}"#),
    ];
    for (method, path, body) in ends {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = Answer::parse(&server.say(request.as_bytes()));
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{path}: {answer:?}");
    }
    let left = env.call(["ps", "-q"]).with_code(0).out();
    assert_eq!(left, "", "all have ended while the server was full");
    drop(held);
    server.end();
    env.call(["rm", "--all", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 15.7
#[test]
fn request_ids_come_back_and_into_the_log() {
    let env = TestEnv::new();
    let server = Server::start(&env, &["--log-format", "json"]);
    assert_eq!(server.get("/healthz", "x-request-id: abc-1\r\n").header("x-request-id"), Some("abc-1"));
    let made = server.get("/none", "x-request-id: not a word\r\n");
    let made = made.header("x-request-id").unwrap().to_owned();
    assert!(!made.contains(' ') && !made.is_empty());
    let said = server.end();
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap();
    assert_eq!((&of("abc-1")["status"], &of("abc-1")["path"]), (&200.into(), &"/healthz".into()));
    assert_eq!(of(&made)["status"], 404);
}

#[test]
fn metrics_count_requests() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    server.get("/v1/none", "");
    let text = server.get("/metrics", "").body;
    assert!(
        text.contains("penfold_http_requests_total{api=\"native\",method=\"GET\",status=\"404\"} 1"),
        "{text}"
    );
    assert!(text.contains("penfold_http_connections"), "{text}");
    assert!(text.trim_end().ends_with("# EOF"), "{text}");
    server.end();
}

/// spec: 15.4
#[test]
fn sandboxes_of_a_token_have_a_limit_that_a_restart_keeps() {
    let env = TestEnv::new();
    let tokens = super::token_file(&env);
    let words = ["--token-file", tokens.as_str(), "--max-sandboxes", "2"];
    let body = r#"{"command": ["sleep", "600"]}"#;
    let request = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
         authorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        super::TOKEN,
        body.len()
    );
    let create = |server: &Server| {
        let answer = Answer::parse(&server.say(request.as_bytes()));
        assert!([201, 429].contains(&answer.status), "{answer:?}");
        (answer.status == 201).then(|| {
            let sandbox: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            sandbox["id"].as_str().unwrap().to_owned()
        })
    };
    let server = Server::start_tcp(&env, &words);
    let first = create(&server).unwrap();
    let second = create(&server).unwrap();
    assert_eq!(create(&server), None);
    // Those that others start do not count.
    env.detach(["sleep", "600"]);
    env.call(["rm", "-f", &first]).with_code(0);
    let third = create(&server).unwrap();
    assert_eq!(create(&server), None);
    server.end();
    let server = Server::start_tcp(&env, &words);
    assert_eq!(create(&server), None);
    env.call(["rm", "-f", &second, &third]).with_code(0);
    assert!(create(&server).is_some());
    server.end();
}
