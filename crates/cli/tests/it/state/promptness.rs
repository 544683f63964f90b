//! How soon a person who follows a sandbox is told. These tests run alone: their limits are tight.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::observe::events::Follower;
use crate::observe::logs::gate;
use crate::observe::output::{has_open, is_waiting};
use crate::support::{TestEnv, wait_until};

const LIMIT: Duration = Duration::from_millis(300);

#[track_caller]
fn assert_prompt(begun: Instant) {
    let elapsed = begun.elapsed();
    assert!(elapsed < LIMIT, "after {elapsed:?}");
}

#[test]
fn line_of_a_log_is_followed_within_300_ms() {
    let env = TestEnv::new();
    let mut gate = gate(&env);
    let script = "echo first; while read -r word; do echo $word; done <gate";
    let sandbox = env.detach(["--", "sh", "-c", script]);
    let follower = env.begin(["logs", "-f", &sandbox.id]);
    follower.hear("first\n", 1);
    for word in ["second\n", "third\n", "last\n"] {
        wait_until("the follower waits", || is_waiting(&follower));
        let begun = Instant::now();
        gate.write_all(word.as_bytes()).unwrap();
        follower.hear(word, 1);
        assert_prompt(begun);
    }
}

#[test]
fn event_is_followed_within_300_ms() {
    let env = TestEnv::new();
    let mut follower = Follower::start(&env, &[]);
    follower.await_watch();
    let begun = Instant::now();
    let sandbox = env.detach(["--", "sleep", "50"]);
    assert_eq!(follower.next(), ("start".to_owned(), sandbox.id.clone()));
    assert_prompt(begun);
    let begun = Instant::now();
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    for kind in ["stop", "exit"] {
        assert_eq!(follower.next().0, kind);
    }
    assert_prompt(begun);
}

#[test]
fn wait_returns_within_300_ms_of_the_end() {
    let env = TestEnv::new();
    let mut gate = gate(&env);
    let sandbox = env.detach(["--", "sh", "-c", "read -r code <gate; exit $code"]);
    let waiter = env.begin(["wait", &sandbox.id]);
    wait_until("it waits", || has_open(&waiter, "socket:") && is_waiting(&waiter));
    let begun = Instant::now();
    gate.write_all(b"3\n").unwrap();
    waiter.process().await_end();
    assert_prompt(begun);
    waiter.finish().with_code(3);
}
