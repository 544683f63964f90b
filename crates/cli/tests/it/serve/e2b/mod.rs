//! The E2B API, by its wire.

mod access;
mod control;
mod envd;
mod files;
mod lingering;
mod ports;
mod process;
mod protobuf;

use std::io::{BufReader, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_testkit::proc::{Stat, command_line};
use serde_json::{Value, json};

use super::cloudflare::{Told, read_chunk, read_head};
use super::{Server, Stream};
use crate::support::{TestEnv, wait_until};

/// A server of this API.
pub struct Api {
    pub env: TestEnv,
    pub server: Server,
}

/// A sandbox, with its access token.
#[derive(Debug, Clone)]
pub struct Guest {
    pub id: String,
    pub token: Option<String>,
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

    /// Sends a request, and returns the stream from which its answer is read.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> BufReader<Box<dyn Stream>> {
        let mut stream = self.server.connect();
        let length = body.len();
        let host = if headers.to_lowercase().contains("host:") { "" } else { "host: localhost\r\n" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}connection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        BufReader::new(stream)
    }

    /// Asks the control plane.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Told {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        Told::read(&mut self.send(method, path, "content-type: application/json\r\n", text.as_bytes()))
    }

    /// Creates a sandbox of the template `base`, with further fields.
    #[track_caller]
    pub fn create(&self, fields: &Value) -> Guest {
        let mut body = json!({ "templateID": "base" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let told = self.ask("POST", "/v2/sandboxes", &body);
        let json = told.json();
        assert_eq!(told.status, 201, "{json}");
        let token = json["envdAccessToken"].as_str().map(str::to_owned);
        Guest { id: json["sandboxID"].as_str().unwrap().to_owned(), token }
    }

    /// Ends a sandbox.
    #[track_caller]
    pub fn delete(&self, guest: &Guest) {
        let told = self.ask("DELETE", &format!("/sandboxes/{}", guest.id), &Value::Null);
        assert_eq!(told.status, 204, "{}", String::from_utf8_lossy(&told.body));
    }

    /// The status of one call of the data plane, and its JSON.
    #[track_caller]
    pub fn call(&self, guest: &Guest, method: &str, message: &Value) -> (u16, Value) {
        let headers = format!("content-type: application/json\r\n{}", guest.headers());
        let told = Told::read(&mut self.send("POST", method, &headers, message.to_string().as_bytes()));
        (told.status, told.json())
    }

    /// A call of the data plane that must succeed.
    #[track_caller]
    pub fn ok(&self, guest: &Guest, method: &str, message: &Value) -> Value {
        let (status, json) = self.call(guest, method, message);
        assert_eq!(status, 200, "{json}");
        json
    }

    /// A call of the data plane whose answer is a stream, with further headers.
    #[track_caller]
    pub fn stream(&self, guest: &Guest, method: &str, headers: &str, message: &Value) -> Frames {
        let headers = format!("content-type: application/connect+json\r\n{headers}{}", guest.headers());
        let mut answer = self.send("POST", method, &headers, &frame(message));
        let (status, head) = read_head(&mut answer);
        assert_eq!(status, 200, "{head}");
        Frames { answer, is_chunked: head.contains("transfer-encoding: chunked"), bytes: Vec::new() }
    }

    /// Starts a command of a shell.
    #[track_caller]
    pub fn start_command(&self, guest: &Guest, script: &str) -> Frames {
        self.start_with(guest, "", &json!({}), script)
    }

    /// The same with further headers, and fields of the message.
    #[track_caller]
    pub fn start_with(&self, guest: &Guest, headers: &str, fields: &Value, script: &str) -> Frames {
        let mut message = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] }, "stdin": false });
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.stream(guest, "/process.Process/Start", headers, &message)
    }

    /// Runs a command to its end, and returns its standard output.
    #[track_caller]
    pub fn out(&self, guest: &Guest, script: &str) -> String {
        let (said, end) = self.start_command(guest, script).finish();
        assert_eq!(end["exitCode"], 0, "{end} {said:?}");
        said.stdout
    }
}

