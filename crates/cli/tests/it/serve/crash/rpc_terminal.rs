//! Terminals of clients from 0.13 on, over `/rpc`.

use serde_json::{Value, json};

use super::{Scene, over_socket};
use crate::serve::cloudflare::{alive, pid_in};
use crate::serve::websocket::WebSocket;

/// The messages of a client from 0.13 on that calls this method.
fn rpc_call(method: &[&str], arguments: &Value) -> [Value; 3] {
    let activation = json!(["push", ["pipeline", 0, ["utils", "activateControlSession"], ["x"]]]);
    [activation, json!(["push", ["pipeline", 0, method, arguments]]), json!(["pull", 2])]
}

/// The terminals of clients from 0.13 on.
fn terminals(scene: &Scene) -> Vec<Value> {
    let mut socket = WebSocket::open(scene.server(), "/rpc");
    for message in &rpc_call(&["terminals", "list"], &json!([])) {
        socket.json(message);
    }
    let answer = socket.value();
    assert_eq!((&answer[0], &answer[1]), (&json!("resolve"), &json!(2)), "{answer}");
    // An array is in an array.
    answer[2][0].as_array().unwrap().clone()
}

/// Starts a terminal whose client gets no answer; the next server has it. Returns the pids of its tree.
fn start_terminal_over_rpc(scene: &mut Scene) -> [i32; 2] {
    let (up, daemon) = (scene.path_of("up"), scene.path_of("daemon"));
    let script = format!("setsid sleep 1000 & echo $! > {daemon}; echo $$ > {up}; exec sleep 1000");
    let words = json!([["sh", "-c", script]]);
    over_socket(scene, "/rpc", &rpc_call(&["terminals", "create"], &json!([{ "command": words }])));
    let tree = [pid_in(&up), pid_in(&daemon)];
    assert!(tree.into_iter().all(alive));
    let listed = terminals(scene);
    let seen: Vec<_> = listed.iter().map(|one| (&one["status"], &one["pid"])).collect();
    assert_eq!(seen, [(&json!("running"), &json!(tree[0]))], "{listed:?}");
    tree
}

/// The terminal goes on, and ends with its session.
pub(super) fn was_started(scene: &mut Scene) {
    let tree = start_terminal_over_rpc(scene);
    scene.api.post("/api/session/delete", &json!({ "sessionId": "default" })).ok();
    assert!(!tree.into_iter().any(alive));
    assert_eq!(terminals(scene), Vec::<Value>::new());
}

/// The same by the command line.
pub(super) fn was_started_and_removed(scene: &mut Scene) {
    let tree = start_terminal_over_rpc(scene);
    let listed = scene.native("/v1/sandboxes?label=penfold.session=default");
    let id = listed["sandboxes"][0]["id"].as_str().unwrap();
    scene.api.env.call(["rm", "-f", id]).with_code(0);
    assert!(!tree.into_iter().any(alive));
    assert_eq!(terminals(scene), Vec::<Value>::new());
}
