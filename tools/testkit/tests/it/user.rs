//! Trees and bystanders in a delegated cgroup, as an ordinary user.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::time::Duration;

use penfold_testkit::{Bystander, DelegatedCgroup, LeakGuard, Tool, Tree, mounts};

/// A uid that owns nothing.
const NOBODY: u32 = 65534;

#[test]
fn tool_starts_in_the_delegated_cgroup_as_the_user() {
    let mut guard = LeakGuard::new();
    let cgroup = match DelegatedCgroup::new(NOBODY) {
        Ok(cgroup) => cgroup,
        Err(error) => {
            eprintln!("skipped: cannot delegate a cgroup: {error}");
            return;
        }
    };
    guard.mark(cgroup.path().display().to_string());
    let tool = Tool::new(["{cmd}"]).user(NOBODY).cgroup(cgroup.path());
    for name in ["child-cgroups", "frozen-v2", "daemon"] {
        let tree = Tree::spawn(&tool, name).unwrap();
        let mut bystander = Bystander::beside(&tree, Some(NOBODY)).unwrap();
        tree.assert_alive();
        let leader = tree.members()[0];
        let bystander_pid = i32::try_from(bystander.pid()).unwrap();
        assert_eq!(mounts::cgroup_of(leader.pid).as_deref(), Some(cgroup.path()));
        assert_eq!(mounts::cgroup_of(bystander_pid).as_deref(), Some(cgroup.path()));
        assert!(!tree.await_gone(Duration::from_millis(5)).is_empty());
        tree.end().unwrap();
        bystander.assert_alive();
    }
    drop(cgroup);
    guard.check();
}
