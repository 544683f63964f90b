//! The Cloudflare Sandbox API, by its wire.

mod backup;
mod better;
mod execute;
mod files;
mod git;
mod idle;
mod interpreter;
mod interpreter_ends;
mod kill;
mod ports;
mod processes;
mod restart;
mod routes;
mod sessions;
mod sockets;
mod stuck;
mod table;
mod tokens;
mod watch;
mod watch_check;
mod watch_ends;

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::{Server, Stream};
use crate::support::{TestEnv, wait_until};

/// A server of this API.
pub struct Api {
    pub env: TestEnv,
    pub server: Server,
}

/// An answer with JSON.
#[derive(Debug)]
pub struct Told {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Api {
    #[track_caller]
    pub fn start() -> Api {
        Api::with(&[])
    }

    #[track_caller]
    pub fn with(words: &[&str]) -> Api {
        let env = TestEnv::new();
        let server = serve(&env, words);
        Api { env, server }
    }

    /// Ends the server with SIGKILL, and starts another one.
    pub fn replace_server(&mut self) {
        self.server.running.signal(rustix::process::Signal::KILL);
        wait_until("the server is gone", || self.server.try_connect().is_err());
        let fresh = serve(&self.env, &[]);
        std::mem::replace(&mut self.server, fresh).running.finish().with_code(137);
    }

    /// The path of a file that commands can use.
    pub fn path(&self, name: &str) -> String {
        self.env.path("work").join(name).display().to_string()
    }

