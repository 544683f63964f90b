//! The published npm clients of the Cloudflare API, from plain Node: `tests/npm/drive.mjs` has the checks.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Server;
use crate::support::{Running, TestEnv, penfold, skip};

const SERVE: [&str; 3] = ["--api", "cloudflare", "--insecure-no-token"];

/// Where `scripts/setup` installs the clients.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/npm")
}

/// Drives a server with one client.
fn drive(client: &str, transport: &str) {
    run("drive.mjs", &[client], &[transport]);
}

/// Runs a program against a server; each check must pass, and nothing may be left.
fn run(program: &str, before: &[&str], after: &[&str]) {
    run_against(|env| Server::start_tcp(env, &SERVE), program, before, after);
}

/// The same with another server.
fn run_against(start: impl FnOnce(&TestEnv) -> Server, program: &str, before: &[&str], after: &[&str]) {
    let clients = clients();
    let modules: &[&str] = if before.is_empty() { &["capnweb"] } else { before };
    if !modules.iter().all(|module| clients.join("node_modules").join(module).is_dir()) {
        return skip("the npm clients are not installed: `scripts/setup` does so");
    }
    let env = TestEnv::new();
    let server = start(&env);
    let directory = env.path("work/shared");
    std::fs::create_dir(&directory).unwrap();
    let mut node = Command::new("node");
    // Node 20 has the class for that only.
    node.current_dir(&clients)
        .arg("--experimental-websocket")
        .arg("--import")
        .arg("./hooks.mjs")
        .arg(program);
    node.args(before).arg(format!("http://{}", server.address())).arg(&directory).args(after);
    // A cache of compiled code would stay in TMPDIR.
    let done = node.env("NODE_DISABLE_COMPILE_CACHE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.trim_end().ends_with(" passed, 0 failed"), "{said}");
    let log = server.end();
    assert!(!log.contains("panicked"), "{log}");
    // The sandbox of commands without a session.
    let ended = env.call(["rm", "--all", "-f"]);
    assert!(matches!(ended.code(), Some(0 | 1)), "{}", ended.err());
    env.assert_nothing_left();
}

#[test]
fn client_0_7_finds_every_route_as_it_expects() {
    drive("client-0.7", "http");
}

#[test]
fn client_0_8_finds_every_route_as_it_expects() {
    drive("client-0.8", "http");
}

#[test]
fn client_0_9_finds_every_route_as_it_expects() {
    drive("client-0.9", "http");
}

#[test]
fn client_0_10_finds_every_route_as_it_expects() {
    drive("client-0.10", "http");
}

#[test]
fn client_0_12_finds_every_route_as_it_expects() {
    drive("client-0.12", "http");
}

/// spec: 15.20
#[test]
fn client_0_7_finds_every_route_over_a_websocket() {
    drive("client-0.7", "websocket");
}

/// spec: 15.20
#[test]
fn client_0_12_finds_every_route_over_a_websocket() {
    drive("client-0.12", "websocket");
}

/// spec: 15.22
#[test]
fn client_0_12_finds_every_method_over_rpc() {
    drive("client-0.12", "rpc");
}

/// spec: 15.22
#[test]
fn the_class_of_the_prerelease_of_0_13_finds_what_is_served() {
    run("next.mjs", &["client-0.13"], &[]);
}

/// The one use of a session keeps it, or there is none.
fn use_idly(way: &str) {
    let words: Vec<&str> = SERVE.into_iter().chain(["--session-idle", "1s"]).collect();
    run_against(|env| Server::start_tcp(env, &words), "next-idle.mjs", &["client-0.13"], &[way]);
}

/// spec: 15.24
#[test]
fn a_session_that_a_client_of_0_13_uses_no_more_ends() {
    use_idly("none");
}

/// spec: 15.24
#[test]
fn a_session_ends_not_while_a_client_of_0_13_asks_for_its_process() {
    use_idly("asked");
}

/// spec: 15.24
#[test]
fn a_session_ends_not_while_a_client_of_0_13_follows_its_process() {
    use_idly("followed");
}

/// spec: 15.24
#[test]
fn a_session_ends_not_while_a_client_of_0_13_shows_its_terminal() {
    use_idly("shown");
}

/// spec: 15.15
#[test]
fn a_client_of_0_13_gets_no_wrong_answer_from_a_server_with_few_descriptors() {
    let start = |env: &TestEnv| {
        let mut command = env.command("sh");
        command.args(["-c", "ulimit -n 48; exec \"$@\"", "sh"]).arg(penfold()).arg("--root").arg(env.root());
        Server::of(Running::start(command.args(["serve", "--listen", "127.0.0.1:0"]).args(SERVE)))
    };
    run_against(start, "next-full.mjs", &["client-0.13"], &[]);
}

/// spec: 15.22
#[test]
fn capnweb_calls_each_method_and_garbage_ends_its_session_only() {
    run("capnweb.mjs", &[], &[]);
}
