//! The ports of a sandbox.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use serde_json::json;

use super::{Api, Guest, Told, read_head};
use crate::support::wait_until;

/// Answers each connection with its request, and echoes after an upgrade.
const SERVER: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 8123))
print("up", flush=True)
def serve(link):
    head = b""
    while b"\r\n\r\n" not in head:
        head += link.recv(4096)
    if b"upgrade: own" in head.lower():
        link.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n")
        while part := link.recv(4096):
            link.sendall(part.upper())
    else:
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Own: 1\r\n\r\n" % len(head) + head)
    link.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

fn served() -> (Api, Guest, super::Frames) {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let message = json!({ "process": { "cmd": "python3", "args": ["-c", SERVER] }, "stdin": false });
    let mut server = api.stream(&guest, "/process.Process/Start", "", &message);
    server.await_output("up");
    (api, guest, server)
}

/// spec: 36.8
#[test]
fn requests_are_passed_to_a_port_inside() {
    let (api, guest, _server) = served();
    let to = |port: u16| format!("e2b-sandbox-id: {}\r\ne2b-sandbox-port: {port}\r\n", guest.id);
    let headers = format!("{}x-access-token: secret\r\ncookie: a=b\r\n", to(8123));
    let told = Told::read(&mut api.send("PUT", "/some/path?query=1", &headers, b"body"));
    let seen = String::from_utf8(told.body).unwrap().to_lowercase();
    assert_eq!(told.status, 200);
    assert!(told.head.contains("x-own: 1"), "{}", told.head);
    assert!(seen.starts_with("put /some/path?query=1 http/1.1") && seen.contains("cookie: a=b"), "{seen}");
    assert!(!seen.contains("secret"), "{seen}");
    let via = seen.lines().find(|line| line.starts_with("via: 1.1 penfold-")).expect("its sign");
    let headers = format!("{}{via}\r\n", to(8123));
    assert_eq!(Told::read(&mut api.send("GET", "/", &headers, b"")).status, 508);
    let headers = format!("e2b-sandbox-id: {}\r\ne2b-sandbox-port: http\r\n", guest.id);
    assert_eq!(Told::read(&mut api.send("GET", "/", &headers, b"")).status, 400);
    // The same by the name of the host.
    let by_host =
        Told::read(&mut api.send("GET", "/", &format!("host: 8123-{}.example.org\r\n", guest.id), b""));
    assert!(by_host.status == 200 && String::from_utf8_lossy(&by_host.body).contains("8123-"));
    let closed = Told::read(&mut api.send("GET", "/", &to(8124), b""));
    assert_eq!(
        (closed.status, &closed.json()["message"]),
        (502, &json!("The sandbox is running but port is not open"))
    );
    // Nothing of the host is reached: the port is that of the sandbox's own network.
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    assert_eq!(Told::read(&mut api.send("GET", "/", &to(port), b"")).status, 502);
}

/// spec: 36.8
#[test]
fn upgraded_connections_go_both_ways() {
    let (api, guest, _server) = served();
    let mut stream = api.server.connect();
    let to = format!("e2b-sandbox-id: {}\r\ne2b-sandbox-port: 8123\r\n", guest.id);
    write!(stream, "GET / HTTP/1.1\r\nhost: localhost\r\n{to}connection: upgrade\r\nupgrade: own\r\n\r\n")
        .unwrap();
    let mut stream = BufReader::new(stream);
    let (status, head) = read_head(&mut stream);
    assert!(status == 101 && head.contains("upgrade: own"), "{head}");
    for round in 0..3 {
        writeln!(stream.get_mut(), "hello {round}").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, format!("HELLO {round}\n"));
    }
    // It ends with the sandbox.
    api.delete(&guest);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    wait_until("no python is left", || api.env.find("python3").is_empty());
}
