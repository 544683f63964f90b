//! Every verb that says something of a sandbox with survivors.

use serde_json::Value;

use super::Mode;
use super::member::{NAME, PATIENCE, Scene};

/// What a sandbox is that has not ended and cannot be ended.
const STATUS: [&str; 2] = ["unkillable", "orphaned"];

/// Runs every verb, and returns those whose answer is wrong. With `supervised`, the sandbox has a supervisor.
pub fn wrong(scene: &Scene, supervised: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let id = scene.id.as_str();
    for verb in [&["ps", "--json"][..], &["ps", "-a", "--json"], &["inspect", id], &["status", "--json", id]]
    {
        let told = scene.call(verb);
        let all: Value = serde_json::from_str(&told.out()).unwrap_or_default();
        let one = all.as_array().and_then(|all| all.iter().find(|one| one["id"] == id)).cloned();
        let status = one.unwrap_or_default()["status"].as_str().unwrap_or_default().to_owned();
        if told.code() != Some(0) || !STATUS.contains(&status.as_str()) {
            wrong.push(format!("{verb:?}: {:?}, status {status:?}", told.code()));
        }
    }
    let mut expect = |verb: &[&str], codes: &[i32], parts: &[&str]| {
        let told = scene.call(verb);
        let said = [told.out(), told.err()].concat();
        let is_right = told.code().is_some_and(|code| codes.contains(&code))
            && parts.iter().all(|part| said.contains(part))
            && !(said.contains("verified gone")
                || said.contains("removed")
                || said.contains("no leaks of ours"));
        if !is_right {
            wrong.push(format!("{verb:?}: {:?}, {said:?}", told.code()));
        }
    };
    let pids = scene.pids();
    // Without room on the disk, only a supervisor knows which processes they are.
    let named: Vec<&str> =
        if scene.has_room() { pids.iter().map(String::as_str).collect() } else { Vec::new() };
    expect(&["status", id], &[0], &named);
    expect(&["tree", id], &[0], &[id]);
    expect(&["wait", "--timeout", "20s", id], &[120], &[]);
    expect(&["logs", id], &[0, 1], &[]);
    expect(&["doctor"], &[1], &[&named[..], &["could not be ended", id]].concat());
    expect(&["exec", id, "true"], &[125], &[]);
    expect(&["restart", id], &[1, 5, 120], &[]);
    expect(&["rm", id], &[2], &[id]);
    if supervised {
        expect(&["run", "--name", NAME, "true"], &[125], &[NAME]);
    }
    for verb in [&["stop", "-t", "10ms"][..], &["kill"], &["rm", "-f"]] {
        expect(&[verb, &["--patience", PATIENCE, id]].concat(), &[5], &[&named[..], &["not gone"]].concat());
    }
    expect(&["kill", "--all", "--patience", PATIENCE, "-f"], &[5], &["not gone"]);
    expect(&["gc", "-f", "--patience", PATIENCE], &[5], &[id]);
    expect(&["gc", "-f", "--patience", PATIENCE, id], &[5], &[id]);
    // A report, if there is one, says what is left.
    let told = scene.call(&["report", "--json", id]);
    let report: Value = serde_json::from_str(&told.out()).unwrap_or_default();
    let report = report.as_array().and_then(|all| all.first()).cloned().unwrap_or(report);
    if told.code() == Some(0) && report["verified"] != false {
        wrong.push(format!("report: {report}"));
    }
    if scene.mode == Mode::Foreground && scene.has_room() && told.code() != Some(0) {
        wrong.push(format!("report: {:?}, {}", told.code(), told.err()));
    }
    let listed = scene.env.listed_ids(&["-a"]);
    if listed != [id] {
        wrong.push(format!("after all of them `ps -a` lists {listed:?}"));
    }
    wrong
}
