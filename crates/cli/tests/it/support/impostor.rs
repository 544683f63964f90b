//! Somebody who listens where a supervisor should.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;

use rustix::net::{Shutdown, SocketAddrUnix, accept, bind, listen, shutdown};
use serde_json::{Value, json};

use super::ControlClient;
use super::control_client::endpoint;

/// Listens in the place of a sandbox's supervisor and says the same to all who come, until it is dropped.
pub struct Impostor {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// Takes over the control socket of a record. Says `words`, one after the other; hangs up then if told to.
    pub fn new(record: &Path, words: Vec<Value>, hangs_up: bool) -> Impostor {
        Impostor::listen(record, hangs_up, move |client| {
            for word in &words {
                client.say(&word.to_string());
            }
        })
    }

    /// Takes over the control socket of a record. Greets, answers the first request with `words`, and hangs up.
    pub fn answering(record: &Path, hello: Value, words: Vec<Value>) -> Impostor {
        Impostor::listen(record, true, move |client| {
            client.say(&hello.to_string());
            if client.hear().is_some() {
                for word in &words {
                    client.say(&word.to_string());
                }
            }
        })
    }

    fn listen(record: &Path, hangs_up: bool, talk: impl Fn(&ControlClient) + Send + 'static) -> Impostor {
        let path = record.join("control.sock");
        let _ = std::fs::remove_file(&path);
        let socket = endpoint();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 64).unwrap();
        let ours = socket.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok(client) = accept(&ours) {
                let client = ControlClient::of(client);
                talk(&client);
                if !hangs_up {
                    kept.push(client);
                }
            }
        });
        Impostor { socket, thread: Some(thread) }
    }

    /// The greeting of a supervisor.
    pub fn hello(id: &str) -> Value {
        json!({"hello": {"protocol": 1, "id": id}})
    }

    /// The word of a supervisor that has seen the end.
    pub fn all_gone(id: &str) -> Value {
        json!({"outcome": {
            "report": {
                "schema": 1, "id": id, "command": [], "level": "cgroup", "cause": "kill", "exit": {"signal": 9},
                "started_at_ms": 1, "duration_ms": 1, "ended": [], "survivors": [], "steps": [], "verified": true,
                "took_us": 1, "cpu_us": 1, "peak_memory_bytes": 1,
            },
            "totals": {"ended": 0, "term": 0, "kill": 0, "strays": 0},
            "teller": 1,
        }})
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        // Ends the wait for clients, and with it the thread.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
