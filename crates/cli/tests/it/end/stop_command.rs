//! `--stop-command`: a command that asks the members to end, before the polite signal does.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::standing::{answers, await_said, await_sleeps, detach_script, said};
use crate::support::{Level, TestEnv, kill_at_once, wait_until};

/// The levels at which a command can ask: it has no place in a pid namespace.
fn levels(env: &TestEnv) -> Vec<Level> {
    env.levels().into_iter().filter(|level| *level != Level::Pidns).collect()
}

/// Exits with 7 once the file `go` is there, and with 9 on SIGTERM.
const WAITS: &str =
    "trap 'echo term >> $UP; exit 9' TERM; echo lead >> $UP; while ! [ -e go ]; do sleep 0.05; done; exit 7";
/// Lets [`WAITS`] end.
const ASKS: &str = "--stop-command=echo asked >> $UP; : > go";
/// A stop command that never ends, with a daemon.
const LINGERS: &str = "--stop-command=echo asked >> $UP; setsid sleep 1001 & sleep 1001; exit";

/// The errors of the steps of the stop command.
fn errors(report: &serde_json::Value) -> Vec<&str> {
    let steps = report["steps"].as_array().unwrap().iter().filter(|step| step["what"] == "stop command");
    steps.filter_map(|step| step["error"].as_str()).collect()
}

/// spec: 11.9
#[test]
fn members_that_the_command_asks_get_no_signal() {
    let env = TestEnv::new();
    for level in levels(&env) {
        let sandbox = detach_script(&env, &["--contain", level.word(), ASKS], WAITS);
        await_said(&env, "lead", 1);
        answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
        sandbox.assert_gone(&[]);
        let report = sandbox.file("report.json").unwrap();
        assert_eq!((report["exit"]["code"].as_i64(), report["cause"].as_str()), (Some(7), Some("stop")));
        assert_eq!((said(&env, "asked"), said(&env, "term")), (1, 0), "{level:?}");
        assert!(errors(&report).is_empty(), "{report}");
        std::fs::remove_file(env.path("work/up")).unwrap();
        std::fs::remove_file(env.path("work/go")).unwrap();
    }
}

/// spec: 11.9
#[test]
fn a_command_that_fails_leaves_the_members_to_the_signal_at_once() {
    let env = TestEnv::new();
    let missing = spec_flag(&env, r#"{"stop":{"command":["/no/such/program"]}}"#);
    let cases = [
        ("--stop-command=exit 3", "it exited with 3"),
        ("--stop-command=kill -9 $$", "it was killed by signal 9"),
        (missing.as_str(), "it cannot be executed: No such file or directory (os error 2)"),
    ];
    for (flag, error) in cases {
        let sandbox = detach_script(&env, &["--grace", "1h", flag], WAITS);
        await_said(&env, "lead", 1);
        answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
        let report = sandbox.file("report.json").unwrap();
        assert_eq!(report["exit"]["code"], 9, "{report}");
        assert_eq!(errors(&report), [error]);
        std::fs::remove_file(env.path("work/up")).unwrap();
    }
}

/// spec: 11.9
#[test]
fn after_half_of_the_grace_the_signal_follows() {
    let env = TestEnv::new();
    for flag in ["--stop-command=echo asked >> $UP", LINGERS] {
        let sandbox = detach_script(&env, &["--grace", "1s", flag], WAITS);
        await_said(&env, "lead", 1);
        let begun = Instant::now();
        answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
        assert!(begun.elapsed() >= Duration::from_millis(500), "{flag}: {:?}", begun.elapsed());
        let report = sandbox.file("report.json").unwrap();
        assert_eq!(
            (report["exit"]["code"].as_i64(), said(&env, "asked"), said(&env, "term")),
            (Some(9), 1, 1)
        );
        let lingers = flag == LINGERS;
        assert_eq!(errors(&report).len(), usize::from(lingers), "{report}");
        std::fs::remove_file(env.path("work/up")).unwrap();
    }
}

/// spec: 11.9
#[test]
fn the_command_and_its_daemons_are_members_and_go_with_the_sandbox() {
    let env = TestEnv::new();
    let deaf = "trap '' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    for level in levels(&env) {
        for act in ["kill", "both supervisors die", "the grace is over"] {
            let grace = if act == "the grace is over" { "1s" } else { "1h" };
            let flags = ["--contain", level.word(), "--grace", grace, LINGERS];
            let sandbox = detach_script(&env, &flags, deaf);
            await_said(&env, "lead", 1);
            await_sleeps(&env, 1);
            let mut members = sandbox.members(&env);
            let stop = env.begin(["stop", &sandbox.id]);
            wait_until("the command and its daemon run", || env.running("sleep 1001").len() == 2);
            members.extend(env.running("sleep 1001"));
            assert!(members.len() >= 4, "{members:?}");
            match act {
                "kill" => drop(env.call(["kill", &sandbox.id]).with_code(0)),
                "the grace is over" => {}
                _ => {
                    kill_at_once(&sandbox.supervisors.iter().collect::<Vec<_>>());
                    env.call(["kill", &sandbox.id]).with_code(0);
                }
            }
            drop(stop.finish());
            sandbox.assert_gone(&members);
            std::fs::remove_file(env.path("work/up")).unwrap();
        }
    }
}

