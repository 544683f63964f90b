//! `penfold stop`: polite at first, then not.

mod support_control;
mod support_d;

use std::time::{Duration, Instant};

use support_control::{Fold, read};

#[test]
fn members_get_the_polite_signal_and_the_grace() {
    let fold = Fold::new();
    let script = "trap 'exit 9' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = fold.start(&[], script);
    fold.yard.await_up(&["lead"]);
    fold.expect(&["stop", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    let exited = read(&sandbox.record.join("exit.json"));
    assert_eq!((exited["exit"]["code"].as_i64(), exited["cause"].as_str()), (Some(9), Some("stop")));
}

#[test]
fn signal_is_the_one_asked_for() {
    let fold = Fold::new();
    let sandbox = fold.start(
        &[],
        "trap '' TERM; trap 'exit 10' USR1; echo lead >> $UP; while :; do sleep 1000 & wait; done",
    );
    fold.yard.await_up(&["lead"]);
    fold.expect(&["stop", "-s", "USR1", &sandbox.id], 0, &[&sandbox.id]);
    fold.expect(&["wait", &sandbox.id], 10, &["10"]);
}

#[test]
fn tree_that_does_not_listen_is_killed_after_the_grace() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.assert_alive();
    let begun = Instant::now();
    fold.expect(&["stop", "-t", "300ms", &sandbox.id], 0, &[&sandbox.id]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    sandbox.assert_gone();
}

#[test]
fn many_are_stopped_in_the_time_of_one() {
    let fold = Fold::new();
    let script = "trap '' TERM; echo lead >> $UP; sleep 1000 & wait";
    let sandboxes: Vec<_> = (0..12)
        .map(|_| {
            let sandbox = fold.start(&[], script);
            fold.yard.await_up(&["lead"]);
            std::fs::remove_file(fold.yard.path("up")).unwrap();
            sandbox
        })
        .collect();
    let mut words = vec!["stop", "-t", "1s"];
    words.extend(sandboxes.iter().map(|sandbox| sandbox.id.as_str()));
    let begun = Instant::now();
    fold.expect(&words, 0, &words[3..]);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    sandboxes.iter().for_each(support_control::Sandbox::assert_gone);
}
