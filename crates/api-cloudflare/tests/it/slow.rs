//! Callers that send or read nothing for a while: the server closes their connections.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_server::{Access, Address, Config, Limits, Listener, Tokens};
use rustix::event::{Timespec, poll};
use tempfile::TempDir;

/// A test fails after this time.
const DEADLINE: Duration = Duration::from_secs(30);
/// A limit that passes in a test.
const SHORT: Duration = Duration::from_millis(200);
/// A limit that no test reaches.
const LONG: Duration = Duration::from_hours(1);

/// A server in this process, until the process ends.
pub struct Server {
    dir: TempDir,
}

impl Server {
    /// Starts one where each limit on time is long, except those that `change` sets.
    pub fn start(change: impl FnOnce(&mut Limits)) -> Server {
        let dir = TempDir::new().unwrap();
        let mut limits = Limits { head_time: LONG, body_time: LONG, write_time: LONG, ..Limits::default() };
        change(&mut limits);
        let config = Config {
            templates: std::collections::BTreeMap::new(),
            state_root: dir.path().join("root"),
            temporary: dir.path().to_owned(),
            program: PathBuf::from("/nowhere/penfold"),
            environment: Vec::new(),
            tokens: Tokens::default(),
            token_file: None,
            has_terminal: false,
            limits,
            drain: SHORT,
        };
        std::fs::create_dir(&config.state_root).unwrap();
        let access = Access { tokens: &config.tokens, insecure_no_token: false };
        let address = Address::Unix(dir.path().join("api.sock"));
        let dialects = vec![penfold_api_native::DIALECT, penfold_api_cloudflare::DIALECT];
        // Connections wait in the backlog until the server accepts them.
        let listener = Listener::open(&address, access).unwrap();
        std::thread::spawn(move || penfold_server::serve(config, dialects, vec![listener], &mut |_| ()));
        Server { dir }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("api.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends a request, and reads the whole answer.
    #[track_caller]
    pub fn say(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_ref()).unwrap();
        rest(&mut stream)
    }

    /// Asks for the content of a file.
    fn ask_for(&self, route: &str, path: &Path) -> UnixStream {
        let body = format!("{{\"path\":\"{}\"}}", path.display());
        let head = "HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
        let mut stream = self.connect();
        write!(stream, "POST {route} {head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    /// The connections that are open, without the one that asks.
    #[track_caller]
    fn connections(&self) -> u32 {
        let text = self.say("GET /metrics HTTP/1.0\r\n\r\n");
        let count = text.lines().find_map(|line| line.strip_prefix("penfold_http_connections "));
        count.unwrap_or_else(|| panic!("{text}")).parse::<u32>().unwrap() - 1
    }
}

/// Reads until the server closes the connection.
#[track_caller]
fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the connection stays open"),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[track_caller]
fn wait_until(wanted: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {wanted}");
        pause(Duration::from_millis(5));
    }
}

fn pause(time: Duration) {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [], Some(&time)).unwrap();
}

/// The threads of this process that write an answer, of one client or of several.
fn writers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.filter(|task| ["body\n", "stream\n"].contains(&&*name(task.as_ref().unwrap().path()))).count()
}

/// spec: 15.4.1
#[test]
fn a_caller_that_sends_no_whole_head_in_time_is_closed() {
    let server = Server::start(|limits| limits.head_time = SHORT);
    for begun in ["", "G", "GET /healthz HTTP/1.1\r\nhost: a\r\nx: "] {
        assert!(!server.say(begun).contains("200"), "{begun:?}");
    }
    // A request that was answered: the next head has the same time.
    let said = server.say("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nGET /heal");
    assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{said}");
    // A byte now and then does not give more time.
    let mut stream = server.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nx: ").unwrap();
    stream.set_read_timeout(Some(SHORT / 10)).unwrap();
    let begun = Instant::now();
    while stream.write_all(b"y").is_ok() {
        match stream.read(&mut [0; 64]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => break,
        }
        assert!(begun.elapsed() < DEADLINE, "the connection stays open");
    }
    wait_until("each connection is closed", || server.connections() == 0);
}

/// spec: 15.4.1
#[test]
fn a_caller_that_stops_in_the_middle_of_a_body_is_closed() {
    let server = Server::start(|limits| limits.body_time = SHORT);
    let head = "HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    for path in ["/v1/sandboxes", "/api/execute"] {
        for body in ["content-length: 10\r\n\r\n{\"a\"", "transfer-encoding: chunked\r\n\r\n5\r\n{\"a\""] {
            let said = server.say(format!("POST {path} {head}connection: close\r\n{body}"));
            assert!(said.starts_with("HTTP/1.1 400"), "{said}");
        }
        // What follows is not taken for a request.
        let said = server.say(format!("POST {path} {head}content-length: 10\r\n\r\n{{\"a\""));
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{said}");
    }
    wait_until("each connection is closed", || server.connections() == 0);
}

