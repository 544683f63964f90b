//! Who reaches a sandbox.

use serde_json::{Value, json};

use super::{Api, Told, read_head, running};
use crate::serve::Server;
use crate::support::{TestEnv, wait_until};

const ALICE: &str = "e2b_00000000000000000000000000000000000000aa";
const BOB: &str = "e2b_00000000000000000000000000000000000000bb";

/// A server on a port, with two tenants.
fn tenants() -> Api {
    let env = TestEnv::new();
    let path = env.path("work/tokens");
    std::fs::write(&path, format!("alice {ALICE}\nbob {BOB}\n")).unwrap();
    let server = Server::start_tcp(&env, &["--api", "e2b", "--token-file", path.to_str().unwrap()]);
    Api { env, server }
}

fn ask(api: &Api, key: &str, method: &str, path: &str, body: &Value) -> Told {
    let headers = format!("content-type: application/json\r\nx-api-key: {key}\r\n");
    Told::read(&mut api.send(method, path, &headers, body.to_string().as_bytes()))
}

/// spec: 36.7
#[test]
fn each_key_reaches_the_sandboxes_of_its_tenant() {
    let api = tenants();
    assert_eq!(api.ask("GET", "/v2/sandboxes", &Value::Null).status, 401);
    assert_eq!(ask(&api, "e2b_00", "GET", "/v2/sandboxes", &json!({})).status, 401);
    let made = ask(&api, ALICE, "POST", "/v2/sandboxes", &json!({ "templateID": "base" })).json();
    let id = made["sandboxID"].as_str().unwrap();
    let count =
        |key: &str| ask(&api, key, "GET", "/v2/sandboxes", &json!({})).json().as_array().unwrap().len();
    assert_eq!((count(ALICE), count(BOB)), (1, 0));
    for (method, path) in [
        ("GET", format!("/sandboxes/{id}")),
        ("DELETE", format!("/sandboxes/{id}")),
        ("POST", format!("/sandboxes/{id}/timeout")),
        ("POST", format!("/sandboxes/{id}/pause")),
        ("POST", format!("/v2/sandboxes/{id}/connect")),
        ("GET", format!("/sandboxes/{id}/metrics")),
        ("GET", format!("/sandboxes/{id}/logs")),
    ] {
        assert_eq!(ask(&api, BOB, method, &path, &json!({ "timeout": 5 })).status, 404, "{method} {path}");
    }
    assert_eq!(ask(&api, ALICE, "DELETE", &format!("/sandboxes/{id}"), &json!({})).status, 204);
}

/// spec: 36.7
#[test]
fn the_data_plane_of_a_sandbox_needs_its_token() {
    let api = tenants();
    let make = || {
        let made = ask(&api, ALICE, "POST", "/v2/sandboxes", &json!({ "templateID": "base" })).json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("sandboxID"), text("envdAccessToken"))
    };
    let ((id, token), (_, other)) = (make(), make());
    let list = |headers: &str| {
        let headers = format!("content-type: application/json\r\ne2b-sandbox-id: {id}\r\n{headers}");
        Told::read(&mut api.send("POST", "/process.Process/List", &headers, b"{}")).status
    };
    assert_eq!(list(&format!("x-access-token: {token}\r\n")), 200);
    let wrong = [
        String::new(),
        format!("x-access-token: {other}\r\n"),
        format!("x-access-token: {token}x\r\n"),
        "x-access-token: \r\n".to_owned(),
        // The keys of the control plane are none of the data plane.
        format!("x-api-key: {ALICE}\r\n"),
        format!("x-penfold-token: {ALICE}\r\n"),
        format!("authorization: Bearer {token}\r\n"),
    ];
    for headers in wrong {
        assert_eq!(list(&headers), 401, "{headers}");
    }
    // Whether it runs is no secret.
    let health = read_head(&mut api.send("GET", "/health", &format!("e2b-sandbox-id: {id}\r\n"), b""));
    assert_eq!(health.0, 204);
    // A sandbox that does not exist, and a word that is no id.
    for id in ["000000000000", "../../x", "%00", ""] {
        let told = Told::read(&mut api.send("GET", "/health", &format!("e2b-sandbox-id: {id}\r\n"), b""));
        assert_eq!(
            (told.status, &told.json()["message"]),
            (502, &json!("The sandbox was not found")),
            "{id}"
        );
    }
}

/// spec: 36.7
#[test]
fn a_header_leads_to_no_sandbox_of_another_kind() {
    let api = Api::start();
    let plain = api.env.detach(["sleep", "1023"]);
    let id = &plain.id;
    let told = Told::read(&mut api.send("GET", "/health", &format!("e2b-sandbox-id: {id}\r\n"), b""));
    assert_eq!(told.status, 502);
    assert_eq!(api.ask("DELETE", &format!("/sandboxes/{id}"), &Value::Null).status, 404);
    assert_eq!(running("sleep 1023"), 1);
}

/// spec: 36.7
#[test]
fn web_pages_reach_nothing_without_a_token() {
    let env = TestEnv::new();
    let server = Server::start_tcp(&env, &["--api", "e2b", "--insecure-no-token"]);
    let api = Api { env, server };
    let open = api.ask("POST", "/sandboxes", &json!({ "templateID": "base", "secure": false })).json();
    assert!(open["envdAccessToken"].is_null());
    let id = open["sandboxID"].as_str().unwrap();
    let list = |headers: &str| {
        let headers = format!("content-type: application/json\r\ne2b-sandbox-id: {id}\r\n{headers}");
        Told::read(&mut api.send("POST", "/process.Process/List", &headers, b"{}")).status
    };
    assert_eq!(list(""), 200);
    assert_eq!(list("origin: https://example.org\r\n"), 403);
    assert_eq!(list("host: rebound.example.org\r\n"), 403);
}

/// spec: 36.7
#[test]
fn the_access_token_of_a_tenant_that_is_removed_is_good_for_nothing() {
    let api = tenants();
    let made = ask(&api, BOB, "POST", "/v2/sandboxes", &json!({ "templateID": "base" })).json();
    let (id, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    let headers =
        format!("content-type: application/json\r\ne2b-sandbox-id: {id}\r\nx-access-token: {token}\r\n");
    let list = || Told::read(&mut api.send("POST", "/process.Process/List", &headers, b"{}")).status;
    assert_eq!(list(), 200);
    std::fs::write(api.env.path("work/tokens"), format!("alice {ALICE}\ncarol {BOB}0\n")).unwrap();
    api.server.running.signal(rustix::process::Signal::HUP);
    wait_until("the token is refused", || list() == 502);
}
