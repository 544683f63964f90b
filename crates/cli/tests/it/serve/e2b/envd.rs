//! The data plane of the machine itself.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Api, Guest, Told, read_head, running};
use crate::serve::Server;
use crate::support::{TestEnv, USER, is_root, skip, wait_until};

const ENVD: [&str; 2] = ["--api", "envd"];
const LIST: &str = "/process.Process/List";

/// A server for this machine on a Unix socket, with its own user as the usual one.
fn machine() -> (Api, Guest) {
    let env = TestEnv::new();
    let server = Server::start(&env, &ENVD);
    let api = Api { env, server };
    let own = rustix::process::geteuid().as_raw().to_string();
    assert_eq!(init(&api, "", &json!({ "defaultUser": own })), 204);
    // As clients in debug mode send it.
    (api, Guest { id: "debug_sandbox_id".to_owned(), token: None })
}

/// Ends the server with SIGKILL, and starts another one.
fn replace(api: &mut Api) {
    api.server.running.signal(rustix::process::Signal::KILL);
    wait_until("the server is gone", || api.server.try_connect().is_err());
    let fresh = Server::start(&api.env, &ENVD);
    std::mem::replace(&mut api.server, fresh).running.finish().with_code(137);
}

fn status(api: &Api, method: &str, path: &str, headers: &str, body: &[u8]) -> u16 {
    read_head(&mut api.send(method, path, &format!("content-type: application/json\r\n{headers}"), body)).0
}

fn init(api: &Api, headers: &str, body: &Value) -> u16 {
    status(api, "POST", "/init", headers, body.to_string().as_bytes())
}

fn token(token: &str) -> String {
    format!("x-access-token: {token}\r\n")
}

fn user(name: &str) -> String {
    format!("authorization: Basic {}\r\n", STANDARD.encode(format!("{name}:")))
}

/// The token that was set is in force, `other` is not.
#[track_caller]
fn assert_token(api: &Api, own: &str, other: &str) {
    for (path, method) in [(LIST, "POST"), ("/envs", "GET"), ("/metrics", "GET")] {
        assert_eq!(status(api, method, path, &token(own), b"{}"), 200, "{path}");
        for headers in [String::new(), token(other), token("")] {
            assert_eq!(status(api, method, path, &headers, b"{}"), 401, "{path} {headers}");
        }
    }
    assert_eq!(status(api, "GET", "/files?path=/etc/passwd", "", b""), 401);
    assert_eq!(status(api, "GET", "/health", "", b""), 204);
}

