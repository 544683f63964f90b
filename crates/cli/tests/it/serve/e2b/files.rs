//! The files of a sandbox.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Api, Frames, Guest, Told};

const SECONDS: u64 = 99_999_999_999;

impl Api {
    /// A request for `/files` with further headers.
    #[track_caller]
    fn files(&self, guest: &Guest, (method, query): (&str, &str), headers: &str, body: &[u8]) -> Told {
        let headers = format!("{headers}{}", guest.headers());
        Told::read(&mut self.send(method, &format!("/files?{query}"), &headers, body))
    }

    /// Writes a file.
    #[track_caller]
    fn write(&self, guest: &Guest, path: &str, headers: &str, body: &[u8]) -> Value {
        let headers = format!("content-type: application/octet-stream\r\n{headers}");
        let told = self.files(guest, ("POST", &format!("path={path}")), &headers, body);
        assert_eq!(told.status, 200, "{}", String::from_utf8_lossy(&told.body));
        told.json()
    }

    /// Reads a file, with further headers.
    #[track_caller]
    fn read(&self, guest: &Guest, path: &str, headers: &str) -> (u16, String) {
        let told = self.files(guest, ("GET", &format!("path={path}")), headers, b"");
        (told.status, String::from_utf8_lossy(&told.body).into_owned())
    }
}

fn fs(method: &str) -> String {
    format!("/filesystem.Filesystem/{method}")
}

/// The next filesystem event of a stream.
#[track_caller]
fn event(frames: &mut Frames) -> (String, String) {
    let (flags, json) = frames.next().expect("an event");
    assert_eq!(flags, 0, "{json}");
    let text = |name: &str| json["filesystem"][name].as_str().unwrap_or_default().to_owned();
    (text("type"), text("name"))
}

