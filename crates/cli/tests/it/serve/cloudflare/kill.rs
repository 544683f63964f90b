//! Kills.

use std::time::{Duration, Instant};

use super::{Api, alive, pid_in};
use crate::support::wait_until;

/// spec: 13.10
#[test]
fn a_kill_ends_the_tree_and_its_record_has_status_and_code() {
    let api = Api::start();
    let file = |name: &str| api.path(name);
    let command = format!(
        "setsid sh -c 'sleep 1000 & echo $! > {}; wait' & (sleep 1001 & echo $! > {}); while :; do sleep 1002; done",
        file("daemon"),
        file("orphan")
    );
    let leader = api.process("s", "p", &command);
    let pids = [leader, pid_in(&file("daemon")), pid_in(&file("orphan"))];
    assert!(pids.into_iter().all(alive));
    assert_eq!(api.status("p"), ("running".to_owned(), None));
    assert_eq!(api.delete("/api/process/p").ok()["processId"], "p");
    assert!(!pids.into_iter().any(alive), "{pids:?}");
    assert_eq!(api.status("p"), ("killed".to_owned(), Some(143)));
    let error = api.delete("/api/process/p").fails(404, "COMMAND_NOT_FOUND");
    assert_eq!(error["context"]["command"], "p");
    assert_eq!(api.out("s", "echo usable"), "usable\n");
}

/// spec: 13.10
#[test]
fn the_code_of_a_term_handler_is_the_code_of_the_kill() {
    let api = Api::start();
    for (id, handler, code) in [("seven", "exit 7", 7), ("zero", "exit 0", 0)] {
        let command = format!("trap '{handler}' TERM; echo up; while :; do sleep 0.05; done");
        api.process("s", id, &command);
        api.follow(id).await_output("up");
        api.delete(&format!("/api/process/{id}")).ok();
        assert_eq!(api.status(id), ("killed".to_owned(), Some(code)));
    }
}

/// spec: 13.10
#[test]
fn a_process_that_ignores_term_is_killed_after_five_seconds() {
    let api = Api::start();
    let pid = api.process("s", "p", "trap '' TERM; echo up; while :; do sleep 1; done");
    api.follow("p").await_output("up");
    let begun = Instant::now();
    api.delete("/api/process/p").ok();
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!alive(pid));
    assert_eq!(api.status("p"), ("killed".to_owned(), Some(137)));
}

#[test]
fn each_follower_has_the_exit_before_the_answer() {
    let api = Api::start();
    for round in 0..10 {
        let id = format!("p{round}");
        api.process("s", &id, "echo up; sleep 1000");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..5 {
                let mut stream = api.follow(&id);
                stream.await_output("up");
                let sender = sender.clone();
                scope.spawn(move || {
                    let last = stream.rest().pop().unwrap();
                    sender.send((Instant::now(), last)).unwrap();
                });
            }
            api.delete(&format!("/api/process/{id}")).ok();
            let answered = Instant::now();
            for _ in 0..5 {
                let (at, last) = receiver.recv().unwrap();
                assert_eq!((last["type"].as_str(), last["exitCode"].as_i64()), (Some("exit"), Some(143)));
                // The thread of this test may be scheduled later.
                assert!(at < answered + Duration::from_millis(200), "{:?} after the answer", at - answered);
            }
        });
    }
}

/// spec: 13.10
#[test]
fn a_kill_that_races_with_the_natural_exit_leaves_no_running_record() {
    let api = Api::start();
    api.out("s", "true");
    let mut ends = std::collections::BTreeMap::new();
    for round in 0..100_u32 {
        let id = format!("p{round}");
        let pid = api.process("s", &id, &format!("sleep 0.0{}", round % 5));
        let told = api.delete(&format!("/api/process/{id}"));
        assert!(matches!(told.status, 200 | 404), "{:?}", told.json());
        if told.status == 404 {
            told.fails(404, "COMMAND_NOT_FOUND");
        }
        let (word, code) = api.status(&id);
        assert!(!alive(pid));
        assert!(
            matches!((word.as_str(), code), ("completed", Some(0)) | ("killed", Some(0 | 143 | 137))),
            "{id}: {word} {code:?} after {}",
            told.status
        );
        *ends.entry((told.status, word)).or_insert(0) += 1;
    }
    assert!(ends.values().sum::<u32>() == 100, "{ends:?}");
}

/// spec: 13.10
#[test]
fn kill_all_ends_twenty_trees_that_ignore_term_in_one_grace() {
    let api = Api::start();
    let mut pids = Vec::new();
    for number in 0..20 {
        let session = format!("s{}", number % 4);
        let file = api.path(&format!("leaf{number}"));
        let command = format!(
            "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {file}; while :; do sleep 1; done' & wait; true"
        );
        pids.push(api.process(&session, &format!("p{number}"), &command));
        pids.push(pid_in(&file));
    }
    api.process("s0", "over", "true");
    api.follow("over").rest();
    assert!(pids.iter().all(|&pid| alive(pid)));
    let begun = Instant::now();
    assert_eq!(api.delete("/api/process/kill-all").ok()["cleanedCount"], 20);
    let took = begun.elapsed();
    // One grace of five seconds for all.
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(pids.iter().filter(|&&pid| alive(pid)).collect::<Vec<_>>(), Vec::<&i32>::new());
    for number in 0..20 {
        assert_eq!(api.status(&format!("p{number}")), ("killed".to_owned(), Some(137)));
    }
    assert_eq!(api.delete("/api/process/kill-all").ok()["cleanedCount"], 0);
    assert_eq!(api.status("over"), ("completed".to_owned(), Some(0)));
}

#[test]
fn a_kill_does_not_wait_for_a_command_of_the_session() {
    let api = Api::start();
    let pid = api.process("s", "p", "sleep 1000");
    let file = api.path("busy");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| api.run("s", &format!("echo $$ > {file}; sleep 1000")));
        pid_in(&file);
        api.delete("/api/process/p").ok();
        assert!(!alive(pid));
        assert!(!running.is_finished());
        api.post("/api/session/delete", &serde_json::json!({ "sessionId": "s" })).ok();
        running.join().unwrap().fails(410, "SESSION_DESTROYED");
    });
    wait_until("the session is gone", || !api.env.is_running("session-host"));
}
