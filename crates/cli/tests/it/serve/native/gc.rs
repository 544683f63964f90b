//! `POST /v1/gc` removes what `penfold gc` removes.

use serde_json::{Value, json};

use super::{get, post, script, start};

fn outcomes(collection: &Value) -> Vec<(String, String)> {
    let text = |leak: &Value, field: &str| leak[field].as_str().unwrap().to_owned();
    let leaks = collection["leaks"].as_array().unwrap();
    leaks.iter().map(|leak| (text(leak, "kind"), text(leak, "outcome"))).collect()
}

/// spec: 5.9, 10.1
#[test]
fn a_removed_leak_is_an_event_and_a_young_record_is_kept() {
    let (env, server) = start();
    let id = script(&server, "exit 0");
    get(&server, &format!("/v1/sandboxes/{id}/wait")).with(200);
    let unfinished = env.root().join("sandboxes").join(&id).join("state.json.new");
    std::fs::write(&unfinished, "{").unwrap();
    let collected = post(&server, "/v1/gc", &json!({ "sandboxes": [id] })).with(200).json();
    let expected = [("file", "removed"), ("ended", "kept")].map(|(kind, to)| (kind.into(), to.into()));
    assert_eq!(outcomes(&collected), expected, "{collected}");
    assert!(std::fs::symlink_metadata(&unfinished).is_err());
    let events = env.call(["events", "--no-follow", "--json", "-f", "kind=leak"]).with_code(0).out();
    let event: Value = serde_json::from_str(events.trim()).unwrap();
    assert_eq!((&event["id"], &event["outcome"]), (&json!(id), &json!("removed")), "{event}");
}

/// spec: 5.6, 5.9
#[test]
fn a_name_means_one_sandbox() {
    let (_env, server) = start();
    let ids = [(); 2].map(|()| {
        let made = json!({ "command": ["true"], "name": "web" });
        let id = post(&server, "/v1/sandboxes", &made).with(201).json()["id"].as_str().unwrap().to_owned();
        get(&server, &format!("/v1/sandboxes/{id}/wait")).with(200);
        id
    });
    let request = json!({ "sandboxes": ["web"], "older_than_ms": 0 });
    let collected = post(&server, "/v1/gc", &request).with(200).json();
    assert_eq!(outcomes(&collected), [("ended".to_owned(), "removed".to_owned())], "{collected}");
    let left = ids.iter().filter(|id| get(&server, &format!("/v1/sandboxes/{id}")).status == 200);
    assert_eq!(left.count(), 1);
}