/// spec: 11.9
#[test]
fn the_command_is_no_stray_of_the_sandbox() {
    let env = TestEnv::new();
    let slow = "--stop-command=echo asked >> $UP; sleep 1001; exit";
    let sandbox = detach_script(&env, &["--grace", "500ms", slow], WAITS);
    await_said(&env, "lead", 1);
    answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
    let report = sandbox.file("report.json").unwrap();
    let strays = report["ended"].as_array().unwrap().iter().filter(|one| one["stray"] == true).count();
    assert_eq!((said(&env, "asked"), strays), (1, 0), "{report}");
}

/// spec: 11.9
#[test]
fn every_polite_end_runs_the_command_and_no_kill_does() {
    let env = TestEnv::new();
    // The signal that ends `penfold run` is the polite signal of its sandbox.
    let running = env.begin(["run", ASKS, "sh", "-c", WAITS]);
    await_said(&env, "lead", 1);
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), Some(7));
    assert_eq!((said(&env, "asked"), said(&env, "term")), (1, 0));
    std::fs::remove_file(env.path("work/go")).unwrap();
    // The time limit.
    env.call(["run", "--timeout", "200ms", ASKS, "sh", "-c", WAITS]).with_code(124);
    assert_eq!((said(&env, "asked"), said(&env, "term")), (2, 0));
    std::fs::remove_file(env.path("work/go")).unwrap();
    // The leader's own end, and a kill.
    env.call(["run", ASKS, "sh", "-c", "sleep 1000 & exit 4"]).with_code(4);
    let sandbox = detach_script(&env, &[ASKS], WAITS);
    await_said(&env, "lead", 3);
    env.call(["kill", &sandbox.id]).with_code(0);
    assert_eq!((said(&env, "asked"), said(&env, "term")), (2, 0));
}

/// spec: 11.9
#[test]
fn without_a_grace_the_command_does_not_delay_the_end() {
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &["--grace", "1h", LINGERS], WAITS);
    await_said(&env, "lead", 1);
    let stopped = env.call(["stop", "-t", "0", &sandbox.id]).with_code(0);
    drop(stopped);
    sandbox.assert_gone(&[]);
}

/// The command is born frozen, or is stopped before it runs. Neither may delay what ends the sandbox.
///
/// spec: 11.9
#[test]
fn a_command_that_cannot_run_delays_nothing() {
    let env = TestEnv::new();
    let freezes = "for mount in /sys/fs/cgroup/unified /sys/fs/cgroup; do \
        leaf=$mount$(sed -n 's/^0:://p' /proc/self/cgroup); [ ! -e $leaf/cgroup.freeze ] || break; done; \
        echo lead >> $UP; echo 1 > $leaf/cgroup.freeze; sleep 1000";
    let stops = "echo lead >> $UP; own=$$; while :; do for child in $(cat /proc/$PPID/task/$PPID/children); do \
        [ $child = $own ] || kill -STOP $child; done; done";
    for (level, script) in [(Level::Cgroup, freezes), (Level::Subreaper, stops)] {
        if !levels(&env).contains(&level) {
            continue;
        }
        let flags = ["run", "--contain", level.word(), "--timeout", "300ms", "--grace", "1s"];
        let command = ["--stop-command", "true", "sh", "-c", script];
        let begun = Instant::now();
        env.call(flags.iter().chain(&command)).with_code(124);
        assert!(begun.elapsed() < Duration::from_secs(20), "{level:?}: {:?}", begun.elapsed());
        assert_eq!(said(&env, "lead"), 1);
        std::fs::remove_file(env.path("work/up")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 11.9
#[test]
fn a_request_that_makes_no_sense_starts_nothing() {
    let env = TestEnv::new();
    let words = ["run", "--contain", "pidns", "--stop-command", "true", "echo", "ran"];
    env.call(words).refused(125, "outside of the pid namespace");
    let cases = [
        (r#"{"command":[]}"#, "the list `command` of `stop` is empty"),
        (r#"{"qmp":{"socket":"qmp"}}"#, "has no directory of sockets"),
        (r#"{"http":{"socket":"/s","path":"/x","method":"put"}}"#, "no method of HTTP"),
        (r#"{"http":{"socket":"/s","path":"x"}}"#, "begins with `/`"),
        (r#"{"ftp":{}}"#, "unknown variant `ftp`"),
    ];
    for (stop, part) in cases {
        let flag = spec_flag(&env, &format!(r#"{{"stop":{stop}}}"#));
        env.call(["run", flag.as_str(), "echo", "ran"]).refused(125, part);
    }
}

/// The flag of a file with this text.
fn spec_flag(env: &TestEnv, text: &str) -> String {
    let path = env.path("work/spec.json");
    std::fs::write(&path, text).unwrap();
    format!("--spec={}", path.display())
}
