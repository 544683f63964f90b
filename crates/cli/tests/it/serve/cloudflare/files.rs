//! The routes for files.

use serde_json::{Value, json};

use super::{Api, output};

#[test]
fn a_file_is_written_and_read_as_text_or_base64() {
    let api = Api::start();
    let path = api.path("new/dir/a.txt");
    let told = api.post("/api/write", &json!({ "path": path, "content": "café\n" })).ok();
    assert_eq!(told["path"], path.as_str());
    let told = api.post("/api/read", &json!({ "path": path })).ok();
    let facts = ["content", "encoding", "isBinary", "mimeType", "size"].map(|field| told[field].clone());
    assert_eq!(json!(facts), json!(["café\n", "utf-8", false, "text/plain", 6]));
    let told = api.post("/api/read", &json!({ "path": path, "encoding": "base64" })).ok();
    assert_eq!((told["content"].as_str(), told["encoding"].as_str()), (Some("Y2Fmw6kK"), Some("base64")));

    let path = api.path("b.png");
    api.post("/api/write", &json!({ "path": path, "content": "AP8B", "encoding": "base64" })).ok();
    assert_eq!(std::fs::read(&path).unwrap(), [0, 255, 1]);
    let told = api.post("/api/read", &json!({ "path": path })).ok();
    let facts = ["content", "encoding", "isBinary", "mimeType", "size"].map(|field| told[field].clone());
    assert_eq!(json!(facts), json!(["AP8B", "base64", true, "image/png", 3]));
    let bad = json!({ "path": path, "content": "*", "encoding": "base64" });
    api.post("/api/write", &bad).fails(400, "VALIDATION_FAILED");
    assert_eq!(std::fs::read(&path).unwrap(), [0, 255, 1]);
}

#[test]
fn errors_of_files_have_the_codes_of_the_table() {
    let api = Api::start();
    let dir = api.path("");
    let missing = api.path("missing");
    let file = api.path("file");
    std::fs::write(&file, "x").unwrap();
    let long = api.path(&"n".repeat(300));
    for (route, body, status, code) in [
        ("read", json!({ "path": missing }), 404, "FILE_NOT_FOUND"),
        ("read", json!({ "path": dir }), 404, "FILE_NOT_FOUND"),
        ("read", json!({}), 400, "VALIDATION_FAILED"),
        ("read", json!({ "path": "a\0b" }), 400, "VALIDATION_FAILED"),
        ("read", json!({ "path": long }), 400, "NAME_TOO_LONG"),
        ("read", json!({ "path": "/dev/zero" }), 500, "FILESYSTEM_ERROR"),
        ("write", json!({ "path": dir, "content": "" }), 400, "IS_DIRECTORY"),
        ("write", json!({ "path": file }), 400, "VALIDATION_FAILED"),
        ("write", json!({ "path": format!("{file}/x"), "content": "" }), 400, "NOT_DIRECTORY"),
        ("delete", json!({ "path": missing }), 404, "FILE_NOT_FOUND"),
        ("delete", json!({ "path": dir }), 400, "IS_DIRECTORY"),
        ("rename", json!({ "oldPath": missing, "newPath": file }), 404, "FILE_NOT_FOUND"),
        ("move", json!({ "sourcePath": missing, "destinationPath": file }), 404, "FILE_NOT_FOUND"),
        ("mkdir", json!({ "path": dir }), 500, "FILESYSTEM_ERROR"),
        ("list-files", json!({ "path": missing }), 404, "FILE_NOT_FOUND"),
        ("list-files", json!({ "path": file }), 400, "NOT_DIRECTORY"),
    ] {
        let error = api.post(&format!("/api/{route}"), &body).fails(status, code);
        if status != 400 {
            assert!(error["context"]["path"].is_string(), "{route}: {error}");
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
}

#[test]
fn files_are_moved_listed_and_deleted() {
    let api = Api::start();
    let top = api.path("top");
    assert_eq!(
        api.post("/api/mkdir", &json!({ "path": format!("{top}/in/side"), "recursive": true })).ok()["recursive"],
        true
    );
    api.post("/api/write", &json!({ "path": format!("{top}/a"), "content": "1" })).ok();
    api.post("/api/write", &json!({ "path": format!("{top}/.hidden"), "content": "1" })).ok();
    std::os::unix::fs::symlink("a", format!("{top}/link")).unwrap();
    api.post("/api/rename", &json!({ "oldPath": format!("{top}/a"), "newPath": format!("{top}/b") })).ok();
    let into = json!({ "sourcePath": format!("{top}/b"), "destinationPath": format!("{top}/in") });
    api.post("/api/move", &into).ok();
    let list = |options: Value| {
        let told = api.post("/api/list-files", &json!({ "path": top, "options": options })).ok();
        let files = told["files"].as_array().unwrap().clone();
        assert_eq!(told["count"], files.len());
        files
            .iter()
            .map(|file| {
                format!("{} {}", file["type"].as_str().unwrap(), file["relativePath"].as_str().unwrap())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(list(json!({})), ["directory in", "symlink link"]);
    assert_eq!(list(json!({ "includeHidden": true })), ["file .hidden", "directory in", "symlink link"]);
    assert_eq!(
        list(json!({ "recursive": true })),
        ["directory in", "file in/b", "directory in/side", "symlink link"]
    );
    let exists = |name: &str| {
        api.post("/api/exists", &json!({ "path": format!("{top}/{name}") })).ok()["exists"].clone()
    };
    assert_eq!((exists("in/b"), exists("b")), (json!(true), json!(false)));
    api.post("/api/delete", &json!({ "path": format!("{top}/in/b") })).ok();
    assert_eq!(exists("in/b"), false);
}

#[test]
fn a_large_file_is_streamed_whole_and_in_characters() {
    let api = Api::start();
    let path = api.path("large");
    let text = "aé€😀".repeat(40_000);
    std::fs::write(&path, &text).unwrap();
    assert_eq!(api.post("/api/read", &json!({ "path": path })).ok()["content"], text.as_str());
    let events = api.events("POST", "/api/read/stream", &json!({ "path": path })).rest();
    let first = &events[0];
    assert_eq!((first["type"].as_str(), first["size"].as_u64()), (Some("metadata"), Some(400_000)));
    assert_eq!((first["isBinary"].as_bool(), first["encoding"].as_str()), (Some(false), Some("utf-8")));
    assert!(output(&events, "chunk") == text);
    assert_eq!(events.last().unwrap()["bytesRead"], 400_000);

    let missing = api.events("POST", "/api/read/stream", &json!({ "path": api.path("missing") })).rest();
    assert_eq!((missing.len(), missing[0]["type"].as_str()), (1, Some("error")));
}

#[test]
fn a_relative_path_begins_in_the_directory_of_the_session() {
    let api = Api::start();
    api.out("s", &format!("mkdir -p {0}; cd {0}", api.path("deep")));
    api.post("/api/write", &json!({ "path": "rel", "content": "x", "sessionId": "s" })).ok();
    assert_eq!(std::fs::read_to_string(api.path("deep/rel")).unwrap(), "x");
}
