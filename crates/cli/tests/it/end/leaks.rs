//! Fixtures: the leaks that `penfold doctor` and `gc` report, and directories that resemble leaks.

use serde_json::Value;

use super::standing::Directory;
use crate::support::{Process, TestEnv};

/// What `doctor` finds.
#[track_caller]
pub fn doctor(env: &TestEnv) -> Value {
    env.call(["doctor", "--json"]).json()
}

/// The leaks of this sandbox that `doctor` or `gc` names.
#[track_caller]
pub fn leaks_of<'a>(found: &'a Value, id: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak["id"] == id).collect()
}

/// The leaks that are described with this text.
#[track_caller]
pub fn leaks_with<'a>(found: &'a Value, text: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak.to_string().contains(text)).collect()
}

/// The id in the marker of a member.
#[track_caller]
pub fn carried_id(member: &Process) -> String {
    let environment = std::fs::read(format!("/proc/{}/environ", member.pid())).unwrap();
    let marker = environment.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(b"PENFOLD_SANDBOX="));
    String::from_utf8(marker.expect("a marker").to_vec()).unwrap()
}

/// Makes a directory that is named like the scratch directory of a sandbox.
#[track_caller]
pub fn new_directory(env: &TestEnv, id: &str) -> Directory {
    Directory::make(env.path("tmp").join(format!("penfold-{id}"))).unwrap()
}
