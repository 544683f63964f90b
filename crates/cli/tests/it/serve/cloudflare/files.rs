//! The routes for files.

use std::io::{BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use rustix::mount::{MountFlags, mount, mount_remount};
use serde_json::{Value, json};

use super::super::Stream;
use super::super::faults::SmallDisk;
use super::{Api, Told, output, serve};
use crate::support::{TestEnv, Who, is_root, skip, wait_until};

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

/// The reference looks at the name first, and asks file(1) only about names that it does not know.
#[test]
fn a_name_tells_the_type_and_the_client_may_choose_the_encoding() {
    let api = Api::start();
    let read = |name: &str, content: &[u8], encoding: &Value| {
        let path = api.path(name);
        std::fs::write(&path, content).unwrap();
        let told = api.post("/api/read", &json!({ "path": path, "encoding": encoding })).ok();
        let events = api.events("POST", "/api/read/stream", &json!({ "path": path })).rest();
        let facts = ["content", "encoding", "isBinary", "mimeType"].map(|field| told[field].clone());
        (json!(facts), events[0]["isBinary"] == true)
    };
    let (none, text) = (Value::Null, b"text".as_slice());
    for (name, content, facts, is_binary) in [
        ("a.png", text, json!(["dGV4dA==", "base64", true, "image/png"]), true),
        ("a.svg", text, json!(["text", "utf-8", false, "image/svg+xml"]), false),
        ("a.json", text, json!(["text", "utf-8", false, "application/json"]), false),
        ("a.zip", text, json!(["dGV4dA==", "base64", true, "application/zip"]), true),
        ("a.unknown", text, json!(["text", "utf-8", false, "text/plain"]), false),
        // Not as in the reference, where this content would be lost.
        ("a.txt", b"\xff", json!(["/w==", "base64", true, "text/plain"]), true),
    ] {
        assert_eq!(read(name, content, &none), (facts, is_binary), "{name}");
    }
    let facts = |encoding: &str, name: &str, content: &[u8]| read(name, content, &json!(encoding)).0;
    assert_eq!(facts("utf-8", "b.png", text), json!(["text", "utf-8", false, "image/png"]));
    assert_eq!(
        facts("utf8", "c", b"a\xff"),
        json!(["a\u{fffd}", "utf-8", false, "application/octet-stream"])
    );
    assert_eq!(facts("base64", "d.txt", text), json!(["dGV4dA==", "base64", true, "text/plain"]));
}

/// The largest content that the server must take.
const LARGEST: usize = 100 << 20;

/// The largest part of a server that was in memory, in bytes.
fn peak_memory(api: &Api) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", api.server.running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// spec: 15.4
#[test]
fn a_file_of_100_mib_is_written_and_read() {
    let api = Api::start();
    let path = api.path("large");
    let content = "0123456789abcdef".repeat(LARGEST / 16);
    api.post("/api/write", &json!({ "path": path, "content": content })).ok();
    assert!(std::fs::read_to_string(&path).unwrap() == content, "it has the content");
    // The body, and its content.
    let peak = peak_memory(&api);
    assert!(peak < 250 << 20, "{} MiB", peak >> 20);
    let told = api.post("/api/read", &json!({ "path": path })).ok();
    assert!(told["content"] == content.as_str(), "the answer has the content");
    assert_eq!(peak_memory(&api), peak, "it is read in parts");
}

/// spec: 15.4
#[test]
fn two_large_bodies_at_one_time_are_read_and_a_third_is_refused() {
    let api = Api::start();
    let path = api.path("large");
    let content = "x".repeat(17 << 20);
    let body = json!({ "path": path, "content": content }).to_string();
    let head = "POST /api/write HTTP/1.1\r\nhost: a\r\nconnection: close\r\n";
    let begun = format!("{head}content-length: {}\r\n\r\n{}", body.len(), &body[..1]);
    let (sender, answers) = mpsc::channel();
    let mut streams: Vec<UnixStream> = Vec::new();
    for number in 0..3 {
        let mut stream = UnixStream::connect(api.server.path()).unwrap();
        stream.write_all(begun.as_bytes()).unwrap();
        streams.push(stream.try_clone().unwrap());
        let sender = sender.clone();
        std::thread::spawn(move || {
            let answer: Box<dyn Stream> = Box::new(stream);
            sender.send((number, Told::read(&mut BufReader::new(answer)))).unwrap();
        });
    }
    // The others wait for their bodies.
    let (refused, told) = answers.recv().unwrap();
    let error = told.fails(429, "INTERNAL_ERROR");
    assert!(error["message"].as_str().unwrap().contains("large bodies"), "{error}");
    streams.remove(refused);
    // Others are not concerned.
    api.post("/api/write", &json!({ "path": api.path("small"), "content": "x" })).ok();
    for mut stream in streams {
        stream.write_all(&body.as_bytes()[1..]).unwrap();
        answers.recv().unwrap().1.ok();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap().len(), content.len());
    wait_until("there is room", || {
        api.post("/api/write", &json!({ "path": path, "content": content })).status == 200
    });
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

/// spec: 8.19
#[test]
fn a_name_that_is_not_utf_8_is_listed_and_reached() {
    let api = Api::start();
    let dir = api.path("names");
    std::fs::create_dir(&dir).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(std::path::Path::new(&dir).join(name), "bytes").unwrap();
    let told = api.post("/api/list-files", &json!({ "path": dir })).ok();
    let path = format!("{dir}/caf\u{fffd}e9");
    let file = &told["files"][0];
    assert_eq!((&file["name"], &file["absolutePath"]), (&json!("caf\u{fffd}e9"), &json!(path)));
    assert_eq!(api.post("/api/read", &json!({ "path": path })).ok()["content"], "bytes");
    api.post("/api/write", &json!({ "path": path, "content": "more" })).ok();
    let moved = format!("{dir}/\u{fffd}ff");
    let told = api.post("/api/rename", &json!({ "oldPath": path, "newPath": moved })).ok();
    assert_eq!(told["newPath"], moved);
    let there = std::path::Path::new(&dir).join(std::ffi::OsStr::from_bytes(b"\xff"));
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "more");
    api.post("/api/delete", &json!({ "path": moved })).ok();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    let error = api.post("/api/read", &json!({ "path": format!("{dir}/\u{fffd}00") }));
    error.fails(400, "VALIDATION_FAILED");
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
