//! `penfold run --report`: what is in the file, for each way a run can end.

use std::collections::BTreeSet;
use std::fs::File;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Finished, Level, Process, Running, TestEnv, descendants, penfold};

/// Ends at the second polite signal. Says "got" outside of its trap: bash forgets a signal that comes while it runs the trap for the one before.
const TWICE: &str = "n=0; trap 'n=$((n+1))' TERM; mkfifo g; echo ready; while :; do read -r -t 0.02 <> g; \
    [ $n = 1 ] && [ -z $said ] && echo got && said=1; [ $n -ge 2 ] && exit 4; done";

fn read(env: &TestEnv) -> Value {
    let text = std::fs::read(env.path("work/report.json")).unwrap();
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)))
}

#[track_caller]
fn run(env: &TestEnv, words: &[&str]) -> (Finished, Value) {
    let ended = env.run(["--report", "report.json"].iter().chain(words));
    (ended, read(env))
}

/// The first process below a launcher that is not penfold.
#[track_caller]
fn leader_below(launcher: &Running) -> Process {
    let is_ours = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == penfold());
    let leader = descendants(launcher.pid()).into_iter().find(|&pid| !is_ours(pid));
    leader.and_then(Process::find).expect("no leader")
}

/// What every report has, whatever happened.
#[track_caller]
fn check_shape(report: &Value) {
    assert_eq!(report["schema"], 1, "{report}");
    assert_eq!(report["id"].as_str().map(str::len), Some(12), "{report}");
    for list in ["command", "ended", "survivors", "steps"] {
        assert!(report[list].is_array(), "{list}: {report}");
    }
    for number in ["started_at_ms", "duration_ms", "took_us", "cpu_us", "peak_memory_bytes"] {
        assert!(report[number].is_u64(), "{number}: {report}");
    }
    assert!(
        report["verified"].is_boolean() && report["cause"].is_string() && report["level"].is_string(),
        "{report}"
    );
    for ended in report["ended"].as_array().unwrap() {
        assert!(ended["pid"].as_i64() > Some(0) && ended["start_time"].as_u64() > Some(0), "{ended}");
        assert!(ended["how"] == "term" || ended["how"] == "kill", "{ended}");
        assert!(ended["name"].is_string() && ended["stray"].is_boolean(), "{ended}");
    }
    let took = report["took_us"].as_u64().unwrap();
    for step in report["steps"].as_array().unwrap() {
        let (at, lasted) = (step["at_us"].as_u64().unwrap(), step["took_us"].as_u64().unwrap());
        assert!(step["what"].is_string() && at + lasted <= took + 1000, "{step} of {took}");
    }
}

/// spec: 2.4
#[test]
fn exit_stop_kill_timeout_and_signal_are_told_apart() {
    let env = TestEnv::new();
    for level in env.levels() {
        let leader = |script: &'static str| ["--contain", level.word(), "bash", "-c", script];
        let (ended, report) = run(&env, &leader("exit 3"));
        ended.with_code(3);
        check_shape(&report);
        assert_eq!((&report["cause"], &report["exit"]["code"]), (&"exit".into(), &3.into()), "{report}");
        assert_eq!((&report["level"], &report["verified"]), (&level.word().into(), &true.into()), "{report}");
        assert_eq!(report["command"], serde_json::json!(["bash", "-c", "exit 3"]));

        let (ended, report) = run(&env, &leader("kill -9 $$"));
        ended.with_code(137);
        check_shape(&report);
        assert_eq!((&report["cause"], &report["exit"]["signal"]), (&"signal".into(), &9.into()), "{report}");

        // By default a process ignores WINCH: it goes on until the grace is over.
        let words = ["--timeout", "200ms", "--grace", "100ms", "--signal", "WINCH"];
        let limited = [&words[..], &leader("sleep 600; :")].concat();
        let (ended, report) = run(&env, &limited);
        ended.with_code(124);
        check_shape(&report);
        assert_eq!((&report["cause"], &report["exit"]["signal"]), (&"timeout".into(), &9.into()), "{report}");
        assert!(report["ended"].as_array().unwrap().iter().any(|ended| ended["how"] == "kill"), "{report}");

        for (signals, cause) in [(1, "stop"), (2, "kill")] {
            let words = ["--report", "report.json", "--grace", "60"];
            let launcher = Running::start(&mut env.run_command(words.iter().chain(&leader(TWICE))));
            launcher.hear("ready", 1);
            launcher.signal(Signal::TERM);
            launcher.hear("got", 1);
            if signals == 1 {
                // The second polite signal is another's: the leader ends by itself.
                leader_below(&launcher).signal(Signal::TERM);
                launcher.finish().with_code(4);
            } else {
                launcher.signal(Signal::TERM);
                launcher.finish().with_code(137);
            }
            std::fs::remove_file(env.path("work/g")).unwrap();
            let report = read(&env);
            check_shape(&report);
            // The first reason stands: a stop that became a kill was asked for as a stop.
            assert!(report["cause"] == cause || report["cause"] == "stop", "{report}");
        }
    }
    env.assert_nothing_left();
}

