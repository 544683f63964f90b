//! Tenants: whoever has a token lists, reads, executes in, ends and is told of the sandboxes of its tenant only.

mod cloudflare;
mod reload;
mod routes;
mod separate;

use serde_json::{Value, json};

use super::native::{Reply, ask};
use super::{Server, TOKEN};
use crate::support::TestEnv;

/// A token; the first is alice's, the next one too, but it is read-only.
const ALICE: &str = "alice-0123456789abcdef";
const ALICE_READS: &str = "alice-reads-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";
const OPS: &str = "ops-0123456789abcdef";

/// The lines for all of them.
fn all_lines() -> String {
    format!("alice {ALICE}\n# for the screen\nalice {ALICE_READS} read-only\nbob {BOB}\nops {OPS} admin\n")
}

/// Writes the file with tokens, and returns its path.
fn write_tokens(env: &TestEnv, lines: &str) -> String {
    let path = env.path("work/tokens");
    std::fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Starts a server for these lines. Its Unix socket serves a caller without a token, who reaches everything.
fn serve(env: &TestEnv, lines: &str) -> Server {
    Server::start(env, &["--token-file", &write_tokens(env, lines)])
}

/// Asks with a token, as JSON.
#[track_caller]
fn by(server: &Server, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let header = if token.is_empty() { String::new() } else { format!("x-penfold-token: {token}\r\n") };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    ask(server, method, path, &header, body.as_bytes())
}

/// Starts a sandbox with a token; returns its id.
#[track_caller]
fn create(server: &Server, token: &str, name: &str) -> String {
    let body = json!({ "command": ["sleep", "600"], "name": name, "dir": "/tmp" });
    let made = by(server, token, "POST", "/v1/sandboxes", &body).with(201).json();
    assert_eq!(made["name"], name);
    made["id"].as_str().unwrap().to_owned()
}

/// The names in a list, with a token.
#[track_caller]
fn names(server: &Server, token: &str, query: &str) -> Vec<String> {
    let page = by(server, token, "GET", &format!("/v1/sandboxes{query}"), &Value::Null).with(200).json();
    let own = page["sandboxes"].as_array().unwrap().iter().filter(|one| one["claimed"] == true);
    let mut names: Vec<String> = own.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}