    /// Sends a request, and returns the stream from which its answer is read.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> BufReader<Box<dyn Stream>> {
        let mut stream = self.server.connect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        BufReader::new(stream)
    }

    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Told {
        Told::read(&mut self.send(method, path, headers, body))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Told {
        self.ask("GET", path, "", "")
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Told {
        self.ask("DELETE", path, "", "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Told {
        self.ask("POST", path, "", &body.to_string())
    }

    /// Runs a command in a session.
    #[track_caller]
    pub fn run(&self, session: &str, command: &str) -> Told {
        self.post("/api/execute", &json!({ "command": command, "sessionId": session }))
    }

    /// Runs a command that must succeed, and returns its standard output.
    #[track_caller]
    pub fn out(&self, session: &str, command: &str) -> String {
        let told = self.run(session, command).ok();
        assert_eq!(told["exitCode"], 0, "{told}");
        told["stdout"].as_str().unwrap().to_owned()
    }

    /// Starts a process, and returns its pid.
    #[track_caller]
    pub fn process(&self, session: &str, id: &str, command: &str) -> i32 {
        let body = json!({ "command": command, "sessionId": session, "processId": id });
        let told = self.post("/api/process/start", &body).ok();
        assert_eq!(told["processId"], id);
        pid(&told["pid"])
    }

    /// The status and the code of a process.
    #[track_caller]
    pub fn status(&self, id: &str) -> (String, Option<i64>) {
        let told = self.get(&format!("/api/process/{id}")).ok();
        let process = &told["process"];
        (process["status"].as_str().unwrap().to_owned(), process["exitCode"].as_i64())
    }

    /// Opens a stream of events.
    #[track_caller]
    pub fn events(&self, method: &str, path: &str, body: &Value) -> Events {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let mut answer = self.send(method, path, "", &text);
        let (status, head) = read_head(&mut answer);
        assert_eq!(status, 200, "{:?}", read_body(&mut answer, &head));
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        Events { answer, text: String::new(), is_timed: true }
    }

    /// Follows a process.
    #[track_caller]
    pub fn follow(&self, id: &str) -> Events {
        self.events("GET", &format!("/api/process/{id}/stream"), &Value::Null)
    }
}

#[track_caller]
fn serve(env: &TestEnv, words: &[&str]) -> Server {
    let words: Vec<&str> = ["--api", "cloudflare"].iter().chain(words).copied().collect();
    Server::start(env, &words)
}

impl Told {
    /// Reads a whole answer.
    #[track_caller]
    pub fn read(answer: &mut BufReader<Box<dyn Stream>>) -> Told {
        let (status, head) = read_head(answer);
        let body = read_body(answer, &head).unwrap_or_else(|body| panic!("cut off: {body:?}"));
        Told { status, head, body }
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body of a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        let body = self.json();
        assert_eq!(self.status, 200, "{body}");
        assert!(body["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{body}");
        body
    }

    /// The body of an error, which must have this code and status.
    #[track_caller]
    pub fn fails(&self, status: u16, code: &str) -> Value {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{body}");
        assert_eq!(body["httpStatus"], status, "{body}");
        assert!(body["context"].is_object() && body["timestamp"].is_string(), "{body}");
        assert!(!body["message"].as_str().unwrap().is_empty());
        body
    }
}

/// A stream of events.
pub struct Events {
    answer: BufReader<Box<dyn Stream>>,
    text: String,
    /// Whether each event has its time.
    is_timed: bool,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    #[track_caller]
    pub fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event: Value =
                    serde_json::from_str(event.strip_prefix("data: ").expect("an event")).unwrap();
                assert_eq!(event["timestamp"].is_string(), self.is_timed, "{event}");
                self.text = rest.to_owned();
                return Some(event);
            }
            let chunk = read_chunk(&mut self.answer)?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// All further events.
    #[track_caller]
    pub fn rest(mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Waits for output that contains a text.
    #[track_caller]
    pub fn await_output(&mut self, wanted: &str) {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            let event = self.next().unwrap_or_else(|| panic!("no {wanted:?} in {seen:?}"));
            seen.push_str(event["data"].as_str().unwrap_or_default());
        }
    }
}

/// The joined output of one kind.
pub fn output(events: &[Value], kind: &str) -> String {
    let data =
        events.iter().filter(|event| event["type"] == kind).map(|event| event["data"].as_str().unwrap());
    data.collect()
}

pub fn pid(value: &Value) -> i32 {
    i32::try_from(value.as_i64().unwrap_or_else(|| panic!("no pid: {value}"))).unwrap()
}

/// Tells whether a process exists and is no zombie.
pub fn alive(pid: i32) -> bool {
    penfold_testkit::proc::stat(pid).is_some_and(|stat| !stat.is_dead())
}

/// Waits for a pid in a file.
#[track_caller]
pub fn pid_in(path: &str) -> i32 {
    let read = || std::fs::read_to_string(Path::new(path)).ok()?.trim().parse().ok();
    wait_until(&format!("{path} has a pid"), || read().is_some());
    read().unwrap()
}

#[track_caller]
pub fn read_head(answer: &mut impl std::io::BufRead) -> (u16, String) {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(answer.read_line(&mut line).unwrap(), 0, "no answer: {head}");
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    (head.split_whitespace().nth(1).unwrap().parse().unwrap(), head.to_lowercase())
}

/// Reads a body; what came of it if it breaks off.
fn read_body(answer: &mut BufReader<Box<dyn Stream>>, head: &str) -> Result<Vec<u8>, Vec<u8>> {
    let mut body = Vec::new();
    if !head.contains("transfer-encoding: chunked") {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        answer.read_to_end(&mut body).unwrap();
        return if body.len() >= length { Ok(body) } else { Err(body) };
    }
    loop {
        let mut line = String::new();
        if answer.read_line(&mut line).unwrap_or(0) == 0 {
            return Err(body);
        }
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        if answer.read_exact(&mut chunk).is_err() {
            return Err(body);
        }
        body.extend_from_slice(&chunk[..length]);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// Reads one chunk; `None` at the end.
pub fn read_chunk(answer: &mut BufReader<Box<dyn Stream>>) -> Option<Vec<u8>> {
    let mut line = String::new();
    answer.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    answer.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk).filter(|chunk| !chunk.is_empty())
}
