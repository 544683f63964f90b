//! Sandboxes of the E2B API.

use serde_json::{Value, json};

use super::Scene;
use crate::serve::cloudflare::{Told, alive, pid_in};
use crate::serve::e2b::{Guest, frame};

const JSON: &str = "content-type: application/json\r\n";

fn ask(scene: &Scene, method: &str, path: &str, body: &Value) -> Told {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    scene.api.ask(method, path, JSON, &text)
}

fn create(scene: &Scene) -> Guest {
    let told = ask(scene, "POST", "/v2/sandboxes", &json!({ "templateID": "base", "timeout": 600 }));
    assert_eq!(told.status, 201);
    let text = |name: &str| told.json()[name].as_str().map(str::to_owned);
    Guest { id: text("sandboxID").unwrap(), token: text("envdAccessToken") }
}

fn call(scene: &Scene, guest: &Guest, method: &str, body: &Value) -> (u16, Value) {
    let told = scene.api.ask("POST", method, &format!("{JSON}{}", guest.headers()), &body.to_string());
    (told.status, told.json())
}

/// Asks for a command, whose client gets no answer.
fn start(scene: &mut Scene, guest: &Guest) {
    let script = "setsid sleep 1000 & echo $! > daemon; exec sleep 1000";
    let message = frame(
        &json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] }, "tag": "t", "stdin": false }),
    );
    let headers = format!("content-type: application/connect+json\r\n{}", guest.headers());
    let answer = scene.crash(|scene| scene.send("POST", "/process.Process/Start", &headers, &message));
    assert!(answer.is_empty());
}

fn running(scene: &Scene, guest: &Guest) -> usize {
    let (status, listed) = call(scene, guest, "/process.Process/List", &json!({}));
    assert_eq!(status, 200, "{listed}");
    listed["processes"].as_array().unwrap().len()
}

pub(super) fn a_command_was_not_started(scene: &mut Scene) {
    let guest = create(scene);
    start(scene, &guest);
    assert_eq!(running(scene, &guest), 0);
}

pub(super) fn a_command_was_started(scene: &mut Scene) {
    let guest = create(scene);
    start(scene, &guest);
    assert_eq!(running(scene, &guest), 1);
    let listed = scene.sandboxes(false);
    let scratch = listed.iter().find(|one| one["id"] == *guest.id).unwrap()["scratch"].clone();
    let inside = pid_in(&format!("{}/daemon", scratch.as_str().unwrap()));
    assert!(inside > 0);
    let kill = json!({ "process": { "tag": "t" }, "signal": "SIGNAL_SIGKILL" });
    assert_eq!(call(scene, &guest, "/process.Process/SendSignal", &kill).0, 200);
    assert_eq!(running(scene, &guest), 0);
}

fn state(scene: &Scene, guest: &Guest) -> (Value, bool) {
    let told = ask(scene, "GET", &format!("/sandboxes/{}", guest.id), &Value::Null).json();
    let listed = scene.sandboxes(false);
    let one = listed.iter().find(|one| one["id"] == *guest.id).unwrap();
    (told["state"].clone(), !one["expires_at_ms"].is_null())
}

/// Whatever the crash has left: a sandbox that ends some time, and can go on.
fn goes_on(scene: &Scene, guest: &Guest) {
    let connect = format!("/sandboxes/{}/connect", guest.id);
    assert_eq!(ask(scene, "POST", &connect, &json!({ "timeout": 60 })).status, 201);
    assert_eq!(state(scene, guest), (json!("running"), true));
    assert_eq!(running(scene, guest), 0);
}

pub(super) fn a_sandbox_was_paused(scene: &mut Scene) {
    let guest = create(scene);
    let path = format!("/sandboxes/{}/pause", guest.id);
    let answer = scene.crash(|scene| scene.send("POST", &path, JSON, b"{}"));
    assert!(answer.is_empty());
    assert_eq!(state(scene, &guest), (json!("paused"), true));
    goes_on(scene, &guest);
}

pub(super) fn a_sandbox_is_still_paused(scene: &mut Scene) {
    let guest = create(scene);
    let path = |act: &str| format!("/sandboxes/{}/{act}", guest.id);
    assert_eq!(ask(scene, "POST", &path("pause"), &json!({})).status, 204);
    assert_eq!(state(scene, &guest), (json!("paused"), false));
    let answer = scene.crash(|scene| scene.send("POST", &path("resume"), JSON, b"{}"));
    assert!(answer.is_empty());
    assert_eq!(state(scene, &guest), (json!("paused"), true));
    goes_on(scene, &guest);
}

pub(super) fn a_sandbox_was_deleted(scene: &mut Scene) {
    let guest = create(scene);
    let leader =
        scene.sandboxes(false).iter().find(|one| one["id"] == *guest.id).unwrap()["leader"]["pid"].clone();
    let leader = i32::try_from(leader.as_i64().unwrap()).unwrap();
    assert!(alive(leader));
    let path = format!("/sandboxes/{}", guest.id);
    let answer = scene.crash(|scene| scene.send("DELETE", &path, "", b""));
    assert!(answer.is_empty());
    assert!(!alive(leader));
    assert_eq!(ask(scene, "GET", &path, &Value::Null).status, 404);
}
