//! A writer on a frozen file system outlives SIGKILL, and is gone after the thaw.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::time::Duration;

use penfold_testkit::{FrozenFs, LeakGuard, Scope, Tool, Tree};
use rustix::process::Signal;

/// spec: 2.3
#[test]
fn frozen_writer_ends_after_the_thaw_only() {
    let mut guard = LeakGuard::over(Scope::Own);
    let frozen = match FrozenFs::new() {
        Ok(frozen) => frozen,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    guard.mark(frozen.directory().display().to_string());
    let path = frozen.path().display().to_string();
    let tool = Tool::new(["{cmd}"]).tree_options(["--path".to_owned(), path]);
    let tree = Tree::spawn(&tool, "frozen-writer").unwrap();
    guard.mark(tree.cookie());
    tree.assert_alive();
    tree.signal_tool(Signal::KILL).unwrap();
    // All but one, however busy the machine is; that one stays.
    let begun = std::time::Instant::now();
    let mut left = tree.await_gone(Duration::from_millis(300));
    while left.len() > 1 && begun.elapsed() < Duration::from_secs(10) {
        left = tree.await_gone(Duration::from_millis(300));
    }
    assert_eq!(left.iter().map(|survivor| survivor.state).collect::<String>(), "D");
    frozen.thaw().unwrap();
    tree.end().unwrap();
    guard.check();
}

/// spec: 2.3
#[test]
fn polite_signals_do_not_end_who_can_thaw() {
    let frozen = match FrozenFs::new() {
        Ok(frozen) => frozen,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let point = frozen.path();
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    let holder = children.trim().parse().ok().and_then(rustix::process::Pid::from_raw).unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        rustix::process::kill_process(holder, signal).unwrap();
    }
    let thawed = frozen.thaw();
    if thawed.is_err() {
        for (program, flag) in [("fsfreeze", "-u"), ("umount", "-l")] {
            drop(std::process::Command::new(program).arg(flag).arg(&point).status());
        }
    }
    thawed.unwrap();
}
