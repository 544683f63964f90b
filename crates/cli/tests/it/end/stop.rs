//! `penfold stop`: polite at first, then not.

use std::time::{Duration, Instant};

use crate::support_control::{Fold, read};
use crate::support_d::{code, json, output, until};

/// A child of a shell that has a trap loses the signal until it has become its program.
fn await_sleep(fold: &Fold) {
    until("it sleeps", || !fold.yard.find("sleep 1000").is_empty());
}

#[test]
fn members_get_the_polite_signal_and_the_grace() {
    let fold = Fold::new();
    let script = "trap 'exit 9' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = fold.start(&[], script);
    fold.yard.await_up(&["lead"]);
    await_sleep(&fold);
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
    await_sleep(&fold);
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

/// Nobody can be asked: a foreground sandbox has no socket, an orphan no supervisor.
#[test]
fn signal_and_grace_that_it_was_made_with_hold_without_a_supervisor_to_ask() {
    let made_with = ["--signal", "USR1", "--grace", "2s"];
    let script =
        "trap '' TERM; trap 'echo asked >> $UP' USR1; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let check = |fold: &Fold, id: &str| {
        let begun = Instant::now();
        fold.expect(&["stop", id], 0, &[id]);
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(8), "{took:?}");
        fold.yard.await_up(&["lead", "asked"]);
    };
    let fold = Fold::new();
    let mut command = fold.yard.penfold(["run"]);
    command.args(made_with).args(["--", "sh", "-c", script]).env("UP", fold.yard.path("up"));
    let mut front = command.spawn().unwrap();
    fold.yard.await_up(&["lead"]);
    let listed = json(&output(&mut fold.yard.penfold(["ps", "--json"])));
    let own = listed.as_array().unwrap().iter().find(|one| one["claimed"] == true).unwrap();
    check(&fold, own["id"].as_str().unwrap());
    front.wait().unwrap();
    std::fs::remove_file(fold.yard.path("up")).unwrap();
    let sandbox = fold.start(&made_with, script);
    fold.yard.await_up(&["lead"]);
    sandbox.kill_supervisors();
    check(&fold, &sandbox.id);
    sandbox.assert_gone();
}

/// The command could have written it.
#[test]
fn grace_of_a_forged_record_holds_up_no_stop_that_brings_its_own() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let path = sandbox.record.join("intent.json");
    let mut intent = read(&path);
    (intent["signal"], intent["grace_ms"]) = (33.into(), u64::MAX.into());
    std::fs::write(&path, intent.to_string()).unwrap();
    sandbox.kill_supervisors();
    fold.expect(&["stop", "-t", "200ms", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

#[test]
fn who_wants_to_wait_less_is_heard_and_who_wants_more_is_not() {
    let fold = Fold::new();
    let script = "trap 'echo asked >> $UP' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = fold.start(&[], script);
    fold.yard.await_up(&["lead"]);
    let begun = Instant::now();
    let patient = fold.begin(&["stop", "-t", "60s", &sandbox.id]);
    fold.yard.await_up(&["asked"]);
    let hasty = fold.begin(&["stop", "-t", "1s", &sandbox.id]);
    fold.expect(&["stop", "-t", "50s", &sandbox.id], 0, &[&sandbox.id]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
    for stopper in [patient, hasty] {
        assert_eq!(code(&stopper.wait_with_output().unwrap()), 0);
    }
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
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    sandboxes.iter().for_each(crate::support_control::Sandbox::assert_gone);
}
