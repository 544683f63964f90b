//! `/api/watch`: which changes are reported, and how.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{Api, Events};

/// Watches a new directory in the work directory of the test. Returns its path.
#[track_caller]
pub fn watch_new(api: &Api, name: &str, options: &Value) -> (String, Events) {
    let top = api.path(name);
    fs::create_dir(&top).unwrap();
    let events = watch(api, &top, options);
    (top, events)
}

/// Watches a path.
#[track_caller]
pub fn watch(api: &Api, top: &str, options: &Value) -> Events {
    let mut body = options.clone();
    body["path"] = json!(top);
    let mut events = api.events("POST", "/api/watch", &body);
    let first = events.next().unwrap();
    assert_eq!((&first["type"], &first["path"]), (&json!("watching"), &json!(top)), "{first}");
    assert!(first["watchId"].as_str().unwrap().starts_with("watch-"), "{first}");
    events
}

/// Makes a file that marks the end of the changes, and returns the changes before: kind and path, the latter relative to the top.
#[track_caller]
pub fn changes(events: &mut Events, top: &str) -> Vec<String> {
    let mark = format!("{top}/zz-mark");
    fs::write(&mark, "").unwrap();
    let mut seen = Vec::new();
    loop {
        let event = events.next().unwrap_or_else(|| panic!("the stream ended after {seen:?}"));
        assert_eq!(event["type"], "event", "{event} after {seen:?}");
        let path = event["path"].as_str().unwrap();
        if path == mark {
            // Its end is another change.
            fs::remove_file(&mark).unwrap();
            while events.next().unwrap()["eventType"] != "delete" {}
            return seen;
        }
        let slash = if event["isDirectory"] == true { "/" } else { "" };
        let path = path.strip_prefix(top).unwrap().trim_start_matches('/');
        seen.push(format!("{} {path}{slash}", event["eventType"].as_str().unwrap()));
    }
}

/// spec: 15.23
#[test]
fn changes_below_a_directory_are_reported_in_their_order() {
    let api = Api::start();
    let (top, mut events) = watch_new(&api, "top", &json!({}));
    fs::write(format!("{top}/a"), "1").unwrap();
    assert_eq!(changes(&mut events, &top), ["create a", "modify a"]);
    fs::write(format!("{top}/a"), "2").unwrap();
    fs::rename(format!("{top}/a"), format!("{top}/b")).unwrap();
    fs::remove_file(format!("{top}/b")).unwrap();
    let seen = changes(&mut events, &top);
    assert_eq!(seen, ["modify a", "move_from a", "move_to b", "delete b"]);
    // One that was written a hundred times in a moment was changed once.
    let mut file = fs::File::create(format!("{top}/c")).unwrap();
    for _ in 0..100 {
        std::io::Write::write_all(&mut file, b"x").unwrap();
    }
    let seen = changes(&mut events, &top);
    assert!(seen.len() <= 3 && seen.starts_with(&["create c".into(), "modify c".into()]), "{seen:?}");
    // What was made, removed and made again exists.
    fs::write(format!("{top}/d"), "").unwrap();
    fs::remove_file(format!("{top}/d")).unwrap();
    fs::write(format!("{top}/d"), "").unwrap();
    assert_eq!(changes(&mut events, &top), ["create d", "delete d", "create d"]);
}

/// spec: 15.23
#[test]
fn what_is_in_new_directories_is_reported_once_and_not_missed() {
    let api = Api::start();
    let (top, mut events) = watch_new(&api, "top", &json!({ "events": ["create"] }));
    let mut wanted = Vec::new();
    for number in 0..60 {
        let mut dir = format!("{top}/{number}");
        for depth in ["", "/in", "/in/deep"] {
            dir = format!("{top}/{number}{depth}");
            fs::create_dir(&dir).unwrap();
            wanted.push(format!("create {number}{depth}/"));
        }
        for file in ["a", "b"] {
            fs::write(format!("{dir}/{file}"), "").unwrap();
            wanted.push(format!("create {number}/in/deep/{file}"));
        }
    }
    let mut seen = Vec::new();
    while seen.len() < wanted.len() {
        let event = events.next().unwrap();
        let slash = if event["isDirectory"] == true { "/" } else { "" };
        let path = event["path"].as_str().unwrap().strip_prefix(&format!("{top}/")).unwrap();
        seen.push(format!("create {path}{slash}"));
    }
    // They are watched: nothing else comes before this one.
    fs::write(format!("{top}/59/in/deep/last"), "").unwrap();
    let last = events.next().unwrap();
    assert_eq!(last["path"], format!("{top}/59/in/deep/last"), "{last}");
    seen.sort();
    wanted.sort();
    assert_eq!(seen, wanted);
}

