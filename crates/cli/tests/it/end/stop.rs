//! `penfold stop`: the polite signal, the grace, and SIGKILL after the grace.

use serde_json::Value;

use super::standing::{Standing, answers, await_said, await_sleeps, detach_script};
use crate::support::{Sandbox, TestEnv};

/// Exits with 9 on SIGTERM.
const POLITE: &str = "trap 'exit 9' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
/// Says when it is asked to end, and goes on.
const DEAF: &str = "trap 'echo asked >> $UP' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";

/// spec: 11.1
#[test]
fn members_get_the_polite_signal_and_the_grace() {
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &[], POLITE);
    env.await_up(&["lead"]);
    await_sleeps(&env, 1);
    answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[]);
    let exited = sandbox.file("exit.json").unwrap();
    assert_eq!((exited["exit"]["code"].as_i64(), exited["cause"].as_str()), (Some(9), Some("stop")));
}

/// spec: 11.1
#[test]
fn words_for_the_end_tell_a_stop_from_a_kill_and_the_code() {
    let env = TestEnv::new();
    let status = |sandbox: &Sandbox| {
        let format = ["ps", "-a", "--no-trunc", "--format", "{{.Status}}", "--filter"];
        let id = format!("id={}", sandbox.id);
        let shown = env.call(format.iter().chain(&[id.as_str()])).with_code(0).out();
        shown.trim_end().trim_end_matches(" ago").rsplit_once(' ').unwrap().0.to_owned()
    };
    let found = |word: &str, sandbox: &Sandbox| {
        let filter = format!("status={word}");
        env.listed(&["--filter", &filter]).iter().any(|one| one["id"] == sandbox.id.as_str())
    };
    let asked = "trap 'exit 0' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let deaf = "trap '' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let cases: [(&str, &[&str], &str, &[&str]); 6] = [
        (asked, &["stop"], "stopped (0)", &["stopped", "killed"]),
        (POLITE, &["stop"], "stopped (9)", &["stopped", "killed"]),
        ("echo lead >> $UP; exec sleep 1000", &["stop"], "stopped (143)", &["stopped", "killed"]),
        (deaf, &["stop", "-t", "10ms"], "killed (137)", &["killed"]),
        (asked, &["kill"], "killed (137)", &["killed"]),
        ("echo lead >> $UP; exec sleep 1000", &["extend"], "killed (ttl, 143)", &["killed"]),
    ];
    for (script, verb, wanted, words) in cases {
        let sandbox = detach_script(&env, &["--ttl", "1h"], script);
        env.await_up(&["lead"]);
        std::fs::remove_file(env.path("work/up")).unwrap();
        await_sleeps(&env, 1);
        let rest: &[&str] = if verb == ["extend"] { &[&sandbox.id, "1ms"] } else { &[&sandbox.id] };
        env.call(verb.iter().chain(rest)).with_code(0);
        sandbox.await_end();
        assert_eq!(status(&sandbox), wanted);
        for word in ["stopped", "killed", "exited"] {
            assert_eq!(found(word, &sandbox), words.contains(&word), "{wanted}: {word}");
        }
    }
    let signalled = super::standing::ended(&env, &[], "kill -9 $$");
    assert_eq!(status(&signalled), "exited (137)");
}

/// spec: 11.1
#[test]
fn signal_is_the_one_asked_for() {
    let env = TestEnv::new();
    let script = "trap '' TERM; trap 'exit 10' USR1; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = detach_script(&env, &[], script);
    env.await_up(&["lead"]);
    await_sleeps(&env, 1);
    answers(&env, &["stop", "-s", "USR1", &sandbox.id], 0, &[&sandbox.id]);
    answers(&env, &["wait", &sandbox.id], 10, &["10"]);
}

/// Each of the members that ended, by how it ended.
#[track_caller]
fn hows(report: &Value) -> Vec<&str> {
    let ended = report["ended"].as_array().unwrap();
    ended.iter().map(|ended| ended["how"].as_str().unwrap()).collect()
}