/// spec: 36.11
#[test]
fn the_token_that_was_set_is_needed_also_after_a_restart() {
    let (mut api, _) = machine();
    assert_eq!(status(&api, "POST", LIST, "", b"{}"), 200);
    assert_eq!(init(&api, "", &json!({ "accessToken": "first", "envVars": { "A": "1" } })), 204);
    assert_token(&api, "first", "second");
    // Another one needs the present one, in the header or as its own.
    for (headers, body) in [(String::new(), "second"), (token("second"), "second"), (token("x"), "")] {
        assert_eq!(init(&api, &headers, &json!({ "accessToken": body })), 401);
    }
    assert_eq!(status(&api, "POST", "/init", "", b"{"), 401);
    assert_eq!(status(&api, "POST", "/init", &token("first"), b"{"), 400);
    assert_eq!(init(&api, "", &json!({ "accessToken": "first", "envVars": { "B": "2" } })), 204);
    replace(&mut api);
    assert_token(&api, "first", "second");
    assert_eq!(init(&api, &token("first"), &json!({ "accessToken": "second" })), 204);
    assert_token(&api, "second", "first");
    let variables = Told::read(&mut api.send("GET", "/envs", &token("second"), b"")).json();
    assert_eq!(variables, json!({ "A": "1", "B": "2" }));
    let metrics = Told::read(&mut api.send("GET", "/metrics", &token("second"), b"")).json();
    assert!(metrics["mem_total"].as_u64() > metrics["mem_used"].as_u64(), "{metrics}");
    // A signed address of a file.
    let signature = STANDARD_NO_PAD.encode(Sha256::digest("/etc/passwd:read::second"));
    let signature = signature.replace('+', "%2B").replace('/', "%2F");
    let path = format!("/files?path=/etc/passwd&signature=v1_{signature}");
    assert_eq!(status(&api, "GET", &path, "", b""), 200);
    assert_eq!(status(&api, "GET", &path.replace("passwd", "group"), "", b""), 401);
    // What cannot be read opens nothing.
    let file = api.env.root().join("envd.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&file, "{").unwrap();
    for headers in [String::new(), token("second")] {
        assert_eq!(status(&api, "POST", LIST, &headers, b"{}"), 500);
        assert_eq!(init(&api, &headers, &json!({})), 500);
    }
}

/// spec: 36.11
#[test]
fn a_port_needs_a_token_of_the_file_before_one_is_set() {
    let own = "own-0123456789abcdef";
    let env = TestEnv::new();
    let path = env.path("work/tokens");
    std::fs::write(&path, own).unwrap();
    let words = [&ENVD[..], &["--token-file", path.to_str().unwrap()]].concat();
    let server = Server::start_tcp(&env, &words);
    let api = Api { env, server };
    let wanted = json!({ "accessToken": own });
    for headers in ["", "x-access-token: x\r\n"] {
        assert_eq!(status(&api, "POST", LIST, headers, b"{}"), 401);
        assert_eq!(status(&api, "GET", "/files?path=/etc/passwd&signature=v1_x", headers, b""), 401);
        assert_eq!(init(&api, headers, &wanted), 401);
    }
    assert_eq!(status(&api, "POST", LIST, &token(own), b"{}"), 200);
    assert_eq!(init(&api, &token(own), &json!({ "accessToken": "set" })), 204);
    assert_token(&api, "set", "x");
    assert_eq!(status(&api, "POST", LIST, &token(own), b"{}"), 200);
}

/// spec: 36.11
#[test]
fn web_pages_reach_no_machine_without_a_token() {
    let env = TestEnv::new();
    let server = Server::start_tcp(&env, &["--api", "envd", "--insecure-no-token"]);
    let api = Api { env, server };
    assert_eq!(status(&api, "POST", LIST, "", b"{}"), 200);
    for headers in ["origin: https://example.org\r\n", "host: rebound.example.org\r\n"] {
        assert_eq!(status(&api, "POST", LIST, headers, b"{}"), 403, "{headers}");
        assert_eq!(init(&api, headers, &json!({ "accessToken": "x" })), 403, "{headers}");
    }
}

/// spec: 36.10
#[test]
fn envd_and_cloudflare_exclude_each_other() {
    let env = TestEnv::new();
    let refused = env.begin(["serve", "--api", "cloudflare,envd"]).finish().with_code(2);
    assert!(refused.err().contains("answers every path"), "{}", refused.err());
}

/// spec: 36.12
#[test]
fn a_command_runs_on_the_machine_and_a_kill_ends_its_tree() {
    let (api, guest) = machine();
    assert_eq!(api.ok(&guest, LIST, &json!({})), json!({ "processes": [] }));
    let kill = |pid: u64| {
        let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        api.call(&guest, "/process.Process/SendSignal", &message).0
    };
    assert_eq!(kill(4711), 404);
    assert_eq!(init(&api, "", &json!({ "envVars": { "A": "1", "B": "1" } })), 204);
    let fields = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", "echo $A $B; pwd"], "envs": { "B": "2" }, "cwd": "/tmp" } });
    let (said, end) = api.start_with(&guest, "", &fields, "").finish();
    assert_eq!((said.stdout.as_str(), &end["exitCode"]), ("1 2\n/tmp\n", &json!(0)));
    let mut command = api.start_command(&guest, "setsid sleep 1071 & (sleep 1071 &); echo up; sleep 1071");
    let pid = command.pid();
    command.await_output("up");
    wait_until("three live", || running("sleep 1071") == 3);
    // The pid is that of the machine.
    assert!(std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().starts_with("/bin/sh\0"));
    assert_eq!(api.out(&guest, &format!("kill -0 {pid} && echo lives")), "lives\n");
    assert_eq!((kill(pid), running("sleep 1071")), (200, 0));
    assert_eq!(command.finish().1["status"], "signal: killed");
    // What a command leaves goes on.
    api.out(&guest, "setsid sleep 1072 >/dev/null 2>&1 &");
    wait_until("it lives", || running("sleep 1072") == 1);
    // All commands are execs of one sandbox; after its end there is another one.
    let ps = || api.env.call(["ps", "-q"]).out().lines().map(str::to_owned).collect::<Vec<_>>();
    let first = ps();
    assert_eq!(first.len(), 1);
    api.env.call(["stop", "-t", "1s", &first[0]]).with_code(0);
    assert_eq!(running("sleep 1072"), 0);
    assert_eq!(api.out(&guest, "echo usable"), "usable\n");
    assert!(ps().len() == 1 && ps() != first);
}

/// spec: 36.12
#[test]
fn a_command_goes_on_without_the_server() {
    let (mut api, guest) = machine();
    let mut command = api.start_command(&guest, "echo up; read line; echo $line; exit 5");
    let pid = command.pid();
    command.await_output("up");
    let fields = json!({ "stdin": true, "tag": "kept" });
    let mut typed = api.start_with(&guest, "", &fields, "echo up; read line; echo got $line; exit 5");
    typed.await_output("up");
    drop(command);
    replace(&mut api);
    let listed = api.ok(&guest, LIST, &json!({}));
    assert!(listed["processes"].as_array().unwrap().iter().any(|one| one["tag"] == "kept"), "{listed} {pid}");
    let select = json!({ "process": { "tag": "kept" } });
    let mut again = api.stream(&guest, "/process.Process/Connect", "", &select);
    again.pid();
    let input = json!({ "process": { "tag": "kept" }, "input": { "stdin": STANDARD.encode("it\n") } });
    api.ok(&guest, "/process.Process/SendInput", &input);
    let (said, end) = again.finish();
    assert_eq!((said.stdout.as_str(), &end["exitCode"]), ("got it\n", &json!(5)));
}

/// spec: 36.12
#[test]
fn root_runs_commands_as_any_user_and_others_as_themselves() {
    let (api, guest) = machine();
    let who = |name: &str| {
        let message = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", "echo $(id -u) $USER $HOME $$; kill -STOP $$"] } });
        let mut stream = api.stream(&guest, "/process.Process/Start", &user(name), &message);
        let pid = stream.pid();
        let event = stream.event();
        let said =
            STANDARD.decode(event["data"]["stdout"].as_str().unwrap_or_else(|| panic!("{event}"))).unwrap();
        let kill = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        api.ok(&guest, "/process.Process/SendSignal", &kill);
        (String::from_utf8(said).unwrap(), pid)
    };
    let message = json!({ "process": { "cmd": "/bin/true" } });
    let unknown = api.stream(&guest, "/process.Process/Start", &user("no-such-user"), &message).error();
    assert_eq!(unknown["code"], "unauthenticated");
    assert!(
        unknown["message"].as_str().unwrap().starts_with("invalid username: 'no-such-user'"),
        "{unknown}"
    );
    if !is_root() {
        let other = api.stream(&guest, "/process.Process/Start", &user("root"), &message).error();
        assert_eq!(other["code"], "unauthenticated");
        return skip("only root can become another user");
    }
    let (said, pid) = who("nobody");
    assert_eq!(said, format!("{USER} nobody /nonexistent {pid}\n"));
    let (said, pid) = who("root");
    assert_eq!(said, format!("0 root /root {pid}\n"));
    // The terminal is the user's, also by its name.
    let pty = json!({ "pty": { "size": { "cols": 80, "rows": 24 } }, "stdin": true });
    let script = "stat -c %u $(tty); echo named > $(tty)";
    let mut terminal = api.start_with(&guest, &user("nobody"), &pty, script);
    terminal.await_output(&format!("{USER}\r\nnamed\r\n"));
    // The user that `/init` has set need not be there yet.
    assert_eq!(init(&api, "", &json!({ "defaultUser": "no-such-user" })), 204);
    assert_eq!(api.stream(&guest, "/process.Process/Start", "", &message).error()["code"], "unauthenticated");
    assert_eq!(init(&api, "", &json!({ "defaultUser": "nobody" })), 204);
    assert_eq!(api.out(&guest, "id -un"), "nobody\n");
}

/// spec: 36.13
#[test]
fn files_are_those_of_the_machine_with_the_rights_of_the_user() {
    let (api, guest) = machine();
    let top = api.env.path("work");
    let path = |name: &str| top.join(name).to_str().unwrap().to_owned();
    let write = |name: &str, query: &str| {
        let headers = "content-type: application/octet-stream\r\n";
        read_head(&mut api.send("POST", &format!("/files?path={}{query}", path(name)), headers, b"text")).0
    };
    let read =
        |name: &str, query: &str| status(&api, "GET", &format!("/files?path={}{query}", path(name)), "", b"");
    assert_eq!(write("dir/file", ""), 200);
    assert_eq!(std::fs::read(path("dir/file")).unwrap(), b"text");
    let stat = json!({ "path": path("dir/file") });
    let entry = api.ok(&guest, "/filesystem.Filesystem/Stat", &stat);
    assert_eq!((&entry["entry"]["size"], &entry["entry"]["path"]), (&json!("4"), &json!(path("dir/file"))));
    assert_eq!((read("dir/file", ""), read("none", "")), (200, 404));
    assert_eq!(
        (read("dir/file", "&username=no-such-user"), write("x", "&username=no-such-user")),
        (401, 401)
    );
    assert_eq!(write("a:b", "&username=nobody:0"), 401);
    if !is_root() {
        assert_eq!(read("dir/file", "&username=root"), 401);
        return skip("only root can act as another user");
    }
    assert_eq!(entry["entry"]["owner"], "root");
    let mode = |name: &str, mode| {
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("dir/file", 0o600);
    let may_enter = is_open(&top);
    assert_eq!((read("dir/file", "&username=nobody"), write("dir/own", "&username=nobody")), (403, 403));
    mode("dir", 0o777);
    if may_enter {
        assert_eq!(write("dir/sub/own", "&username=nobody"), 200);
        let own = std::fs::metadata(path("dir/sub/own")).unwrap();
        assert_eq!((own.uid(), std::fs::metadata(path("dir/sub")).unwrap().uid()), (USER, USER));
    }
    // The thread has the rights of the server again.
    assert_eq!((read("dir/file", ""), write("dir/file", "")), (200, 200));
    let make = json!({ "path": path("dir/file/x") });
    let headers = format!("content-type: application/json\r\n{}", user("nobody"));
    let told = Told::read(&mut api.send(
        "POST",
        "/filesystem.Filesystem/MakeDir",
        &headers,
        make.to_string().as_bytes(),
    ));
    assert!([400, 403].contains(&told.status), "{}", told.json());
}

/// Tells whether every user may enter a directory.
fn is_open(path: &Path) -> bool {
    path.ancestors().all(|path| path.metadata().is_ok_and(|meta| meta.mode() & 0o001 != 0))
}
