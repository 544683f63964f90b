//! Output of penfold as these tests read it: text, arrays of JSON, and which sandboxes are listed.

use std::ffi::OsStr;
use std::fs;

use serde_json::Value;

use crate::support::{Running, Sandbox, TestEnv};

/// The standard output of a command that succeeds.
#[track_caller]
pub fn shown<S: AsRef<OsStr>>(env: &TestEnv, words: impl IntoIterator<Item = S>) -> String {
    env.call(words).with_code(0).out()
}

/// The array of JSON that a command prints.
#[track_caller]
pub fn array<S: AsRef<OsStr>>(env: &TestEnv, words: impl IntoIterator<Item = S>) -> Vec<Value> {
    let finished = env.call(words);
    finished.json().as_array().unwrap_or_else(|| panic!("no array: {}", finished.err())).clone()
}

/// The listed sandboxes of the test's own state root: `ps` also lists orphans of other tests.
pub fn own(mut listed: Vec<Value>) -> Vec<Value> {
    listed.retain(|one| one["claimed"] == true);
    listed
}

/// The ids in an array.
pub fn ids(listed: &[Value]) -> Vec<&str> {
    listed.iter().map(|one| one["id"].as_str().unwrap()).collect()
}

/// The ids of these sandboxes that lines begin with, in the order of the lines.
pub fn of(sandboxes: &[&Sandbox], lines: &str) -> Vec<String> {
    let id = |line: &str| line.get(..12).unwrap_or_default().to_owned();
    let is_one = |id: &String| sandboxes.iter().any(|sandbox| sandbox.id == *id);
    lines.lines().map(id).filter(is_one).collect()
}

/// Kills a sandbox, and waits until its supervisors have exited.
#[track_caller]
pub fn kill(env: &TestEnv, sandbox: &Sandbox) {
    sandbox.call(env, &["kill", "ID"]).with_code(0);
    sandbox.await_end();
}

/// Whether the main thread of a command sleeps in poll(2) or nanosleep(2).
pub fn is_waiting(command: &Running) -> bool {
    let wchan = fs::read_to_string(format!("/proc/{}/wchan", command.pid())).unwrap_or_default();
    wchan.contains("poll") || wchan.contains("nanosleep")
}

/// Whether a command has a descriptor whose link in `/proc/PID/fd` contains this.
pub fn has_open(command: &Running, link: &str) -> bool {
    let entries = fs::read_dir(format!("/proc/{}/fd", command.pid())).into_iter().flatten().flatten();
    let mut links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|to| to.to_string_lossy().contains(link))
}
