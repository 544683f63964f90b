//! Trees that are dropped.

use crate::support::{at_both, children, is_in_cgroup, leaves, start};

const SCRIPT: &str = "setsid sleep 3601 & echo $!; exec sleep 3601";

/// spec: 33.5
#[test]
fn dropped_tree_is_gone() {
    at_both(|options| {
        let (tree, daemon) = start(options, SCRIPT);
        assert!(!daemon.has_ended());
        drop(tree);
        assert!(daemon.has_ended());
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()));
    });
}

/// spec: 33.5
#[test]
fn dropped_tree_lives_on_request() {
    at_both(|options| {
        let (mut tree, daemon) = start(&options.kill_on_drop(false), SCRIPT);
        let leader = crate::support::Handle::open(i32::try_from(tree.id()).unwrap());
        drop(tree);
        assert!(!daemon.has_ended() && !leader.has_ended());
        (tree, _) = start(&options.kill_on_drop(true), SCRIPT);
        tree.kill_on_drop(false);
        let is_in_cgroup = is_in_cgroup(&tree);
        let report = tree.kill();
        assert!(report.gone(), "{report}");
        drop((daemon, leader));
        assert_eq!(leaves().len(), usize::from(is_in_cgroup));
        remove_leaves();
    });
}

/// Removes the leaves of trees that live on, whose members the test has ended.
fn remove_leaves() {
    let Ok(place) = penfold_cgroup::LeafPlace::find_here() else { return };
    for leaf in leaves() {
        let path = place.path().join(leaf);
        penfold_testkit::wait_until("the leaf can be removed", || std::fs::remove_dir(&path).is_ok());
    }
}

/// spec: 33.5
#[test]
fn ordinary_user_loses_a_dropped_tree() {
    crate::support::as_user("dropped::dropped_tree_is_gone");
}