/// Sends a body of this many parts, one each now and then, and returns the answer.
#[track_caller]
fn slow_body(server: &Server, part: &str, count: usize) -> String {
    let head =
        "POST /api/exists HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let last = r#"{"path":"/"}"#;
    let mut stream = server.connect();
    write!(stream, "{head}content-length: {}\r\n\r\n", part.len() * count + last.len()).unwrap();
    for _ in 0..count {
        // The server may close while we send.
        if stream.write_all(part.as_bytes()).is_err() {
            break;
        }
        pause(SHORT / 20);
    }
    let _ = stream.write_all(last.as_bytes());
    rest(&mut stream)
}

/// spec: 15.4.1
#[test]
fn a_caller_that_sends_a_body_byte_by_byte_is_closed() {
    let server = Server::start(|limits| {
        limits.body_whole_time = SHORT;
        limits.body_rate = 10_000;
    });
    let begun = Instant::now();
    let said = slow_body(&server, " ", 5000);
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    assert!(begun.elapsed() < 20 * SHORT, "{:?}", begun.elapsed());
    wait_until("the connection is closed", || server.connections() == 0);
    // A body that is fast enough may take longer than that.
    let begun = Instant::now();
    let said = slow_body(&server, &" ".repeat(10_000), 60);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(begun.elapsed() > 2 * SHORT, "{:?}", begun.elapsed());
}

/// Asks for two long answers, and reads only the beginning of each.
#[track_caller]
fn stuck_readers(server: &Server) -> Vec<UnixStream> {
    let path = server.dir.path().join("large");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let open = |route| {
        let mut stream = server.ask_for(route, &path);
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
        stream
    };
    ["/api/read", "/api/read/stream"].map(open).into()
}

/// spec: 15.4.1
#[test]
fn a_caller_that_never_reads_holds_no_connection_and_no_thread() {
    let patient = Server::start(|_| ());
    let held = stuck_readers(&patient);
    wait_until("the answers wait for their readers", || (patient.connections(), writers()) == (2, 2));
    drop(held);
    wait_until("no thread is left", || writers() == 0);
    let server = Server::start(|limits| limits.write_time = SHORT);
    let held = stuck_readers(&server);
    wait_until("each connection is closed", || server.connections() == 0);
    wait_until("no thread is left", || writers() == 0);
    for mut stream in held {
        assert!(!rest(&mut stream).ends_with("\r\n0\r\n\r\n"), "the answer is complete");
    }
}

/// Reads a long answer in small parts, for longer than the limit. Nothing if this process was too slow itself.
fn slow_answer(server: &Server, path: &Path) -> Option<Vec<u8>> {
    let mut stream = server.ask_for("/api/read", path);
    let begun = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    let mut all = Vec::new();
    loop {
        let mark = Instant::now();
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return Some(all),
            Ok(length) => all.extend_from_slice(&buffer[..length]),
        }
        if begun.elapsed() < 3 * SHORT {
            pause(SHORT / 20);
        }
        // The kernel lets the server write again after a few parts.
        if mark.elapsed() > SHORT / 5 {
            return None;
        }
    }
}

/// spec: 15.4.1
#[test]
fn a_slow_reader_gets_all() {
    let server = Server::start(|limits| limits.write_time = SHORT);
    let path = server.dir.path().join("large");
    std::fs::write(&path, "x".repeat(4 << 20)).unwrap();
    let mut answer = None;
    wait_until("this process was fast enough", || {
        answer = slow_answer(&server, &path);
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert!(answer.len() > 4 << 20 && answer.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", answer.len());
}

/// spec: 15.4.1
#[test]
fn a_half_closed_connection_ends() {
    let server = Server::start(|_| ());
    for begun in ["", "GET /hea", "POST /v1/sandboxes HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{"] {
        let mut stream = server.connect();
        stream.write_all(begun.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let said = rest(&mut stream);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{begun:?}: {said}");
    }
    // An answer that would go on for ever.
    let mut stream = server.connect();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    wait_until("the answer has begun", || writers() == 1);
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(!rest(&mut stream).ends_with("\r\n0\r\n\r\n"));
    wait_until("each connection is closed", || server.connections() == 0);
    wait_until("no thread is left", || writers() == 0);
}