/// spec: 36.9
#[test]
fn a_file_is_what_was_written() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let written = api.write(&guest, "dir/a.txt", "x-metadata-author: me\r\n", b"0123456789");
    let entry = json!([{ "path": "/home/user/dir/a.txt", "name": "a.txt", "type": "file", "metadata": { "author": "me" } }]);
    assert_eq!(written, entry);
    let told = api.files(&guest, ("GET", "path=dir/a.txt"), "", b"");
    assert_eq!((told.status, told.body.as_slice()), (200, &b"0123456789"[..]));
    assert!(told.head.contains("content-length: 10"), "{}", told.head);
    assert_eq!(api.read(&guest, "dir/a.txt", "range: bytes=2-4\r\n"), (206, "234".to_owned()));
    assert_eq!(api.read(&guest, "dir/a.txt", "range: bytes=20-\r\n").0, 416);
    let info = &api.ok(&guest, &fs("Stat"), &json!({ "path": "dir/a.txt" }))["entry"];
    let fields = json!([
        info["type"],
        info["size"],
        info["mode"],
        info["permissions"],
        info["owner"],
        info["metadata"]["author"]
    ]);
    assert_eq!(fields, json!(["FILE_TYPE_FILE", "10", 0o644, "-rw-r--r--", "user", "me"]));
    // The commands of the sandbox see the same files, and may change them.
    assert_eq!(api.out(&guest, "cat dir/a.txt && stat -c %U dir/a.txt && rm dir/a.txt"), "0123456789user\n");
    let (status, body) = api.read(&guest, "dir/a.txt", "");
    let body: Value = serde_json::from_str(&body).unwrap();
    let missing = json!({ "code": 404, "message": "path '/home/user/dir/a.txt' does not exist" });
    assert_eq!((status, body), (404, missing));
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn an_overwritten_file_has_the_metadata_of_the_latest_write() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.write(&guest, "a", "x-metadata-author: me\r\n", b"1");
    api.write(&guest, "a", "", b"2");
    let info = api.ok(&guest, &fs("Stat"), &json!({ "path": "a" }));
    assert!(info["entry"]["metadata"].is_null(), "{info}");
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn a_form_has_many_files() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let part = |name: &str, text: &str| {
        format!("--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let form = [part("one", "1"), part("/tmp/deep/two", "2\r\n--"), "--B--\r\n".to_owned()].concat();
    let headers = "content-type: multipart/form-data; boundary=B\r\n";
    let told = api.files(&guest, ("POST", ""), headers, form.as_bytes());
    assert_eq!(told.status, 200);
    let paths: Vec<_> = told.json().as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
    assert_eq!(paths, ["/home/user/one", "/tmp/deep/two"]);
    assert_eq!(api.read(&guest, "/tmp/deep/two", "").1, "2\r\n--");
    let twice = [part("same", "1"), part("./same", "2"), "--B--\r\n".to_owned()].concat();
    assert_eq!(api.files(&guest, ("POST", ""), headers, twice.as_bytes()).status, 400);
    let broken = part("broken", "1");
    assert_eq!(api.files(&guest, ("POST", ""), headers, broken.as_bytes()).status, 400);
    assert_eq!(api.read(&guest, "broken", "").0, 404);
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn no_path_leads_out_of_the_jail() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let secret = api.env.path("work/secret");
    std::fs::write(&secret, "secret").unwrap();
    let secret = secret.display();
    api.out(
        &guest,
        &format!("ln -s /proc/1/root/{secret} magic; ln -s ../../../../../../..{secret} up; ln -s loop loop"),
    );
    for path in ["magic", "up", "loop", "../../../../proc/self/root/etc/passwd"] {
        let (status, body) = api.read(&guest, path, "");
        assert!(matches!(status, 400 | 403 | 404), "{path}: {status} {body}");
        assert!(!body.contains("secret\n") && !body.contains("root:"), "{path}: {body}");
    }
    let (status, json) = api.call(&guest, &fs("Stat"), &json!({ "path": "loop/x" }));
    assert_eq!((status, &json["code"]), (400, &json!("failed_precondition")));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(api.read(&guest, "/proc/sys/kernel/random/boot_id", ""), (200, boot));
    // Absolute links begin at the root directory of the jail.
    api.out(&guest, "echo inside > /tmp/file; ln -s /tmp/file link");
    assert_eq!(api.read(&guest, "link", ""), (200, "inside\n".to_owned()));
    api.write(&guest, "link", "", b"through the link");
    assert_eq!(api.out(&guest, "cat /tmp/file"), "through the link");
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn what_is_mounted_and_what_is_no_file_stays() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.out(&guest, "mkfifo fifo; echo x > file");
    for path in ["/dev/null", "/run/penfold-jail", "/home/user", "/tmp", "/dev"] {
        let (status, json) = api.call(&guest, &fs("Remove"), &json!({ "path": path }));
        assert_eq!((status, &json["code"]), (400, &json!("failed_precondition")), "{path}: {json}");
        for (from, to) in [(path, "moved"), ("file", path)] {
            let (status, json) = api.call(&guest, &fs("Move"), &json!({ "source": from, "destination": to }));
            assert_ne!(status, 200, "{from} to {to}: {json}");
        }
    }
    for path in ["/dev/null", "fifo"] {
        let headers = "content-type: application/octet-stream\r\n";
        let told = api.files(&guest, ("POST", &format!("path={path}")), headers, b"x");
        assert!(told.status == 400 && told.json()["message"].as_str().unwrap().contains("not a plain file"));
    }
    assert_eq!(api.out(&guest, "test -p fifo && test -c /dev/null && cat file"), "x\n");
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn directories_are_made_listed_moved_and_removed() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.ok(&guest, &fs("MakeDir"), &json!({ "path": "a/b" }));
    let (status, json) = api.call(&guest, &fs("MakeDir"), &json!({ "path": "a/b" }));
    assert_eq!((status, &json["code"]), (409, &json!("already_exists")));
    api.write(&guest, "a/file", "", b"x");
    let list = |path: &str, depth: u32| -> Vec<Value> {
        let told = api.ok(&guest, &fs("ListDir"), &json!({ "path": path, "depth": depth }));
        told["entries"].as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect()
    };
    assert_eq!(list("", 0), ["/home/user/a"]);
    assert_eq!(list("", 2), ["/home/user/a", "/home/user/a/b", "/home/user/a/file"]);
    for (path, status, code) in [("a/file", 400, "invalid_argument"), ("none", 404, "not_found")] {
        let (got, json) = api.call(&guest, &fs("ListDir"), &json!({ "path": path }));
        assert_eq!((got, &json["code"]), (status, &json!(code)), "{path}");
    }
    // The home directory and `/tmp` are on different mounts.
    for destination in ["c/deep", "/tmp/other/a"] {
        let source = if destination == "c/deep" { "a" } else { "c/deep" };
        let moved = api.ok(&guest, &fs("Move"), &json!({ "source": source, "destination": destination }));
        assert_eq!(moved["entry"]["type"], "FILE_TYPE_DIRECTORY", "{moved}");
        assert_eq!(api.call(&guest, &fs("Stat"), &json!({ "path": source })).0, 404);
        assert_eq!(api.read(&guest, &format!("{destination}/file"), ""), (200, "x".to_owned()));
    }
    for _ in 0..2 {
        assert_eq!(api.ok(&guest, &fs("Remove"), &json!({ "path": "/tmp/other" })), json!({}));
    }
    assert_eq!(api.call(&guest, &fs("Remove"), &json!({ "path": "/" })).0, 400);
    let headers =
        format!("content-type: application/json\r\nauthorization: Basic cm9vdDo=\r\n{}", guest.headers());
    let told = Told::read(&mut api.send("POST", &fs("Stat"), &headers, b"{}"));
    assert_eq!(told.status, 401);
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn watchers_have_the_events_since_the_last_look() {
    let mut api = Api::start();
    let guest = api.create(&json!({}));
    api.ok(&guest, &fs("MakeDir"), &json!({ "path": "w/sub" }));
    let made = api.ok(
        &guest,
        &fs("CreateWatcher"),
        &json!({ "path": "w", "recursive": true, "includeEntry": true }),
    );
    let id = made["watcherId"].clone();
    let events = |api: &Api| -> Vec<String> {
        let told = api.ok(&guest, &fs("GetWatcherEvents"), &json!({ "watcherId": id }));
        let text = |event: &Value| {
            format!("{} {}", event["type"].as_str().unwrap(), event["name"].as_str().unwrap())
        };
        told["events"].as_array().unwrap().iter().map(text).collect()
    };
    api.write(&guest, "w/sub/file", "", b"x");
    let kinds = ["CREATE", "CHMOD", "WRITE"].map(|kind| format!("EVENT_TYPE_{kind} sub/file"));
    assert_eq!(events(&api), kinds);
    assert!(events(&api).is_empty());
    let other = api.create(&json!({}));
    let (status, _) = api.call(&other, &fs("GetWatcherEvents"), &json!({ "watcherId": id }));
    assert_eq!(status, 404, "a watcher of another sandbox");
    api.delete(&other);
    api.replace_server();
    let (status, json) = api.call(&guest, &fs("GetWatcherEvents"), &json!({ "watcherId": id }));
    assert_eq!((status, &json["code"]), (404, &json!("not_found")));
    let made = api.ok(&guest, &fs("CreateWatcher"), &json!({ "path": "w" }));
    api.ok(&guest, &fs("RemoveWatcher"), &json!({ "watcherId": made["watcherId"] }));
    assert_eq!(api.call(&guest, &fs("RemoveWatcher"), &json!({ "watcherId": made["watcherId"] })).0, 404);
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn a_stream_has_events_and_ends_with_the_sandbox() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let headers = "keepalive-ping-interval: 1\r\n";
    let mut frames = api.stream(&guest, &fs("WatchDir"), headers, &json!({ "path": "." }));
    assert_eq!(frames.next(), Some((0, json!({ "start": {} }))));
    assert_eq!(frames.next(), Some((0, json!({ "keepalive": {} }))));
    api.out(&guest, "mkdir made");
    assert_eq!(event(&mut frames), ("EVENT_TYPE_CREATE".to_owned(), "made".to_owned()));
    api.delete(&guest);
    let (flags, last) = std::iter::from_fn(|| frames.next()).last().expect("a last frame");
    assert_eq!((flags, &last["error"]["code"]), (2, &json!("unavailable")));
    let guest = api.create(&json!({}));
    for (path, code) in [("none", "not_found"), ("/etc/passwd", "invalid_argument")] {
        let mut frames = api.stream(&guest, &fs("WatchDir"), "", &json!({ "path": path }));
        let (flags, last) = frames.next().unwrap();
        assert_eq!((flags, &last["error"]["code"]), (2, &json!(code)), "{path}");
    }
    let deadline = "connect-timeout-ms: 300\r\n";
    let mut frames = api.stream(&guest, &fs("WatchDir"), deadline, &json!({ "path": "." }));
    let (flags, last) = std::iter::from_fn(|| frames.next()).last().expect("a last frame");
    assert_eq!((flags, &last["error"]["code"]), (2, &json!("deadline_exceeded")));
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn a_signed_address_needs_no_token() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let token = guest.token.clone().expect("an access token");
    api.write(&guest, "a", "", b"x");
    let bare = Guest { token: None, ..guest.clone() };
    let sign = |text: String| {
        let hash = STANDARD_NO_PAD.encode(Sha256::digest(text));
        format!("v1_{}", hash.replace('+', "%2B").replace('/', "%2F"))
    };
    let get = |query: String| {
        let told = api.files(&bare, ("GET", &query), "", b"");
        let message = if told.status == 200 { Value::Null } else { told.json()["message"].clone() };
        (told.status, message)
    };
    let signed = sign(format!("a:read::{token}"));
    assert_eq!(get(format!("path=a&signature={signed}")), (200, Value::Null));
    let signed_for = |end: u64| sign(format!("a:read:user:{token}:{end}"));
    let query =
        |end: u64| format!("path=a&username=user&signature={}&signature_expiration={end}", signed_for(end));
    assert_eq!(get(query(SECONDS)), (200, Value::Null));
    assert_eq!(get(query(5)), (401, json!("signature is already expired")));
    assert_eq!(get(format!("path=b&signature={signed}")), (401, json!("invalid signature")));
    assert_eq!(get("path=a".to_owned()), (401, json!("missing signature query parameter")));
    let headers = "content-type: application/octet-stream\r\n";
    let told = api.files(&bare, ("POST", &format!("path=a&signature={signed}")), headers, b"y");
    assert_eq!(told.status, 401, "a right to read is none to write");
    // A browser sends no headers.
    let other = api.create(&json!({}));
    let plain = |query: &str| Told::read(&mut api.send("GET", &format!("/files?{query}"), "", b""));
    let told = plain(&query(SECONDS));
    assert_eq!((told.status, told.body.as_slice()), (200, &b"x"[..]));
    assert_eq!(plain(&query(5)).json()["message"], "signature is already expired");
    assert_eq!(plain("path=a&signature=v1_x").json()["message"], "invalid signature");
    assert_eq!(plain("path=a").status, 404);
    api.delete(&other);
    let signed = sign(format!("a:write::{token}"));
    let told = api.files(&bare, ("POST", &format!("path=a&signature={signed}")), headers, b"y");
    assert_eq!(told.status, 200);
    assert_eq!(api.read(&guest, "a", "").1, "y");
    api.delete(&guest);
}

/// spec: 36.9
#[test]
fn files_are_joined() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.write(&guest, "1", "", b"one ");
    api.write(&guest, "2", "", b"two");
    let (status, json) =
        api.call(&guest, "/files/compose", &json!({ "source_paths": ["1", "2"], "destination": "all/of" }));
    assert_eq!((status, &json["path"]), (200, &json!("/home/user/all/of")));
    assert_eq!(api.read(&guest, "all/of", "").1, "one two");
    assert_eq!(api.read(&guest, "1", "").0, 404);
    let (status, _) =
        api.call(&guest, "/files/compose", &json!({ "source_paths": ["1"], "destination": "x" }));
    assert_eq!(status, 404);
    api.delete(&guest);
}
