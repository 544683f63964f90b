//! `/api/watch/check`: whether anything has changed since a version.

use std::fs;

use serde_json::{Value, json};

use super::Api;

/// Asks whether anything has changed; returns status and version.
#[track_caller]
fn check(api: &Api, top: &str, since: Option<&str>) -> (String, String) {
    let told = told(api, top, since);
    let text = |field: &str| told[field].as_str().unwrap().to_owned();
    (text("status"), text("version"))
}

#[track_caller]
fn told(api: &Api, top: &str, since: Option<&str>) -> Value {
    let mut body = json!({ "path": top });
    if let Some(since) = since {
        body["since"] = json!(since);
    }
    let told = api.post("/api/watch/check", &body).ok();
    assert_eq!(told["success"], true);
    told
}

/// spec: 15.23
#[test]
fn each_change_since_a_version_counts() {
    let api = Api::start();
    let top = api.path("top");
    fs::create_dir_all(format!("{top}/in")).unwrap();
    let (status, first) = check(&api, &top, None);
    let form: Vec<&str> = first.split(['-', ':']).collect();
    assert_eq!((status.as_str(), form.len(), form[0], form[3]), ("unchanged", 4, "watch", "0"), "{first}");
    assert_eq!(check(&api, &top, Some(&first)), ("unchanged".into(), first.clone()));
    // What was just done is known: nothing is waited for.
    fs::create_dir_all(format!("{top}/in/new/deep")).unwrap();
    let (status, second) = check(&api, &top, Some(&first));
    assert_eq!(status, "changed");
    assert_ne!(first, second);
    assert_eq!(check(&api, &top, Some(&second)), ("unchanged".into(), second.clone()));
    assert_eq!(check(&api, &top, Some(&first)).0, "changed");
    fs::write(format!("{top}/in/new/deep/file"), "").unwrap();
    let (status, third) = check(&api, &top, Some(&second));
    assert_eq!(status, "changed");
    // What is left out by default.
    fs::create_dir(format!("{top}/.git")).unwrap();
    assert_eq!(check(&api, &top, Some(&third)), ("unchanged".into(), third));
}

/// spec: 15.23
#[test]
fn more_changes_than_the_kernel_keeps_are_a_change_and_nothing_later_is_missed() {
    let api = Api::start();
    let top = api.path("top");
    fs::create_dir(&top).unwrap();
    let (_, first) = check(&api, &top, None);
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    for number in 0..=most.trim().parse().unwrap() {
        fs::write(format!("{top}/{}", number % 100), "").unwrap();
        fs::remove_file(format!("{top}/{}", number % 100)).unwrap();
    }
    fs::create_dir(format!("{top}/unseen")).unwrap();
    let (status, second) = check(&api, &top, Some(&first));
    assert_eq!(status, "changed");
    fs::write(format!("{top}/unseen/file"), "").unwrap();
    assert_eq!(check(&api, &top, Some(&second)).0, "changed");
}

/// spec: 15.23
#[test]
fn a_version_of_another_server_or_of_another_directory_asks_for_a_new_beginning() {
    let mut api = Api::start();
    let top = api.path("above/top");
    fs::create_dir_all(&top).unwrap();
    let (_, old) = check(&api, &top, None);
    api.replace_server();
    let again = told(&api, &top, Some(&old));
    assert_eq!((&again["status"], &again["reason"]), (&json!("resync"), &json!("expired")));
    let version = again["version"].as_str().unwrap();
    assert_eq!(check(&api, &top, Some(version)).0, "unchanged");
    let again = told(&api, &top, Some(&old));
    assert_eq!((&again["status"], &again["reason"]), (&json!("resync"), &json!("restarted")));
    // Another directory is at the path. The kernel does not report that.
    fs::rename(api.path("above"), api.path("old")).unwrap();
    fs::create_dir_all(&top).unwrap();
    let again = told(&api, &top, Some(version));
    assert_eq!((&again["status"], &again["reason"]), (&json!("resync"), &json!("expired")));
    fs::remove_dir(&top).unwrap();
    api.post("/api/watch/check", &json!({ "path": top, "since": version })).fails(404, "FILE_NOT_FOUND");
}

/// spec: 15.23
#[test]
fn a_version_that_no_server_gave_is_refused() {
    let api = Api::start();
    let top = api.path("top");
    fs::create_dir(&top).unwrap();
    let (_, version) = check(&api, &top, None);
    let newer = version.replace(":0", ":1");
    for (since, message) in [
        (json!("nonsense"), "since must be a version returned by checkChanges()"),
        (json!(":1"), "since must be a version returned by checkChanges()"),
        (json!("watch-1-1:"), "since must be a version returned by checkChanges()"),
        (json!("watch-1-1:-1"), "since must be a version returned by checkChanges()"),
        (json!(" "), "since must be a non-empty string when provided"),
        (json!(7), "since must be a non-empty string when provided"),
        (json!("a\u{0}"), "since contains invalid null bytes"),
        (json!(newer), "since refers to a newer version than the current watch state"),
    ] {
        let body = json!({ "path": top, "since": since });
        let error = api.post("/api/watch/check", &body).fails(400, "VALIDATION_FAILED");
        assert_eq!(error["message"], message, "{since}");
    }
}
