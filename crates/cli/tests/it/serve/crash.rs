//! SIGKILL of the server at each of its crash points. Bystanders go on. What the request asked for is whole or not there, or
//! its end is complete; the next server tells so, and everything that it lists can be ended, with nothing left.

mod cases;
mod e2b;
mod rpc_terminal;

use std::collections::BTreeSet;
use std::io::Read;

use penfold_harness::{Generated, Trial};
use penfold_testkit::LeakGuard;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::cloudflare::{Api, alive};
use super::native;
use super::websocket::{Frame, WebSocket};
use super::{Server, Stream};
use crate::state::crash::can_crash;
use crate::support::{Process, wait_until};

/// A test for each case.
pub const TESTS: Generated =
    Generated { list: generated, find: |name| generated().into_iter().find(|trial| trial.name() == name) };

const APIS: [&str; 2] = ["--api", "native,cloudflare,e2b"];

/// A request that comes by a crash point, and a look at what the next server says.
struct Case {
    point: &'static str,
    /// What the request asks for, where several requests come by the point.
    request: &'static str,
    run: fn(&mut Scene),
}

/// All crash points of the server; a test compares them with the sources.
pub fn points() -> impl Iterator<Item = &'static str> {
    let points: BTreeSet<_> = cases::CASES.iter().map(|case| case.point).collect();
    points.into_iter()
}

fn generated() -> Vec<Trial> {
    let trial = |case: &'static Case| {
        // spec: 15.1.1
        let name = format!("serve::crash::killed_at::{}_{}", case.point, case.request);
        Trial::test(name.replace(['-', ' '], "_").trim_end_matches('_').to_owned(), move || {
            if can_crash() {
                let guard = LeakGuard::new();
                let mut scene = Scene::start(case.point);
                (case.run)(&mut scene);
                scene.end();
                guard.check();
            }
            Ok(())
        })
    };
    cases::CASES.iter().map(trial).collect()
}

/// A server with bystanders: the session `s` with the process `p`, and a sandbox of the native API.
struct Scene {
    point: &'static str,
    api: Api,
    sandbox: String,
    process: i32,
    is_over: bool,
}

impl Scene {
    fn start(point: &'static str) -> Scene {
        let api = Api::with(&APIS);
        api.out("s", "cd /usr; A=1");
        let process = api.process("s", "p", "sleep 1000");
        let sandbox = native::script(&api.server, "exec sleep 600");
        Scene { point, api, sandbox, process, is_over: false }
    }

    fn server(&self) -> &Server {
        &self.api.server
    }

    /// The path of the bystander in the native API, and what follows.
    fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.sandbox)
    }

    fn native(&self, path: &str) -> Value {
        native::get(self.server(), path).with(200).json()
    }

    /// Sends a request of the native API, without reading the answer.
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Box<dyn Stream> {
        let mut stream = self.server().connect();
        native::send(&mut *stream, method, path, headers, body);
        stream
    }

    fn send_json(&self, path: &str, body: &Value) -> Box<dyn Stream> {
        self.send("POST", path, "", body.to_string().as_bytes())
    }

    /// Replaces the server by one that crashes at the point, sends a request to it, and replaces it when it has crashed.
    /// Returns what came of the answer.
    fn crash<S: Read>(&mut self, ask: impl FnOnce(&Scene) -> S) -> Vec<u8> {
        let point = self.point;
        self.server().running.signal(Signal::TERM);
        self.replace(0, Some(point));
        let mut stream = ask(self);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        self.replace(137, None);
        self.server().await_ready();
        let is_whole = answer.ends_with(b"0\r\n\r\n");
        assert!(!is_whole, "a whole answer: {}", String::from_utf8_lossy(&answer));
        answer
    }

    /// Waits for the end of the server with this code, and starts the next one.
    fn replace(&mut self, code: i32, point: Option<&str>) {
        self.server().running.process().await_end();
        let fresh = Server::start_with(&self.api.env, "api.sock", &APIS, |command| {
            command.envs(point.map(|point| ("PENFOLD_CRASH_AT", point)));
        });
        std::mem::replace(&mut self.api.server, fresh).running.finish().with_code(code);
    }

    /// The sessions of the Cloudflare API.
    fn sessions(&self) -> Value {
        self.api.get("/api/session/list").ok()["data"].clone()
    }

    /// The sandboxes that are listed.
    fn sandboxes(&self, all: bool) -> Vec<Value> {
        let mut sandboxes =
            self.native(&format!("/v1/sandboxes?all={all}"))["sandboxes"].as_array().cloned().unwrap();
        // Orphans of other tests are listed, too.
        sandboxes.retain(|one| one["claimed"] == true);
        sandboxes
    }

    fn path_of(&self, name: &str) -> String {
        self.api.path(name)
    }

    /// Nothing happened to the bystanders; everything that is listed can be ended, and then nothing is left.
    fn end(self) {
        assert_eq!(self.api.out("s", "echo $A; pwd"), "1\n/usr\n");
        assert_eq!(self.native(&self.path(""))["status"], "running");
        let status = self.api.status("p");
        let expected = if self.is_over { ("killed", Some(143)) } else { ("running", None) };
        assert_eq!((status.0.as_str(), status.1), expected);
        assert_ne!(alive(self.process), self.is_over);
        let killed = self.api.delete("/api/process/kill-all").ok();
        assert_eq!(killed["failed"], Value::Null, "{killed}");
        for id in self.sessions().as_array().unwrap() {
            self.api.post("/api/session/delete", &json!({ "sessionId": id })).ok();
        }
        for sandbox in self.sandboxes(true) {
            let id = sandbox["id"].as_str().unwrap();
            native::delete(self.server(), &format!("/v1/sandboxes/{id}")).with(200);
        }
        let left = || self.api.env.processes().iter().map(Process::command_line).collect::<Vec<_>>();
        wait_until("only the server is left", || self.api.env.left().is_empty() && left().len() == 1);
        let Scene { api: Api { env, server }, .. } = self;
        let said = server.end();
        assert!(!said.contains("panicked"), "{said}");
        env.assert_nothing_left();
    }
}

/// Sends messages over a socket, and waits for the end of the server.
fn over_socket(scene: &mut Scene, path: &str, messages: &[Value]) {
    let answer = scene.crash(|scene| {
        let mut socket = WebSocket::open(scene.server(), path);
        for message in messages {
            socket.json(message);
        }
        while socket.receive() != Frame::Gone {}
        std::io::empty()
    });
    assert!(answer.is_empty());
}