/// The number of living processes with this command line. Each test has commands of its own.
pub fn running(command: &str) -> usize {
    let is_it = |stat: &&Stat| !stat.is_dead() && command_line(stat) == command;
    penfold_testkit::proc::all().iter().filter(is_it).count()
}

#[track_caller]
fn serve(env: &TestEnv, words: &[&str]) -> Server {
    let words: Vec<&str> = ["--api", "e2b"].iter().chain(words).copied().collect();
    Server::start(env, &words)
}

impl Guest {
    /// The headers that lead to the sandbox.
    pub fn headers(&self) -> String {
        let token = self.token.as_ref().map(|token| format!("x-access-token: {token}\r\n"));
        format!("e2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\n{}", self.id, token.unwrap_or_default())
    }
}

/// A message as a frame of a stream.
pub fn frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), text.as_bytes()].concat()
}

/// What a command has written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub stdout: String,
    pub stderr: String,
    pub pty: String,
}

impl Said {
    fn take(&mut self, data: &Value) {
        for (name, text) in
            [("stdout", &mut self.stdout), ("stderr", &mut self.stderr), ("pty", &mut self.pty)]
        {
            if let Some(data) = data[name].as_str() {
                text.push_str(&String::from_utf8_lossy(&STANDARD.decode(data).unwrap()));
            }
        }
    }
}

/// A stream of frames.
pub struct Frames {
    answer: BufReader<Box<dyn Stream>>,
    is_chunked: bool,
    bytes: Vec<u8>,
}

impl Frames {
    /// The next frame with its flags; `None` if the stream broke off.
    pub fn next(&mut self) -> Option<(u8, Value)> {
        loop {
            if let Some((&[flags, a, b, c, d], rest)) = self.bytes.split_first_chunk::<5>() {
                let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap();
                if rest.len() >= length {
                    let json = serde_json::from_slice(&rest[..length]).unwrap();
                    self.bytes.drain(..length + 5);
                    return Some((flags, json));
                }
            }
            if self.is_chunked {
                self.bytes.extend(read_chunk(&mut self.answer)?);
            } else {
                use std::io::Read as _;
                let before = self.bytes.len();
                let _ = self.answer.read_to_end(&mut self.bytes);
                if self.bytes.len() == before {
                    return None;
                }
            }
        }
    }

    /// The next event, which must be there.
    #[track_caller]
    pub fn event(&mut self) -> Value {
        let (flags, json) = self.next().expect("an event");
        assert_eq!(flags, 0, "{json}");
        json["event"].clone()
    }

    /// The pid of the first event.
    #[track_caller]
    pub fn pid(&mut self) -> u64 {
        let event = self.event();
        event["start"]["pid"].as_u64().unwrap_or_else(|| panic!("no start: {event}"))
    }

    /// Waits for output that contains a text.
    #[track_caller]
    pub fn await_output(&mut self, wanted: &str) {
        let mut said = Said::default();
        while ![&said.stdout, &said.stderr, &said.pty].iter().any(|text| text.contains(wanted)) {
            let event = self.event();
            assert!(event["end"].is_null(), "no {wanted:?} in {said:?}");
            said.take(&event["data"]);
        }
    }

    /// Reads to the end, which must be a whole one, and returns the output and the event of the end.
    #[track_caller]
    pub fn finish(self) -> (Said, Value) {
        let (said, end, last) = self.rest();
        assert_eq!(last, Some(json!({})), "{end}");
        (said, end)
    }

    /// Reads to the error that ends the stream.
    #[track_caller]
    pub fn error(self) -> Value {
        let (said, end, last) = self.rest();
        assert!(end.is_null(), "{end} {said:?}");
        last.expect("an end of the stream")["error"].clone()
    }

    /// Reads what comes: the output, the event of the end, and the last frame.
    #[track_caller]
    pub fn rest(mut self) -> (Said, Value, Option<Value>) {
        let (mut said, mut end) = (Said::default(), Value::Null);
        loop {
            match self.next() {
                Some((2, last)) => return (said, end, Some(last)),
                Some((_, json)) => {
                    said.take(&json["event"]["data"]);
                    if !json["event"]["end"].is_null() {
                        end = json["event"]["end"].clone();
                    }
                }
                None => return (said, end, None),
            }
        }
    }
}
