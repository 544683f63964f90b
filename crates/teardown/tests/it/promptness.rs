//! How soon: these run alone.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_teardown::{Spawned, StopPolicy};

/// A short grace, whose use is observed.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_tree_that_does_not_listen_gets_its_grace_and_no_more() {
    let script = "trap '' TERM; echo; sleep 3405; sleep 3405";
    let mut tree = Spawned::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    tree.child().stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let begun = Instant::now();
    tree.end(&StopPolicy { grace: SHORT, ..StopPolicy::default() }).unwrap();
    let took = begun.elapsed();
    assert!(took >= SHORT && took < SHORT * 5, "{took:?}");
}

#[test]
fn a_tree_that_is_over_already_is_ended_at_once() {
    let mut tree = Spawned::start(&mut Command::new("true")).unwrap();
    tree.child().wait().unwrap();
    let begun = Instant::now();
    let findings = tree.end(&StopPolicy::default()).unwrap();
    assert!(findings.verified && findings.ended.is_empty(), "{findings:?}");
    assert!(begun.elapsed() < Duration::from_secs(1), "no grace for nobody");
}
