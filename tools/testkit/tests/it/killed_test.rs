//! A test runner's timeout is SIGKILL, and no destructor runs: the subreaper still cleans up.

use std::fs;
use std::process::{Command, Stdio};

use penfold_testkit::{LeakGuard, binary, mounts, wait_until};

#[test]
fn killed_test_leaves_nothing() {
    let mut guard = LeakGuard::new();
    let directory = std::env::temp_dir().join(format!("testkit-killed-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    guard.mark(directory.display().to_string());
    let mut judge = Command::new(binary().unwrap())
        .args(["judge", "--tree", "frozen-v2", "--tree", "storm", "--end", "timeout", "--tool-wait", "60"])
        .args(["--", "setsid", "-w", "{cmd}"])
        .env("TMPDIR", &directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let trees = || fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.path());
    // Either tree will do: where the first is skipped, the second can be built.
    wait_until("a tree stands", || trees().any(|tree| tree.join("ready").exists()));
    let ready = trees().find_map(|tree| fs::read_to_string(tree.join("ready")).ok()).unwrap();
    let leader = ready.split(' ').next().unwrap().parse().unwrap();
    let cgroup = mounts::cgroup_of(leader);
    judge.kill().unwrap();
    judge.wait().unwrap();
    wait_until("the tree's directory is gone", || trees().next().is_none());
    fs::remove_dir(&directory).unwrap();
    if let Some(cgroup) = cgroup.filter(|path| path.to_string_lossy().contains("testkit-delegated")) {
        assert!(!cgroup.try_exists().unwrap(), "{} is left", cgroup.display());
    }
    wait_until("the bystander is gone", || guard.differences().is_empty());
    guard.check();
}