/// spec: 11.1
#[test]
fn tree_that_does_not_listen_is_killed_after_the_grace() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.assert_alive();
    answers(&env, &["stop", "-t", "300ms", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    // The others had the time to end by the polite signal.
    let report = sandbox.file("report.json").unwrap();
    let hows = hows(&report);
    assert!(hows.contains(&"kill") && hows.contains(&"term"), "{report}");
}

/// A bash that says on SIGUSR1 that it is asked, and 200 ms later that it still runs. A child would get the signal, too.
const SLOW: [&str; 4] = [
    "--",
    "bash",
    "-c",
    "[ -e $UP.fifo ] || mkfifo $UP.fifo; exec 3<>$UP.fifo
    trap '' TERM; trap 'echo asked >> $UP; read -t 0.2 -u 3; echo granted >> $UP' USR1
    echo lead >> $UP; while :; do sleep 1000 & wait; done",
];
const SHORT_GRACE: [&str; 4] = ["--signal", "USR1", "--grace", "600ms"];
const USUAL_GRACE: [&str; 2] = ["--signal", "USR1"];

/// Stops both. The one that was made with a short grace is gone while the usual grace of the other lasts.
#[track_caller]
fn assert_grace_holds(env: &TestEnv, short: &str, usual: &str) {
    let patient = env.begin(["stop", usual]);
    await_said(env, "asked", 1);
    answers(env, &["stop", short], 0, &[short]);
    await_said(env, "asked", 2);
    await_said(env, "granted", 2);
    assert!(patient.is_alive(), "the usual grace is no longer than the short one");
    answers(env, &["kill", usual], 0, &[usual]);
    patient.finish().with_code(0);
}

/// A foreground sandbox has no socket to ask through.
/// spec: 11.2
#[test]
fn signal_and_grace_that_it_was_made_with_hold_in_the_foreground() {
    let env = TestEnv::new();
    let mut ids: Vec<String> = Vec::new();
    let launchers = [SHORT_GRACE.as_slice(), &USUAL_GRACE].map(|made_with| {
        let launcher = env.begin([&["run"], made_with, &SLOW].concat());
        await_said(&env, "lead", ids.len() + 1);
        await_sleeps(&env, ids.len() + 1);
        let mut fresh = env.listed_ids(&[]);
        fresh.retain(|id| !ids.contains(id));
        ids.extend(fresh);
        launcher
    });
    assert_grace_holds(&env, &ids[0], &ids[1]);
    for launcher in launchers {
        launcher.finish();
    }
    assert!(env.listed(&["-a"]).is_empty());
}

/// An orphan has no supervisor to ask.
/// spec: 11.2
#[test]
fn signal_and_grace_that_it_was_made_with_hold_without_a_supervisor_to_ask() {
    let env = TestEnv::new();
    let sandboxes = [SHORT_GRACE.as_slice(), &USUAL_GRACE].map(|flags| env.detach([flags, &SLOW].concat()));
    await_said(&env, "lead", 2);
    await_sleeps(&env, 2);
    sandboxes.iter().for_each(Sandbox::kill_supervisors);
    let [short, usual] = &sandboxes;
    assert_grace_holds(&env, &short.id, &usual.id);
    for sandbox in &sandboxes {
        sandbox.assert_gone(&[]);
    }
}

/// The command could have written it.
/// spec: 11.2
#[test]
fn grace_of_a_forged_record_holds_up_no_stop_that_brings_its_own() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let mut intent = sandbox.file("intent.json").unwrap();
    (intent["signal"], intent["grace_ms"]) = (33.into(), u64::MAX.into());
    std::fs::write(sandbox.record.join("intent.json"), intent.to_string()).unwrap();
    sandbox.kill_supervisors();
    answers(&env, &["stop", "-t", "200ms", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// spec: 11.1
#[test]
fn who_wants_to_wait_less_is_heard_and_who_wants_more_is_not() {
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &[], DEAF);
    env.await_up(&["lead"]);
    await_sleeps(&env, 1);
    // An hour would fail the test.
    let patient = env.begin(["stop", "-t", "1h", &sandbox.id]);
    env.await_up(&["asked"]);
    let hasty = env.begin(["stop", "-t", "300ms", &sandbox.id]);
    answers(&env, &["stop", "-t", "30m", &sandbox.id], 0, &[&sandbox.id]);
    for stopper in [patient, hasty] {
        stopper.finish().with_code(0);
    }
    sandbox.assert_gone(&[]);
}

/// All are asked to end before the first has ended.
/// spec: 11.4
#[test]
fn many_are_stopped_in_the_time_of_one() {
    let env = TestEnv::new();
    let sandboxes = [0; 12].map(|_| detach_script(&env, &[], DEAF));
    await_said(&env, "lead", 12);
    let ids: Vec<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    answers(&env, &[&["stop", "-t", "1s"], ids.as_slice()].concat(), 0, &ids);
    for sandbox in &sandboxes {
        sandbox.assert_gone(&[]);
    }
    let events = std::fs::read_to_string(env.root().join("events.jsonl")).unwrap();
    let mut kinds: Vec<String> = Vec::new();
    // Who writes while another does may end a line that has ended: readers pass over an empty one.
    for event in events.lines().filter(|line| !line.is_empty()) {
        let event: Value = serde_json::from_str(event).unwrap();
        kinds.push(event["kind"].as_str().unwrap().to_owned());
    }
    kinds.retain(|kind| kind == "stop" || kind == "exit");
    assert_eq!(kinds, [vec!["stop"; 12], vec!["exit"; 12]].concat(), "{events}");
}
