//! The end of a server.

use std::io::Write as _;

use rustix::process::Signal;

use super::{Server, read_all};
use crate::support::{TestEnv, wait_until};

/// A request whose body is not complete: it occupies the server.
const HALF: &[u8] = b"POST /v1/none HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc";

/// spec: 15.5
#[test]
fn idle_connections_do_not_delay_the_end() {
    let env = TestEnv::new();
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(&env, &["--drain", "1h"]);
        let _idle = server.connect();
        let mut used = server.connect();
        used.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut buffer = [0_u8; 12];
        used.read_exact(&mut buffer).unwrap();
        server.running.signal(signal);
        server.running.finish().with_code(0);
    }
}

/// spec: 15.1
#[test]
fn sandboxes_go_on_without_the_server() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let sandbox = env.detach(["sleep", "600"]);
    server.await_ready();
    server.end();
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    let server = Server::start(&env, &[]);
    server.await_ready();
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
}

/// spec: 15.5
#[test]
fn a_second_signal_ends_the_server_at_once_and_a_deadline_does_too() {
    let env = TestEnv::new();
    for (drain, signals) in [("1h", 2), ("300ms", 1)] {
        let server = Server::start(&env, &["--drain", drain, "--api", "native"]);
        let mut stream = server.connect();
        // Half of a head: the connection is not idle.
        stream.write_all(&HALF[..20]).unwrap();
        let path = server.path().to_owned();
        server.running.signal(Signal::TERM);
        wait_until("the server does not listen any more", || !path.try_exists().unwrap());
        if signals > 1 {
            server.running.signal(Signal::TERM);
        }
        server.running.finish().with_code(0);
        assert!(!read_all(&mut *stream).contains("200"));
    }
}
