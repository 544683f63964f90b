//! Every tree is built, is seen alive, and ends without a trace.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::time::Duration;

use penfold_testkit::{LeakGuard, Tool, Tree, TreeError};

fn stands_and_ends(name: &str, tool: &Tool) {
    let mut guard = LeakGuard::new();
    let tree = match Tree::spawn(tool, name) {
        Ok(tree) => tree,
        Err(TreeError::Skipped(reason)) => {
            eprintln!("skipped: {name}: {reason}");
            guard.check();
            return;
        }
        Err(error) => panic!("{error}"),
    };
    guard.mark(tree.cookie());
    tree.assert_alive();
    // Only the tree itself would end it.
    assert!(!tree.await_gone(Duration::from_millis(10)).is_empty());
    tree.end().unwrap();
    guard.check();
}

macro_rules! trees {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            stands_and_ends(&stringify!($name).replace('_', "-"), &Tool::new(["{cmd}"]));
        })*

        /// spec: 1.5
        #[test]
        fn every_tree_of_the_catalog_has_a_test() {
            let tested = [$(stringify!($name).replace('_', "-")),*];
            for tree in penfold_testkit::catalog::TREES {
                assert!(tested.iter().any(|name| name == tree.name), "{}", tree.name);
            }
        }
    };
}

trees! {
    plain ignore_term block_all own_group setsid daemon daemon_closed_fds daemon_holds_pipe thread_child
    subreaper subreaper_ignores_term zombies zombie_leader zombie_main comet hydra watchers fork_on_term storm
    wide deep threads memory stopped stopped_term_pending traced vfork no_environ undumpable renamed close_pids
    pidns user_pidns mountns_tmpfs pty moved_cgroup child_cgroups frozen_v2 frozen_v1 frozen_v1_pidns
    kill_parent kill_grandparents kill_group strays_exit_3 hasty storm_exit setuid_root
}

/// Forty at a time, plus leader and subreaper: a storm of one, or without a limit, would also start and end.
#[test]
fn a_storm_fills_its_bound_and_keeps_it() {
    let mut guard = LeakGuard::new();
    let tree = Tree::spawn(&Tool::new(["{cmd}"]), "storm").unwrap();
    guard.mark(tree.cookie());
    let fills = penfold_testkit::until(Duration::from_secs(30), || tree.survivors().len() >= 32);
    assert!(fills, "{} live", tree.survivors().len());
    // A replaced process may be seen beside its successor during a scan.
    for _ in 0..10 {
        let living = tree.survivors().len();
        assert!(living < 60, "{living} live");
    }
    tree.end().unwrap();
    guard.check();
}

/// A uid that owns nothing.
const NOBODY: u32 = 65534;

#[test]
fn ordinary_user_has_trees_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    for name in ["daemon", "undumpable", "user-pidns", "mountns-tmpfs", "setuid-root", "storm"] {
        stands_and_ends(name, &Tool::new(["{cmd}"]).user(NOBODY));
    }
}
