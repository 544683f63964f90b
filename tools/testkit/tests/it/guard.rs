//! The guard finds and names leaks, and ignores things of other tests.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use penfold_testkit::{Kind, LeakGuard, mounts};

/// A daemon: its parent exits, and the kernel reparents the daemon to the test's process.
fn leave_a_daemon(mark: &str) {
    let status = Command::new("setsid")
        .args(["--fork", "sleep", "30"])
        .env("TESTKIT_GUARD", mark)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

fn end_by_handle(name: &str) {
    let start = name.split(' ').next().unwrap().parse().unwrap();
    let handle = penfold_testkit::proc::Handle::open(start).unwrap().unwrap();
    handle.signal(rustix::process::Signal::KILL).unwrap();
    assert!(handle.wait(Some(std::time::Duration::from_secs(5))));
}

#[test]
fn left_process_is_named() {
    let guard = LeakGuard::new();
    leave_a_daemon("left");
    let found = guard.differences();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, Kind::Process);
    end_by_handle(&found[0].name);
    guard.check();
}

#[test]
fn drop_panics_over_a_left_process() {
    let guard = LeakGuard::new();
    leave_a_daemon("dropped");
    let found = guard.differences();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(guard)));
    end_by_handle(&found[0].name);
    let message = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("left behind: Process"), "{message}");
}

#[test]
fn left_file_in_a_watched_directory_is_named() {
    let directory = std::env::temp_dir().join(format!("testkit-guard-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("before"), "").unwrap();
    let mut guard = LeakGuard::new();
    guard.watch(&directory);
    assert!(guard.differences().is_empty());
    fs::write(directory.join("after"), "").unwrap();
    let found = guard.differences();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(Path::new(&found[0].name), directory.join("after"));
    guard.check();
}

#[test]
fn left_cgroup_is_named() {
    let Some(parent) = mounts::own_cgroup() else {
        eprintln!("skipped: no cgroup2 mount shows the cgroup of this process");
        return;
    };
    let name = format!("penfold-guard-{}", std::process::id());
    let mut guard = LeakGuard::new();
    let cgroup = parent.join(&name);
    if let Err(error) = fs::create_dir(&cgroup) {
        eprintln!("skipped: cannot create `{}`: {error}", cgroup.display());
        return;
    }
    let unmarked = guard.differences();
    guard.mark(&name);
    let found = guard.differences();
    fs::remove_dir(&cgroup).unwrap();
    assert!(unmarked.is_empty(), "{unmarked:?}");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].kind, Path::new(&found[0].name)), (Kind::Cgroup, cgroup.as_path()));
    guard.check();
}
