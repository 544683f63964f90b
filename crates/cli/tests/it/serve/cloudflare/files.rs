//! The routes for files.

use std::os::unix::fs::PermissionsExt as _;

use rustix::mount::{MountFlags, mount, mount_remount};
use serde_json::{Value, json};

use super::super::faults::SmallDisk;
use super::{Api, output, serve};
use crate::support::{TestEnv, Who, is_root, skip};

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
        if (route, code) == ("delete", "IS_DIRECTORY") {
            let said = error["message"].as_str().unwrap();
            assert!(said.contains("Cannot delete directory with deleteFile()"), "{said}");
        }
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

/// Asks each route that changes or reads something in a directory; each must fail with this code.
#[track_caller]
fn assert_refused(api: &Api, dir: &str, reads: bool, status: u16, code: &str) {
    let file = format!("{dir}/file");
    let other = api.path("other");
    std::fs::write(&other, "other").unwrap();
    let mut asked = vec![
        ("write", json!({ "path": file, "content": "new" })),
        ("write", json!({ "path": format!("{dir}/new"), "content": "new" })),
        ("delete", json!({ "path": file })),
        ("rename", json!({ "oldPath": file, "newPath": format!("{dir}/b") })),
        ("move", json!({ "sourcePath": other, "destinationPath": format!("{dir}/b") })),
        ("mkdir", json!({ "path": format!("{dir}/new") })),
        ("mkdir", json!({ "path": format!("{dir}/new/deep"), "recursive": true })),
    ];
    if reads {
        asked.push(("read", json!({ "path": file })));
        asked.push(("list-files", json!({ "path": dir })));
    }
    for (route, body) in asked {
        let told = api.post(&format!("/api/{route}"), &body);
        assert_eq!(told.json()["code"], code, "{route} {body}: {:?}", told.json());
        assert!(told.fails(status, code)["context"]["path"].is_string());
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
}

#[test]
fn a_file_of_another_user_is_not_permitted() {
    let env = if is_root() { TestEnv::of(Who::Plain).unwrap() } else { TestEnv::new() };
    let server = serve(&env, &[]);
    let api = Api { env, server };
    let dir = api.path("locked");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(format!("{dir}/file"), "x").unwrap();
    let set = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0);
    assert_refused(&api, &dir, true, 403, "PERMISSION_DENIED");
    let events = api.events("POST", "/api/read/stream", &json!({ "path": format!("{dir}/file") })).rest();
    assert_eq!((events.len(), events[0]["type"].as_str()), (1, Some("error")));
    set(0o700);
    assert_eq!(std::fs::read_to_string(format!("{dir}/file")).unwrap(), "x");
}

#[test]
fn a_file_system_that_is_read_only_is_not_changed() {
    if !is_root() {
        return;
    }
    let api = Api::start();
    let dir = api.path("disk");
    std::fs::create_dir(&dir).unwrap();
    if mount("none", &dir, "tmpfs", MountFlags::empty(), c"size=64k").is_err() {
        return skip("no tmpfs can be mounted here");
    }
    let disk = SmallDisk(dir.clone().into());
    std::fs::write(format!("{dir}/file"), "x").unwrap();
    mount_remount(&dir, MountFlags::RDONLY, "").unwrap();
    assert_refused(&api, &dir, false, 403, "READ_ONLY");
    assert_eq!(api.post("/api/read", &json!({ "path": format!("{dir}/file") })).ok()["content"], "x");
    drop(disk);
}

#[test]
fn a_full_disk_is_no_space() {
    if !is_root() {
        return;
    }
    let api = Api::start();
    let dir = api.path("disk");
    std::fs::create_dir(&dir).unwrap();
    if mount("none", &dir, "tmpfs", MountFlags::empty(), c"size=64k,nr_inodes=4").is_err() {
        return skip("no tmpfs can be mounted here");
    }
    let disk = SmallDisk(dir.clone().into());
    let large = "x".repeat(200_000);
    let write = |name: &str, text: &str| {
        api.post("/api/write", &json!({ "path": format!("{dir}/{name}"), "content": text }))
    };
    write("large", &large).fails(500, "NO_SPACE");
    // A move from another file system leaves the file where it is.
    let old = api.path("old");
    std::fs::write(&old, &large).unwrap();
    let into = json!({ "sourcePath": old, "destinationPath": format!("{dir}/large") });
    api.post("/api/move", &into).fails(500, "NO_SPACE");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), large);
    api.post("/api/delete", &json!({ "path": format!("{dir}/large") })).ok();
    // There is room, and then no inode.
    for name in ["a", "b", "c"] {
        write(name, name).ok();
    }
    write("d", "d").fails(500, "NO_SPACE");
    api.post("/api/mkdir", &json!({ "path": format!("{dir}/e") })).fails(500, "NO_SPACE");
    assert_eq!(api.post("/api/read", &json!({ "path": format!("{dir}/c") })).ok()["content"], "c");
    drop(disk);
}

#[test]
fn a_directory_with_files_is_not_replaced() {
    let api = Api::start();
    for dir in ["a", "b"] {
        api.post("/api/write", &json!({ "path": api.path(&format!("{dir}/file")), "content": dir })).ok();
    }
    let (a, b) = (api.path("a"), api.path("b"));
    api.post("/api/rename", &json!({ "oldPath": a, "newPath": b })).fails(409, "FILE_EXISTS");
    api.post("/api/move", &json!({ "sourcePath": a, "destinationPath": b })).fails(409, "FILE_EXISTS");
    for dir in ["a", "b"] {
        assert_eq!(std::fs::read_to_string(api.path(&format!("{dir}/file"))).unwrap(), dir);
    }
}
