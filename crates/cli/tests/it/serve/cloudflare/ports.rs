//! `/api/port-watch`, as `waitForPort` of the client uses it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Api;
use crate::support::{DEADLINE, wait_until};

/// A port on which nobody listens, and that is taken by nobody else meanwhile.
fn port() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Answers each request with the next of these statuses, the last one again and again.
fn answer(listener: TcpListener, statuses: &'static [u16]) {
    std::thread::spawn(move || {
        let mut statuses = statuses.iter();
        let mut status = 0;
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            status = statuses.next().copied().unwrap_or(status);
            let _ = stream.set_read_timeout(Some(DEADLINE));
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
}

/// The events of a watch, without their times.
fn events(api: &Api, body: &Value) -> Vec<Value> {
    let plain = |mut event: Value| {
        event.as_object_mut().unwrap().remove("timestamp");
        event
    };
    api.events("POST", "/api/port-watch", body).rest().into_iter().map(plain).collect()
}

/// spec: 15.18
#[test]
fn a_port_is_ready_once_it_answers_as_is_asked_for() {
    let api = Api::start();
    let (listener, port) = port();
    answer(listener, &[500, 404, 204]);
    let http = events(&api, &json!({ "port": port, "mode": "http", "path": "health", "interval": 1 }));
    let watching = json!({ "type": "watching", "port": port });
    assert_eq!(http, [watching.clone(), json!({ "type": "ready", "port": port, "statusCode": 204 })]);
    let tcp = events(&api, &json!({ "port": port, "mode": "tcp" }));
    assert_eq!(tcp, [watching.clone(), json!({ "type": "ready", "port": port })]);
    let narrow = json!({ "port": port, "statusMin": 204, "statusMax": 204 });
    assert_eq!(events(&api, &narrow)[1]["statusCode"], 204);
    for (body, field) in [
        (json!({ "port": 0 }), "port"),
        (json!({ "port": port, "path": "a b" }), "path"),
        (json!({ "port": 65536 }), "65536"),
        (json!({ "port": port, "mode": "udp" }), "mode"),
        (json!({ "port": port, "statusMin": 500, "statusMax": 200 }), "statusMax"),
        (json!({}), "port"),
    ] {
        let error = api.post("/api/port-watch", &body).fails(400, "VALIDATION_FAILED");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
}

/// spec: 15.18
#[test]
fn a_watch_ends_with_its_process_its_client_and_its_server() {
    let api = Api::start();
    let (closed, port) = port();
    // Nobody listens there any more.
    drop(closed);
    api.process("s", "ends", "sleep 0.1; exit 7");
    let last = events(&api, &json!({ "port": port, "processId": "ends", "interval": 1 })).pop().unwrap();
    assert_eq!(last, json!({ "type": "process_exited", "port": port, "exitCode": 7 }));
    let last = events(&api, &json!({ "port": port, "processId": "none" })).pop().unwrap();
    assert_eq!(last, json!({ "type": "error", "port": port, "error": "Process not found" }));
    api.process("s", "p", "sleep 600");
    // A client that goes away during a long pause leaves no thread.
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", api.server.running.pid())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "body").count()
    };
    let watch = json!({ "port": port, "processId": "p", "interval": 10_000 });
    let mut watching = api.events("POST", "/api/port-watch", &watch);
    assert_eq!(watching.next().unwrap()["type"], "watching");
    assert_eq!(threads(), 1);
    drop(watching);
    let begun = Instant::now();
    wait_until("the thread has ended", || threads() == 0);
    assert!(begun.elapsed() < Duration::from_secs(5), "not only after the pause: {:?}", begun.elapsed());
    let watch = json!({ "port": port, "processId": "p", "interval": 100 });
    let mut watching = api.events("POST", "/api/port-watch", &watch);
    assert_eq!(watching.next().unwrap()["type"], "watching");
    api.server.running.signal(Signal::TERM);
    let last = watching.rest().pop().unwrap();
    assert_eq!(last["type"], "error");
    assert!(last["error"].as_str().unwrap().contains("the server is ending"), "{last}");
}

/// spec: 15.18
#[test]
fn a_server_that_is_started_as_a_process_is_waited_for() {
    let api = Api::start();
    let (listener, port) = port();
    drop(listener);
    let script =
        format!("import socket; s = socket.create_server(('127.0.0.1', {port})); s.accept(); s.accept()");
    api.process("s", "web", &format!("sleep 0.2; exec python3 -c \"{script}\""));
    let body = json!({ "port": port, "mode": "tcp", "processId": "web", "interval": 1 });
    let last = events(&api, &body).pop().unwrap();
    assert_eq!(last, json!({ "type": "ready", "port": port }));
    assert!(TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(5)).is_ok());
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    assert!(TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(5)).is_err());
}

#[test]
fn no_port_gets_a_public_address_and_the_list_of_them_is_empty() {
    let api = Api::start();
    let error = api.post("/api/expose-port", &json!({ "port": 8080 })).fails(501, "PORT_OPERATION_ERROR");
    assert!(error["message"].as_str().unwrap().contains("no public addresses"), "{error}");
    let told = api.get("/api/exposed-ports?session=s").ok();
    assert_eq!((&told["ports"], &told["count"]), (&json!([]), &json!(0)));
    let error = api.delete("/api/exposed-ports/8080?session=s").fails(404, "PORT_NOT_EXPOSED");
    assert_eq!(error["context"]["port"], "8080");
}
