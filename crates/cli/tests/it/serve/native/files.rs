//! Files in the workspace.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::json;

use super::{Reply, Server, ask, create, get, post, start};
use crate::support::{TestEnv, wait_until};

const BYTES: &str = "content-type: application/octet-stream\r\n";

/// A sandbox with the working directory of the test as its workspace.
fn sandbox(env: &TestEnv, server: &Server) -> String {
    let body = json!({ "command": ["sleep", "600"], "dir": env.path("work").to_str().unwrap() });
    format!("/v1/sandboxes/{}/files", create(server, &body)["id"].as_str().unwrap())
}

#[track_caller]
fn put(server: &Server, files: &str, query: &str, body: &[u8]) -> Reply {
    ask(server, "PUT", &format!("{files}?{query}"), BYTES, body)
}

#[test]
fn a_file_is_written_read_listed_moved_and_removed() {
    let (env, server) = start();
    let files = sandbox(&env, &server);
    let big: Vec<u8> = (0..3_000_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
    let written = put(&server, &files, "path=a/b/big&parents=true&mode=0600", &big).with(200).json();
    assert_eq!(written["size"], 3_000_000);
    assert!(get(&server, &format!("{files}?path=a/b/big")).with(200).body == big);
    let mode = env.path("work/a/b/big").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let part =
        ask(&server, "GET", &format!("{files}?path=a/b/big"), "range: bytes=1000-1999\r\n", b"").with(206);
    assert!(part.body == big[1000..2000] && part.head.contains("content-range: bytes 1000-1999/3000000"));
    let reply = ask(&server, "GET", &format!("{files}?path=a/b/big"), "range: bytes=3000000-\r\n", b"");
    assert_eq!(reply.with(416).problem(), "bad_range");
    put(&server, &files, "path=a/b/big", b"").with(200);
    assert_eq!(env.path("work/a/b/big").metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let stat = get(&server, &format!("{files}/stat?path=a/b/big")).with(200).json();
    assert_eq!((&stat["type"], &stat["size"], &stat["mode"]), (&json!("file"), &json!(0), &json!("0600")));
    post(&server, &format!("{files}/mkdir"), &json!({ "path": "a/c" })).with(204);
    assert_eq!(
        post(&server, &format!("{files}/mkdir"), &json!({ "path": "a/c" })).with(409).problem(),
        "file_conflict"
    );
    post(&server, &format!("{files}/mkdir"), &json!({ "path": "a/c/d/e", "parents": true })).with(204);
    post(&server, &format!("{files}/move"), &json!({ "from": "a/b/big", "to": "a/small" })).with(204);
    put(&server, &files, "path=a/other", b"x").with(200);
    let reply = post(&server, &format!("{files}/move"), &json!({ "from": "a/small", "to": "a/other" }));
    assert_eq!(reply.with(409).problem(), "file_conflict");
    post(&server, &format!("{files}/move"), &json!({ "from": "a/small", "to": "a/other", "replace": true }))
        .with(204);
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = get(&server, &format!("{files}/list?path=a&limit=1{cursor}")).with(200).json();
        names.extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["name"].clone()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(json!(names), json!(["b", "c", "other"]));
    let remove = |query: &str| ask(&server, "DELETE", &format!("{files}?{query}"), "", b"");
    assert_eq!(remove("path=a").with(409).problem(), "file_conflict");
    remove("path=a&recursive=true").with(204);
    assert_eq!(remove("path=a").with(404).problem(), "not_found");
    assert_eq!(
        std::fs::read_dir(env.path("work"))
            .unwrap()
            .flatten()
            .filter(|entry| { entry.file_name().to_string_lossy().starts_with(".penfold") })
            .count(),
        0
    );
}

/// spec: 8.19
#[test]
fn a_name_that_is_not_utf_8_is_listed_and_reached() {
    let (env, server) = start();
    let files = sandbox(&env, &server);
    // As bytes of the address, and as the text that a list has.
    put(&server, &files, "path=caf%e9/%ff+%c3%a9&parents=true", b"bytes").with(200);
    let dir = env.path("work").join(OsStr::from_bytes(b"caf\xe9"));
    assert_eq!(std::fs::read(dir.join(OsStr::from_bytes(b"\xff \xc3\xa9"))).unwrap(), b"bytes");
    let names = |path: &str| {
        let page = get(&server, &format!("{files}/list?path={path}")).with(200).json();
        let names = page["entries"].as_array().unwrap().iter().map(|entry| entry["name"].clone());
        names.filter(|name| name != "api.sock").collect::<Vec<_>>()
    };
    assert_eq!(names(""), [json!("caf\u{fffd}e9")]);
    assert_eq!(names("caf%e9"), [json!("\u{fffd}ff \u{e9}")]);
    assert_eq!(
        get(&server, &format!("{files}?path=caf%EF%BF%BDe9/%EF%BF%BDff%20%C3%A9")).with(200).body,
        b"bytes"
    );
    let to = json!({ "from": "caf\u{fffd}e9/\u{fffd}ff \u{e9}", "to": "caf\u{fffd}e9/\u{fffd}00" });
    assert_eq!(post(&server, &format!("{files}/move"), &to).with(422).problem(), "invalid_field");
    let to = json!({ "from": "caf\u{fffd}e9/\u{fffd}ff \u{e9}", "to": "\u{fffd}fe" });
    post(&server, &format!("{files}/move"), &to).with(204);
    assert_eq!(get(&server, &format!("{files}/stat?path=%fe")).with(200).json()["name"], "\u{fffd}fe");
    for path in ["%fe", "caf%e9"] {
        ask(&server, "DELETE", &format!("{files}?path={path}&recursive=true"), "", b"").with(204);
    }
    assert_eq!(names(""), Vec::<serde_json::Value>::new());
    // A slash that is written as a byte leads out no more than another.
    let out = get(&server, &format!("{files}?path=..%EF%BF%BD2f..%EF%BF%BD2fetc/passwd"));
    assert_eq!(out.with(403).problem(), "outside_workspace");
}

#[test]
fn no_path_leads_out_of_the_workspace() {
    let (env, server) = start();
    let files = sandbox(&env, &server);
    std::fs::write(env.path("secret"), "secret").unwrap();
    symlink("../secret", env.path("work/relative")).unwrap();
    symlink(env.path("secret"), env.path("work/absolute")).unwrap();
    symlink("..", env.path("work/up")).unwrap();
    symlink("/proc/self/root", env.path("work/magic")).unwrap();
    for path in [
        "../secret",
        "relative",
        "absolute",
        "up/secret",
        "/etc/passwd",
        "magic/etc/passwd",
        "a/../../secret",
        "%2e%2e/secret",
        "a%00b",
        "%ff",
        "work/../../secret",
    ] {
        let get = get(&server, &format!("{files}?path={path}"));
        assert!((400..500).contains(&get.status) && !get.problem().is_empty(), "{path}: {get:?}");
        let list = super::get(&server, &format!("{files}/list?path={path}"));
        assert!((400..500).contains(&list.status), "{path}: {list:?}");
    }
    for path in ["../new", "up/new", "/tmp/new", "..", ".", "", "a/..", "magic/tmp/new"] {
        let put = put(&server, &files, &format!("path={path}"), b"x");
        assert!((400..500).contains(&put.status), "{path}: {put:?}");
        let remove = ask(&server, "DELETE", &format!("{files}?recursive=true&path={path}"), "", b"");
        assert!((400..500).contains(&remove.status), "{path}: {remove:?}");
        for body in [json!({ "from": path, "to": "x" }), json!({ "from": "relative", "to": path })] {
            let moved = post(&server, &format!("{files}/move"), &body);
            assert!((400..500).contains(&moved.status), "{path}: {moved:?}");
        }
    }
    assert!(!env.path("new").try_exists().unwrap());
    // A write replaces a link, and not its target. A removal removes the link.
    put(&server, &files, "path=relative", b"mine").with(200);
    ask(&server, "DELETE", &format!("{files}?path=absolute"), "", b"").with(204);
    ask(&server, "DELETE", &format!("{files}?path=up&recursive=true"), "", b"").with(204);
    assert_eq!(std::fs::read_to_string(env.path("secret")).unwrap(), "secret");
    assert_eq!(std::fs::read_to_string(env.path("work/relative")).unwrap(), "mine");
}

#[test]
fn a_body_that_breaks_off_changes_nothing() {
    let (env, server) = start();
    let files = sandbox(&env, &server);
    put(&server, &files, "path=file", b"old").with(200);
    let mut stream = server.connect();
    let head = format!("PUT {files}?path=file HTTP/1.1\r\nhost: a\r\n{BYTES}content-length: 1000000\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&b"n".repeat(500_000)).unwrap();
    drop(stream);
    // A later write is not overtaken by the broken one.
    put(&server, &files, "path=other", b"x").with(200);
    assert_eq!(get(&server, &format!("{files}?path=file")).body, b"old");
    wait_until("no draft is left", || {
        std::fs::read_dir(env.path("work"))
            .unwrap()
            .flatten()
            .all(|entry| !entry.file_name().to_string_lossy().starts_with(".penfold"))
    });
}

#[test]
fn special_files_do_not_block_the_server() {
    let (env, server) = start();
    let files = sandbox(&env, &server);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        env.path("work/fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert_eq!(get(&server, &format!("{files}?path=fifo")).with(409).problem(), "file_conflict");
    assert_eq!(get(&server, &format!("{files}?path=.")).with(409).problem(), "file_conflict");
    assert_eq!(get(&server, &format!("{files}/stat?path=fifo")).with(200).json()["type"], "fifo");
}
