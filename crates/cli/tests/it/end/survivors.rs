//! What cannot be ended is a result, not a hang: named in time, kept in sight, and gone once that is possible.
//!
//! Needs root and the program `testkit`: `cargo nextest run -p penfold -p penfold-testkit`. That a member which became
//! root is named is a case of the matrix (`expect::Expected::Unended`); here is what the report says of it.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::time::{Duration, Instant};

use penfold_testkit::proc::{Handle, Identity};
use penfold_testkit::{FrozenFs, FrozenFsError, Tool, ToolExit, Tree};
use rustix::process::Signal;
use serde_json::Value;

use crate::support_e1::{Ground, Level, Shape, Who};

/// The patience of a kill, and a moment to say so on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// How long it may take to end what can be ended at last.
const SOON: Duration = Duration::from_secs(10);

/// The report as it is now; while it is rewritten, nothing.
fn report(ground: &Ground) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(ground.path("report.json")).ok()?).ok()
}

/// What the report says of this survivor.
fn survivor(ground: &Ground, who: Identity) -> Value {
    let report = report(ground).unwrap();
    assert_eq!(report["verified"], false, "{report}");
    let survivors = report["survivors"].as_array().cloned().unwrap_or_default();
    let found =
        survivors.iter().find(|survivor| survivor["pid"] == who.pid && survivor["start_time"] == who.start);
    found.cloned().unwrap_or_else(|| panic!("{who} is not in {report}"))
}

/// Ends the leader and waits for penfold's answer, which must come in time and be 120.
fn answer(tree: &Tree) {
    let begun = Instant::now();
    tree.tell_leader_to_exit().unwrap();
    let exit = tree.await_tool_exit(BOUND);
    assert_eq!(exit, Some(ToolExit::Code(120)), "after {:?}: {}", begun.elapsed(), tree.stderr());
}

fn gone(ground: &Ground, tree: &Tree) {
    let survivors = tree.await_gone(SOON);
    assert!(survivors.is_empty(), "{survivors:?}");
    let left = ground.await_clean(SOON);
    assert!(left.is_empty(), "{left:?}");
    let verified = report(ground).is_some_and(|report| report["verified"] == true);
    assert!(verified, "the report of the end: {:?}", report(ground));
}

fn tool(ground: &Ground, level: Level) -> Tool {
    ground.tool(Shape::Pair, level, &["--report", ground.path("report.json").to_str().unwrap()])
}

fn writer_in_state_d(level: Level) {
    let ground = match Ground::new(Who::Root) {
        Ok(ground) => ground,
        Err(why) => return println!("skipped: {why}"),
    };
    // Before the tree, so that it thaws before the tree is ended, whatever happens.
    let frozen = match FrozenFs::new() {
        Ok(frozen) => frozen,
        Err(FrozenFsError::Refused(why)) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    let path = frozen.path();
    let tool = tool(&ground, level).tree_options(["--path".into(), path.into_os_string()]);
    let tree = Tree::spawn(&tool, "frozen-writer").unwrap();
    tree.assert_alive();
    let writer = tree.members()[1];
    answer(&tree);
    let said = tree.stderr();
    let named = format!("pid {}", writer.pid);
    let line = said.lines().find(|line| line.contains(&named)).unwrap_or_else(|| panic!("{named}: {said}"));
    assert!(line.contains("state D"), "{line}");
    let entry = survivor(&ground, writer);
    assert_eq!(entry["state"], "D", "{entry}");
    let channel = entry["wait_channel"].as_str().unwrap_or_default();
    assert!(!channel.is_empty() && line.contains(channel), "{entry}: {line}");
    assert!(!ground.left().is_empty(), "the record of a member that lives is gone");
    frozen.thaw().unwrap();
    gone(&ground, &tree);
    tree.end().unwrap();
}

#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_cgroup_level() {
    writer_in_state_d(Level::Cgroup);
}

#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_pidns_level() {
    writer_in_state_d(Level::Pidns);
}

#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_subreaper_level() {
    writer_in_state_d(Level::Subreaper);
}

#[test]
fn member_that_became_root_is_reported_and_its_end_noticed() {
    let ground = match Ground::new(Who::Plain) {
        Ok(ground) => ground,
        Err(why) => return println!("skipped: {why}"),
    };
    let tree = Tree::spawn(&tool(&ground, Level::Subreaper), "setuid-root").unwrap();
    tree.assert_alive();
    let member = tree.members()[1];
    answer(&tree);
    assert!(tree.stderr().contains("not permitted"), "{}", tree.stderr());
    let entry = survivor(&ground, member);
    assert!(entry["reason"].as_str().is_some_and(|reason| reason.contains("not permitted")), "{entry}");
    Handle::open(member).unwrap().unwrap().signal(Signal::KILL).unwrap();
    gone(&ground, &tree);
    tree.end().unwrap();
}
