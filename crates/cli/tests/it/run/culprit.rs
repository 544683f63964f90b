//! What a time limit says: which processes ran then.

use rustix::process::Signal;
use serde_json::Value;

use super::super::end::standing::{await_state_d, frozen, write_to};
use crate::support::{Level, Running, TestEnv, wait_until};

/// Two processes that wait for no other one; the younger listens, and is of a test.
const SCRIPT: &str = "sleep 1061 & \
    PENFOLD_TEST='suite::hangs' python3 -c 'import socket, sys, time
s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen(); open(sys.argv[1], \"w\").write(str(s.getsockname()[1])); time.sleep(1000)' $0";

/// spec: 1.3.1
#[test]
fn a_time_limit_names_what_ran() {
    let env = TestEnv::new();
    let begin = |level: Level| {
        let word = level.word();
        let report = format!("{word}.json");
        let words = ["run", "--contain", word, "--timeout", "3s", "--report", &report];
        (level, env.begin(words.iter().chain(&["--", "sh", "-c", SCRIPT, word])))
    };
    // At once: each takes its time.
    let started: Vec<(Level, Running)> = env.levels().into_iter().map(begin).collect();
    for (level, running) in started {
        let said = running.finish().with_code(124).err();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(" (pid ")).collect();
        assert_eq!(lines.len(), 2, "{level:?}: {said}");
        let read = |name: &str| std::fs::read_to_string(env.path("work").join(name)).unwrap();
        let listens = format!("listens on 127.0.0.1:{}, test suite::hangs)", read(level.word()));
        assert!(lines[0].starts_with("penfold:   ran: "), "{said}");
        assert!(lines.iter().any(|line| line.contains("python3 -c") && line.ends_with(&listens)), "{said}");
        assert!(lines.iter().any(|line| line.contains("sleep 1061 (pid ")), "{said}");
        let report: Value = serde_json::from_str(&read(&format!("{}.json", level.word()))).unwrap();
        let running = report["running"].as_array().unwrap();
        // The shell waits for both, and the younger comes first.
        let starts: Vec<u64> = running.iter().map(|ran| ran["start_time"].as_u64().unwrap()).collect();
        assert!(starts.len() == 2 && starts[0] >= starts[1], "{report}");
        assert!(running.iter().all(|ran| ran["age_ms"].as_u64().is_some_and(|age| age > 500)), "{report}");
    }
    env.assert_nothing_left();
}

/// spec: 1.3.1
#[test]
fn a_quiet_time_limit_is_one_line() {
    let env = TestEnv::new();
    let done = env.call(["-q", "run", "--timeout", "2s", "sh", "-c", "sleep 1062; :"]).with_code(124);
    let text = done.err();
    // The shell may have a word as well.
    assert_eq!(text.matches("penfold: ").count(), 1, "{text}");
    assert!(text.contains(" timed out after ") && text.contains(" while sleep 1062 (pid "), "{text}");
    // A caller with a descriptor for the status reads it there.
    let script = "exec 3>/dev/null; \"$PENFOLD\" --root \"$ROOT\" -q run --status-fd 3 --timeout 1s sleep 1062; echo $?";
    let done = env.script(script);
    assert_eq!((done.out().as_str(), done.err().as_str()), ("124\n", ""));
    // Any other end is none.
    assert_eq!(env.call(["-q", "run", "sh", "-c", "sleep 1062 & exit 3"]).with_code(3).err(), "");
}

