//! How soon: these run alone.

use std::process::Command;
use std::time::{Duration, Instant};

use penfold_tree::Tree;

use crate::support::{at_both, read_line, shell};

/// A short grace, whose use is observed.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn tree_that_does_not_listen_gets_its_grace_and_no_more() {
    at_both(|options| {
        let mut tree =
            Tree::spawn_with(options, &mut shell("trap '' TERM; echo; sleep 3701; sleep 3701")).unwrap();
        read_line(tree.stdout.as_mut().unwrap());
        let begun = Instant::now();
        let report = tree.stop(SHORT);
        let took = begun.elapsed();
        assert!(report.gone() && took >= SHORT && took < SHORT * 5, "{took:?}");
    });
}

#[test]
fn tree_that_is_over_already_is_ended_at_once() {
    at_both(|options| {
        let mut tree = Tree::spawn_with(options, &mut Command::new("true")).unwrap();
        tree.wait().unwrap();
        let begun = Instant::now();
        let report = tree.stop(Duration::from_secs(10));
        assert!(report.gone() && report.ended().is_empty(), "{report}");
        assert!(begun.elapsed() < Duration::from_secs(1), "no grace for nobody");
    });
}