/// spec: 2.4
#[test]
fn failed_start_is_reported_too() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (command, code, failure) in
            [("no-such-command", 127, "not-found"), ("/etc/passwd", 126, "not-executable")]
        {
            let (ended, report) = run(&env, &["--contain", level.word(), command]);
            ended.with_code(code);
            check_shape(&report);
            assert_eq!(report["cause"], "start-failed", "{report}");
            assert!(report["exit"].is_null() && report["failure"].to_string().contains(failure), "{report}");
        }
    }
    env.assert_nothing_left();
}

#[test]
fn name_and_labels_are_in_it() {
    let env = TestEnv::new();
    let (_, report) = run(&env, &["--name", "web", "-l", "a=b", "--label", "c=", "-l", "a=d", "true"]);
    assert_eq!(report["name"], "web");
    assert_eq!(report["labels"], json!({"a": "d", "c": ""}));
}

/// spec: 1.1
#[test]
fn every_one_of_two_hundred_is_listed() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script =
            "for i in $(seq 200); do sleep 600 & done; for p in $(jobs -p); do echo $p; done; exit 3";
        let (ended, report) = run(&env, &["--contain", level.word(), "bash", "-c", script]);
        let ended = ended.with_code(3);
        assert!(ended.err().contains("200 processes"), "{}", ended.err());
        assert!(ended.err().lines().all(|line| line.len() < 2000), "too long for people: {}", ended.err());
        check_shape(&report);
        let listed: BTreeSet<i64> =
            report["ended"].as_array().unwrap().iter().filter_map(|ended| ended["pid"].as_i64()).collect();
        assert_eq!(listed.len(), 200, "{level:?}");
        assert!(report["ended"].as_array().unwrap().iter().all(|ended| ended["stray"] == true));
        // A pid namespace has its own numbers inside.
        if level != Level::Pidns {
            let started: BTreeSet<i64> = ended.out().lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(listed, started);
        }
    }
    env.assert_nothing_left();
}

#[test]
fn shorter_report_replaces_a_longer_one() {
    let env = TestEnv::new();
    std::fs::write(env.path("work/report.json"), "x".repeat(100_000)).unwrap();
    let (_, report) = run(&env, &["true"]);
    check_shape(&report);
    std::os::unix::fs::symlink("report.json", env.path("work/link")).unwrap();
    env.run(["--report", "link", "false"]).with_code(1);
    assert_eq!(read(&env)["exit"]["code"], 1);
}

#[test]
fn working_directory_does_not_move_the_report() {
    let env = TestEnv::new();
    let (ended, _) = run(&env, &["-w", "/", "pwd"]);
    assert_eq!(ended.out(), "/\n");
}