/// spec: 15.23
#[test]
fn a_directory_that_is_moved_or_replaced_is_known_by_its_new_path() {
    let api = Api::start();
    let (top, mut events) =
        watch_new(&api, "top", &json!({ "events": ["create", "delete", "move_from", "move_to"] }));
    fs::create_dir_all(format!("{top}/old/in")).unwrap();
    changes(&mut events, &top);
    fs::rename(format!("{top}/old"), format!("{top}/new")).unwrap();
    fs::write(format!("{top}/new/in/a"), "").unwrap();
    let seen = changes(&mut events, &top);
    assert_eq!(seen, ["move_from old/", "move_to new/", "create new/in/a"]);
    // Moved away: it is not watched any more.
    let away = api.path("away");
    fs::rename(format!("{top}/new"), &away).unwrap();
    assert_eq!(changes(&mut events, &top), ["move_from new/"]);
    fs::write(format!("{away}/in/b"), "").unwrap();
    assert_eq!(changes(&mut events, &top), [""; 0]);
    // Moved in: what is in it is new.
    fs::rename(&away, format!("{top}/back")).unwrap();
    let mut seen = changes(&mut events, &top);
    seen.sort();
    assert_eq!(seen, ["create back/in/", "create back/in/a", "create back/in/b", "move_to back/"]);
    for name in ["a", "b"] {
        fs::remove_file(format!("{top}/back/in/{name}")).unwrap();
    }
    fs::remove_dir(format!("{top}/back/in")).unwrap();
    fs::remove_dir(format!("{top}/back")).unwrap();
    fs::create_dir(format!("{top}/back")).unwrap();
    changes(&mut events, &top);
    fs::write(format!("{top}/back/c"), "").unwrap();
    assert_eq!(changes(&mut events, &top), ["create back/c"]);
}

/// spec: 15.23
#[test]
fn links_are_not_followed_and_a_watch_that_is_not_recursive_stays_in_its_directory() {
    let api = Api::start();
    let outside = api.path("outside");
    fs::create_dir(&outside).unwrap();
    let top = api.path("top");
    fs::create_dir_all(format!("{top}/in")).unwrap();
    std::os::unix::fs::symlink(&outside, format!("{top}/link")).unwrap();
    let mut all = watch(&api, &top, &json!({}));
    let mut flat = watch(&api, &top, &json!({ "recursive": false }));
    std::os::unix::fs::symlink(&outside, format!("{top}/new-link")).unwrap();
    fs::write(format!("{outside}/a"), "").unwrap();
    fs::write(format!("{top}/in/b"), "").unwrap();
    assert_eq!(changes(&mut all, &top), ["create new-link", "create in/b"]);
    let first = flat.next().unwrap();
    assert_eq!(first["path"], format!("{top}/new-link"));
    let second = flat.next().unwrap();
    assert_eq!(second["path"], format!("{top}/zz-mark"), "nothing of in/");
}