/// spec: 1.3.1
#[test]
fn an_exec_and_a_guard_say_what_ran() {
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1063"]);
    let done =
        env.call(["exec", "--timeout", "300ms", &sandbox.id, "sh", "-c", "sleep 1064; :"]).with_code(124);
    assert!(
        done.err().contains("  ran: sleep 1064 (pid ") && !done.err().contains("sleep 1063"),
        "{}",
        done.err()
    );
    env.call(["rm", "-f", &sandbox.id]).with_code(0);
    // At the level pidns it has other pids, and names nothing.
    if env.levels().contains(&Level::Pidns) {
        let sandbox = env.detach(["--contain", "pidns", "sleep", "1063"]);
        let done =
            env.call(["exec", "--timeout", "1s", &sandbox.id, "sh", "-c", "sleep 1064; :"]).with_code(124);
        assert!(done.err().contains("timed out") && !done.err().contains("ran: "), "{}", done.err());
        env.call(["rm", "-f", &sandbox.id]).with_code(0);
    }
    let done = env.call(["guard", "--timeout", "2s", "--", "sh", "-c", "sleep 1065; :"]).with_code(124);
    assert!(done.err().contains("  ran: sleep 1065 (pid "), "{}", done.err());
    let done = env.call(["-q", "guard", "--timeout", "2s", "--", "sh", "-c", "sleep 1065; :"]).with_code(124);
    assert!(
        done.err().matches("penfold: ").count() == 1 && done.err().contains(" while sleep 1065 (pid "),
        "{}",
        done.err()
    );
    env.assert_nothing_left();
}

/// spec: 1.3.1
#[test]
fn the_youngest_few_are_named() {
    let env = TestEnv::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1067 & done; wait";
    let done =
        env.call(["run", "--timeout", "2s", "--report", "r.json", "--", "sh", "-c", script]).with_code(124);
    assert_eq!(done.err().matches("sleep 1067 (pid ").count(), 4, "{}", done.err());
    let report: Value = serde_json::from_slice(&std::fs::read(env.path("work/r.json")).unwrap()).unwrap();
    assert_eq!(report["running"].as_array().map(Vec::len), Some(8), "{report}");
    // The report of a detached sandbox is where its time limit is read of.
    let sandbox = env.detach(["--timeout", "1s", "--name", "late", "sh", "-c", "sleep 1068; :"]);
    sandbox.await_end();
    let told = env.call(["report", "late"]).with_code(0).out();
    assert!(told.contains("\nrunning   sleep 1068 (pid "), "{told}");
    env.call(["rm", "late"]).with_code(0);
    env.assert_nothing_left();
}

/// A time limit that shortens the grace of another end names nothing.
/// spec: 1.3.1
#[test]
fn only_an_end_by_a_time_limit_names_what_ran() {
    let env = TestEnv::new();
    let script = "trap '' TERM; echo up >> $UP; while :; do sleep 0.1; done";
    let running =
        env.begin(["run", "--timeout", "2s", "--grace", "3s", "--report", "r.json", "sh", "-c", script]);
    env.await_up(&["up"]);
    running.signal(Signal::TERM);
    let done = running.finish();
    assert!(!done.err().contains("  ran: "), "{}", done.err());
    let report: Value = serde_json::from_slice(&std::fs::read(env.path("work/r.json")).unwrap()).unwrap();
    assert_eq!((&report["cause"], &report["running"]), (&"stop".into(), &Value::Null), "{report}");
    env.assert_nothing_left();
}

/// spec: 1.3.1
#[test]
fn one_that_hangs_in_the_kernel_is_named() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    // It lives on, and would hold the output.
    let script = format!("exec > /dev/null 2>&1; {}", write_to(&frozen));
    let mut command = env.run_command([
        "--timeout",
        "1s",
        "--grace",
        "100ms",
        "--patience",
        "300ms",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let running = Running::start(&mut command);
    let mut writer = None;
    wait_until("it writes", || {
        writer = env.running(&format!("sh -c {script}")).pop();
        writer.is_some()
    });
    let writer = writer.unwrap();
    await_state_d(&writer);
    let done = running.finish().with_code(120);
    assert!(
        done.err().contains(&format!(
            "  ran: sh -c 'exec > /dev/null 2>&1; {}' (pid {},",
            write_to(&frozen),
            writer.pid()
        )),
        "{}",
        done.err()
    );
    drop(frozen);
    writer.await_end();
    env.call(["gc", "-f"]).with_code(0);
    env.assert_nothing_left();
}
