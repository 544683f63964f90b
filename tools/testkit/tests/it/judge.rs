//! The judge distinguishes tools: its results match what is known of each tool.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::time::Duration;

use penfold_testkit::judge::{Ending, Line, Rules, Verdict, judge};
use penfold_testkit::{LeakGuard, Tool, catalog};

fn run(tool: &[&str], tree: &str, ending: Ending) -> Line {
    run_within(Duration::from_millis(500), tool, tree, ending)
}

/// For a tool that ends everything: it finishes earlier, unless the machine is busy.
fn run_to_its_end(tool: &[&str], tree: &str, ending: Ending) -> Line {
    run_within(Duration::from_secs(10), tool, tree, ending)
}

fn run_within(patience: Duration, tool: &[&str], tree: &str, ending: Ending) -> Line {
    let guard = LeakGuard::new();
    let rules = Rules { patience, tool_patience: Duration::from_secs(20), ..Rules::new(ending) };
    let line = judge(&Tool::new(tool.iter().copied()), catalog::find(tree).unwrap(), &rules);
    guard.check();
    line
}

fn is_missing(program: &str) -> bool {
    let missing = std::process::Command::new(program).arg("--version").output().is_err();
    if missing {
        eprintln!("skipped: `{program}` is not installed");
    }
    missing
}

#[test]
fn setsid_leaves_a_daemon() {
    let line = run(&["setsid", "-w", "{cmd}"], "daemon", Ending::LeaderExit);
    assert!(matches!(&line.verdict, Verdict::Leak { survivors } if survivors.len() == 1), "{line:?}");
    assert!(!line.bystander_hit);
}

#[test]
fn setsid_leaves_a_comet_that_no_look_can_hold() {
    let line = run(&["setsid", "-w", "{cmd}"], "comet", Ending::LeaderExit);
    assert!(matches!(&line.verdict, Verdict::Leak { survivors } if !survivors.is_empty()), "{line:?}");
}

/// Longer than a tree takes to be complete on a busy machine.
const TIMEOUT: [&str; 5] = ["timeout", "-k", "1", "3", "{cmd}"];

#[test]
fn timeout_ends_a_plain_child() {
    let line = run_to_its_end(&TIMEOUT, "plain", Ending::Timeout);
    assert!(matches!(line.verdict, Verdict::Ok), "{line:?}");
}

#[test]
fn timeout_leaves_a_session() {
    let line = run(&TIMEOUT, "setsid", Ending::Timeout);
    assert!(matches!(line.verdict, Verdict::Leak { .. }), "{line:?}");
}

#[test]
fn pid_namespace_ends_a_storm_when_its_owner_dies() {
    if is_missing("bwrap") {
        return;
    }
    let tool = ["bwrap", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/", "{cmd}"];
    let line = run_to_its_end(&tool, "storm", Ending::OwnerKilled);
    if let Verdict::Broken { reason } = &line.verdict {
        eprintln!("skipped: no pid namespace here: {reason}");
        return;
    }
    assert!(matches!(line.verdict, Verdict::Ok), "{line:?}");
    assert!(!line.bystander_hit);
}

#[test]
fn leader_that_exits_keeps_its_code() {
    let line = run(&["setsid", "-w", "{cmd}"], "strays-exit-3", Ending::LeaderExit);
    assert_eq!(line.tool_exit, Some(penfold_testkit::ToolExit::Code(3)));
}