/// spec: 15.23
#[test]
fn patterns_choose_what_is_reported() {
    let api = Api::start();
    let (top, mut usual) = watch_new(&api, "top", &json!({}));
    fs::create_dir_all(format!("{top}/src/deep")).unwrap();
    fs::create_dir_all(format!("{top}/node_modules/dep")).unwrap();
    changes(&mut usual, &top);
    let mut only = watch(&api, &top, &json!({ "include": ["*.ts", "zz-mark"] }));
    let mut without = watch(&api, &top, &json!({ "exclude": ["src/**", "*.js"] }));
    for name in ["a.ts", "a.js", "src/deep/b.ts", "node_modules/dep/c.ts", ".git"] {
        fs::write(format!("{top}/{name}"), "").unwrap();
    }
    let seen = changes(&mut usual, &top);
    assert_eq!(seen, ["create a.ts", "create a.js", "create src/deep/b.ts"]);
    // Its mark may be removed by now: the others have seen it nevertheless.
    let next = |events: &mut Events| events.next().unwrap()["path"].as_str().unwrap().to_owned();
    for name in ["a.ts", "src/deep/b.ts", "node_modules/dep/c.ts", "zz-mark"] {
        assert_eq!(next(&mut only), format!("{top}/{name}"));
    }
    for name in ["a.ts", "node_modules/dep/c.ts", ".git", "zz-mark"] {
        assert_eq!(next(&mut without), format!("{top}/{name}"));
    }
}

/// spec: 15.23
#[test]
fn a_name_that_is_no_text_is_reported_nevertheless() {
    let api = Api::start();
    let (top, mut events) = watch_new(&api, "top", &json!({}));
    let name = Path::new(&top).join(OsStr::from_bytes(b"a\xff"));
    fs::create_dir(&name).unwrap();
    fs::write(name.join("b"), "").unwrap();
    assert_eq!(changes(&mut events, &top), ["create a\u{fffd}ff/", "create a\u{fffd}ff/b"]);
}

/// spec: 15.23
#[test]
fn a_single_file_can_be_watched_and_a_relative_path_begins_in_the_directory_of_the_session() {
    let api = Api::start();
    let file = api.path("file");
    fs::write(&file, "").unwrap();
    let mut events = watch(&api, &file, &json!({}));
    fs::write(&file, "x").unwrap();
    let event = events.next().unwrap();
    assert_eq!((&event["eventType"], &event["path"]), (&json!("modify"), &json!(file)));
    api.out("s", &format!("cd {}", api.path("")));
    let mut events = api.events("POST", "/api/watch", &json!({ "path": " ./x/../file ", "sessionId": "s" }));
    assert_eq!(events.next().unwrap()["path"], file);
}

/// spec: 15.23
#[test]
fn a_request_that_is_not_valid_has_the_message_of_the_reference() {
    let api = Api::start();
    let top = api.path("");
    for (body, message) in [
        (json!("text"), "Request body must be a JSON object"),
        (json!({}), "path is required and must be a non-empty string"),
        (json!({ "path": " " }), "path is required and must be a non-empty string"),
        (json!({ "path": "/a\u{0}b" }), "path contains invalid null bytes"),
        (
            json!({ "path": top, "include": ["a"], "exclude": ["b"] }),
            "include and exclude cannot be used together. Use include to whitelist patterns, or exclude to blacklist patterns.",
        ),
        (json!({ "path": top, "include": "a" }), "include must be an array of strings"),
        (json!({ "path": top, "exclude": [1] }), "exclude must be an array of strings"),
        (
            json!({ "path": top, "include": ["*.{ts,js}"] }),
            "include contains unsupported glob syntax. Supported tokens: *, **, ? and path separators",
        ),
        (
            json!({ "path": top, "exclude": [" "] }),
            "exclude contains unsupported glob syntax. Supported tokens: *, **, ? and path separators",
        ),
        (json!({ "path": top, "recursive": "yes" }), "recursive must be a boolean when provided"),
    ] {
        for route in ["/api/watch", "/api/watch/check"] {
            let error = api.post(route, &body).fails(400, "VALIDATION_FAILED");
            assert_eq!(error["message"], message, "{route} {body}");
        }
    }
    for route in ["/api/watch", "/api/watch/check"] {
        let error = api.ask("POST", route, "", "{").fails(400, "VALIDATION_FAILED");
        assert!(error["message"].as_str().unwrap().starts_with("Failed to parse request body: "), "{error}");
        let missing = api.path("missing");
        let error = api.post(route, &json!({ "path": missing })).fails(404, "FILE_NOT_FOUND");
        assert_eq!(error["message"], format!("Path does not exist: {missing}"));
        assert_eq!(error["context"]["path"], missing.as_str());
        let many = vec!["a"; 101];
        api.post(route, &json!({ "path": top, "include": many })).fails(400, "VALIDATION_FAILED");
    }
}