/// spec: 2.4
#[test]
fn report_goes_to_pipes_and_descriptors() {
    let env = TestEnv::new();
    let ended = env.run(["--report", "/dev/stderr", "true"]).with_code(0);
    check_shape(&serde_json::from_slice(&ended.err).unwrap());
    let ended = env.script("$PF --report /dev/fd/7 echo out 7>&1 >/dev/null | cat").with_code(0);
    check_shape(&serde_json::from_slice(&ended.out).unwrap());
    let ended = env.script("mkfifo pipe; cat pipe & $PF --report pipe true; wait").with_code(0);
    check_shape(&serde_json::from_slice(&ended.out).unwrap());
    env.assert_nothing_left();
}

/// spec: 2.4
#[test]
fn a_dash_is_standard_output_after_what_the_command_wrote() {
    let env = TestEnv::new();
    for script in [
        "$PF --report - echo said | cat",
        "echo before > file; $PF --report - echo said >> file; cat file",
        "{ echo before; $PF --report - echo said; } > file; cat file",
    ] {
        let out = env.script(script).with_code(0).out();
        let (said, report) = out.split_once("said\n").unwrap_or_else(|| panic!("{script}: {out}"));
        assert_eq!(said, if script.contains("before") { "before\n" } else { "" }, "{script}: {out}");
        check_shape(&serde_json::from_str(report).unwrap_or_else(|error| panic!("{script}: {error}: {out}")));
    }
    assert!(!env.path("work/-").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 7.1
#[test]
fn report_pipe_without_reader_hangs_nobody() {
    let env = TestEnv::new();
    let path = env.path("work/pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // One page: a report of a hundred processes is longer.
    let pipe = File::options().read(true).write(true).open(path).unwrap();
    rustix::pipe::fcntl_setpipe_size(&pipe, 4096).unwrap();
    let script = "exec 8<>pipe; $PF --report /dev/fd/8 bash -c \
        'for i in $(seq 100); do sleep 600 & done 2>/dev/null; exit 3'";
    let ended = env.script(script).with_code(3);
    assert!(ended.err().contains("report"), "nobody says that it is not written: {}", ended.err());
    env.assert_nothing_left();
}

/// spec: 7.1
#[test]
fn reader_of_the_report_that_goes_away_does_no_harm() {
    let env = TestEnv::new();
    env.script("$PF --report /dev/fd/7 sh -c 'sleep 600 & exit 3' 7> >(true); exit $?").with_code(3);
    env.assert_nothing_left();
}

/// spec: 2.4
#[test]
fn processor_time_and_memory_are_plausible() {
    let env = TestEnv::new();
    for level in env.levels() {
        // About 30 MiB in one variable, and then work until a tenth of a second is used.
        let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); \
            until read -r _ _ _ _ _ _ _ _ _ _ _ _ _ u s _ < /proc/self/stat; [ $((u + s)) -ge 10 ]; do :; done";
        let (ended, report) = run(&env, &["--contain", level.word(), "bash", "-c", script]);
        ended.with_code(0);
        let cpu = report["cpu_us"].as_u64().unwrap();
        let memory = report["peak_memory_bytes"].as_u64().unwrap();
        assert!((90_000..20_000_000).contains(&cpu), "{level:?}: {cpu} us");
        assert!((27_000_000..2_000_000_000).contains(&memory), "{level:?}: {memory} bytes");
    }
}

/// spec: 2.4
#[test]
fn report_names_what_was_done() {
    let env = TestEnv::new();
    let (_, report) = run(&env, &["--scratch", "sh", "-c", "sleep 600 & exit 0"]);
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().filter_map(|step| step["what"].as_str()).collect();
    for wanted in ["kill", "release directory ", "release record "] {
        assert!(steps.iter().any(|step| step.starts_with(wanted)), "no `{wanted}` in {steps:?}");
    }
    let begins = |step: &Value| (step["at_us"].as_u64().unwrap(), step["took_us"].as_u64().unwrap());
    let steps: Vec<_> = report["steps"].as_array().unwrap().iter().map(begins).collect();
    // A microsecond may be lost where times are rounded.
    let follows = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 <= pair[1].0 + 1;
    assert!(steps.windows(2).all(follows), "a step begins before the one above it has ended: {steps:?}");
}
