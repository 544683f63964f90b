//! `penfold guard`: tests that leave processes behind.

use std::time::{Duration, Instant};

use penfold_testkit::Bystander;
use rustix::process::Signal;
use serde_json::Value;

use crate::end::standing::await_said;
use crate::support::{Process, Running, TestEnv, entries, has_program, is_root, json, skip, wait_until};

/// Leaves a daemon below two shells, which end, and passes.
const LEAKS: &str =
    "PENFOLD_TEST=suite::leaks sh -c 'setsid sleep 1000 & sleep 0.3; exit 0'; echo lead >> $UP";

fn guard(env: &TestEnv, words: &[&str]) -> crate::support::Finished {
    env.call(["guard", "-t", "50ms"].iter().chain(words))
}

/// The leaks in a report.
#[track_caller]
fn leaks(env: &TestEnv, name: &str) -> Vec<Value> {
    let report = json(&env.path("work").join(name)).unwrap();
    report["leaks"].as_array().cloned().unwrap_or_default()
}

/// spec: 21.1
#[test]
fn tests_without_leaks_keep_their_code_and_output() {
    let env = TestEnv::new();
    for (script, code) in [("echo out; echo err >&2", 0), ("echo out; echo err >&2; exit 3", 3)] {
        let done = guard(&env, &["sh", "-c", script]).with_code(code);
        assert_eq!(done.out(), "out\n");
        assert!(done.err().starts_with("err\n") && done.err().contains("without leaks"), "{}", done.err());
    }
    assert_eq!(guard(&env, &["sh", "-c", "kill -9 $$"]).signal(), Some(9));
    guard(&env, &["/no/such/runner"]).refused(127, "/no/such/runner");
    env.assert_nothing_left();
}

/// spec: 21.1, 21.2
#[test]
fn a_leak_is_ended_and_named_with_its_test_and_parents() {
    let env = TestEnv::new();
    for level in env.levels() {
        let flags = ["--contain", level.word(), "--report", "r.json", "--junit", "j.xml", "sh", "-c", LEAKS];
        let done = guard(&env, &flags).with_code(123);
        assert!(!env.is_running("sleep 1000"), "{level:?}");
        let leaks = leaks(&env, "r.json");
        let [leak] = leaks.as_slice() else { panic!("{level:?}: {leaks:?}") };
        assert_eq!((&leak["command"], &leak["test"]), (&"sleep 1000".into(), &"suite::leaks".into()));
        let parents = leak["parents"].as_array().unwrap();
        let commands: Vec<&str> = parents.iter().map(|parent| parent["command"].as_str().unwrap()).collect();
        assert_eq!(commands[0], "sh -c 'setsid sleep 1000 & sleep 0.3; exit 0'", "{level:?}");
        assert!(commands[1].starts_with("sh -c \"PENFOLD_TEST="), "{level:?}: {commands:?}");
        assert!(leak["age_ms"].as_u64().unwrap() >= 300, "{leak}");
        for part in ["leak: sleep 1000 (pid ", "test: suite::leaks", "started by: sh -c 'setsid sleep 1000 &"]
        {
            assert!(done.err().contains(part), "no `{part}` in {}", done.err());
        }
        let junit = std::fs::read_to_string(env.path("work/j.xml")).unwrap();
        assert!(junit.contains("failures=\"1\"") && junit.contains("name=\"suite::leaks\""), "{junit}");
    }
    env.assert_nothing_left();
}

/// spec: 21.5
#[test]
fn the_tests_have_a_directory_for_homes_that_goes_with_them() {
    let env = TestEnv::new();
    let script = "[ -d \"$PENFOLD_TEST_HOME_BASE\" ] && echo \"$TMPDIR $PENFOLD_TEST_HOME_BASE\" \
        && mkdir \"$PENFOLD_TEST_HOME_BASE/home\"";
    for (verb, homes) in [("guard", "homes"), ("guard-each", "")] {
        let done =
            Running::start(env.penfold([verb, "sh", "-c", script]).env("PENFOLD_TEST_HOME_BASE", "/outer"))
                .finish()
                .with_code(0);
        let said = done.out();
        let (scratch, base) = said.trim_end().split_once(' ').unwrap();
        let scratch = std::path::Path::new(scratch);
        assert_eq!(std::path::Path::new(base), scratch.join(homes), "{verb}");
        assert!(!scratch.try_exists().unwrap());
    }
    env.assert_nothing_left();
}

/// spec: 21.1
#[test]
fn tests_of_root_that_become_another_user_have_a_temporary_directory() {
    if !is_root() {
        return skip("only root becomes another user");
    }
    let env = TestEnv::new();
    for verb in ["guard", "guard-each"] {
        let script = "setpriv --reuid 65534 --clear-groups sh -c 'mkdir -m 0 $TMPDIR/theirs $PENFOLD_TEST_HOME_BASE/home && id -u' \
             && echo $TMPDIR";
        let done = Running::start(&mut env.penfold([verb, "sh", "-c", script])).finish().with_code(0);
        let said = done.out();
        let (user, directory) = said.trim_end().split_once('\n').unwrap();
        assert_eq!(user, "65534");
        assert!(!std::path::Path::new(directory).try_exists().unwrap(), "{verb}: {directory} is left");
    }
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn ports_and_open_files_are_named() {
    if !has_program(&["python3", "-c", "import socket"]) {
        return;
    }
    let env = TestEnv::new();
    let serves = "import socket, time; f = open('held', 'w'); s = socket.create_server(('127.0.0.1', 0)); \
        open('port', 'w').write(str(s.getsockname()[1])); time.sleep(1000)";
    let script = format!("python3 -c \"{serves}\" & until [ -s port ]; do sleep 0.05; done");
    guard(&env, &["--report", "r.json", "sh", "-c", &script]).with_code(123);
    let port = std::fs::read_to_string(env.path("work/port")).unwrap();
    let leaks = leaks(&env, "r.json");
    assert_eq!(leaks[0]["ports"], serde_json::json!([format!("127.0.0.1:{port}")]));
    let held = env.path("work/held").canonicalize().unwrap();
    assert!(leaks[0]["files"].as_array().unwrap().contains(&held.to_str().unwrap().into()), "{}", leaks[0]);
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn streams_of_the_tests_are_no_open_files_of_a_leak() {
    let env = TestEnv::new();
    // The log of a server is its own; the log of the tests is not.
    let script = "sleep 1000 & one=$!; sleep 1001 > server.log &
        for pid in $one $!; do until grep -q sleep /proc/$pid/comm; do :; done; done; exit 0";
    let mut command = env.penfold(["guard", "-t", "50ms", "--report", "r.json", "sh", "-c", script]);
    let log = std::fs::File::create(env.path("work/tests.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    assert_eq!(command.status().unwrap().code(), Some(123));
    let files = |command: &str| {
        let leaks = leaks(&env, "r.json");
        let leak = leaks.iter().find(|leak| leak["command"] == command).unwrap();
        leak["files"].as_array().cloned().unwrap_or_default()
    };
    assert!(std::fs::read_to_string(env.path("work/tests.log")).unwrap().contains("leak: sleep 1000"));
    assert_eq!(files("sleep 1000"), Vec::<Value>::new());
    let own = env.path("work").canonicalize().unwrap().join("server.log");
    assert_eq!(files("sleep 1001"), [own.to_str().unwrap()]);
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn a_dash_is_standard_output() {
    let env = TestEnv::new();
    let done = guard(
        &env,
        &[
            "--report",
            "-",
            "sh",
            "-c",
            "echo out; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; exit 0",
        ],
    )
    .with_code(123);
    let out = done.out();
    let report: Value = serde_json::from_str(out.strip_prefix("out\n").unwrap()).unwrap();
    assert_eq!(report["leaks"][0]["command"], "sleep 1000");
    let done = guard(&env, &["--junit", "-", "sh", "-c", "echo out; exit 3"]).with_code(3);
    assert!(done.out().starts_with("out\n<?xml "), "{}", done.out());
    guard(&env, &["--junit", "-", "--report", "-", "touch", "ran"]).refused(125, "the same file");
    assert!(entries(&env.path("work")).is_empty());
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn processes_of_penfold_are_no_parents() {
    let env = TestEnv::new();
    // An inner sandbox is left behind.
    let script = "$PENFOLD --root $ROOT run --on-owner-exit keep -- sh -c 'sleep 1000 & echo lead >> $UP; sleep 1001' & \
        until [ -e up ]; do sleep 0.05; done; sleep 0.5; exit 0";
    let mut command = env.penfold(["guard", "-t", "50ms", "--report", "r.json", "sh", "-c", script]);
    command.env("PENFOLD", crate::support::penfold()).env("ROOT", env.root());
    Running::start(&mut command).finish().with_code(123);
    let leaks = leaks(&env, "r.json");
    let leak = leaks.iter().find(|leak| leak["command"] == "sleep 1000").unwrap();
    let parents: Vec<&str> = leak["parents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|parent| parent["command"].as_str().unwrap())
        .collect();
    assert!(parents.len() == 2 && parents.iter().all(|parent| parent.starts_with("sh -c ")), "{parents:?}");
    env.assert_nothing_left();
}

/// spec: 21.1
#[test]
fn a_leak_keeps_the_code_of_failed_tests_and_can_be_a_warning() {
    let env = TestEnv::new();
    let others = [
        guard(&env, &["sh", "-c", "sleep 1000 & exit 3"]).with_code(3),
        guard(&env, &["--leaks", "warn", "sh", "-c", "sleep 1000 & exit 0"]).with_code(0),
    ];
    for done in others {
        assert!(done.err().contains("leak: sleep 1000"), "{}", done.err());
        assert!(!done.err().contains("hint"), "{}", done.err());
    }
    // The code of leaks comes with what helps; the other word for `--ignore` is one of that.
    let script = ["sh", "-c", "sleep 1000 & exit 0"];
    let said = guard(&env, &script).with_code(123).err();
    assert!(said.lines().last().unwrap().starts_with("hint: 123 is for what was left"), "{said}");
    assert_eq!(
        env.call(["-q", "guard", "-t", "0s", "sh", "-c", "sleep 1000 & exit 0"])
            .with_code(123)
            .err()
            .matches("hint")
            .count(),
        0
    );
    for word in ["--spare", "--ignore"] {
        guard(&env, &[word, "sleep", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & exit 0"]).with_code(0);
        let spared = env.running("sleep 1000");
        assert_eq!(spared.len(), 1, "{word}");
        spared[0].signal(rustix::process::Signal::KILL);
        wait_until("it is gone", || !env.is_running("sleep 1000"));
    }
    assert!(!env.is_running("sleep 1000"));
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn a_process_that_ends_by_itself_within_the_grace_is_no_leak() {
    let env = TestEnv::new();
    let ends = "(until [ -e go ]; do sleep 0.05; done; echo late >> $UP) & echo lead >> $UP";
    let running = env.begin(["guard", "-t", "1h", "sh", "-c", ends]);
    await_said(&env, "lead", 1);
    assert!(running.is_alive());
    std::fs::write(env.path("work/go"), "").unwrap();
    let done = running.finish().with_code(0);
    assert!(done.err().contains("without leaks"), "{}", done.err());
    await_said(&env, "late", 1);
    // A stop and a time limit hasten the end.
    let running = env.begin(["guard", "-t", "1h", "sh", "-c", "sleep 1000 & echo lead >> $UP"]);
    await_said(&env, "lead", 2);
    running.signal(Signal::TERM);
    drop(running.finish());
    assert!(!env.is_running("sleep 1000"));
    let begun = Instant::now();
    env.call(["guard", "-t", "1h", "--timeout", "300ms", "sh", "-c", "sleep 1000 & exit 0"]).with_code(123);
    assert!(begun.elapsed() < Duration::from_mins(1));
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn strays_of_tests_that_time_out_are_named() {
    let env = TestEnv::new();
    let script = "setsid sleep 1001 & echo lead >> $UP; sleep 1000";
    let done = guard(&env, &["--timeout", "300ms", "--report", "r.json", "sh", "-c", script]).with_code(124);
    let named = leaks(&env, "r.json");
    assert_eq!(
        named.iter().map(|leak| leak["command"].as_str().unwrap()).collect::<Vec<_>>(),
        ["sleep 1001"]
    );
    assert!(done.err().contains("timed out") && done.err().contains("leak: sleep 1001"), "{}", done.err());
    env.assert_nothing_left();
}

/// spec: 21.3
#[test]
fn a_guard_that_is_killed_leaves_a_report_and_nothing_else() {
    let env = TestEnv::new();
    let script = "setsid sleep 1001 & echo $TMPDIR > tmp; echo lead >> $UP; sleep 1000";
    let running = env.begin(["guard", "--report", "r.json", "sh", "-c", script]);
    await_said(&env, "lead", 1);
    wait_until("all run", || env.is_running("sleep 1000") && env.is_running("sleep 1001"));
    let members: Vec<Process> =
        env.running("sleep 1000").into_iter().chain(env.running("sleep 1001")).collect();
    running.signal(Signal::KILL);
    drop(running.finish());
    for member in &members {
        member.await_end();
    }
    wait_until("the report is written", || json(&env.path("work/r.json")).is_some());
    let named = leaks(&env, "r.json");
    assert_eq!(
        named.iter().map(|leak| leak["command"].as_str().unwrap()).collect::<Vec<_>>(),
        ["sleep 1001"]
    );
    let directory = std::fs::read_to_string(env.path("work/tmp")).unwrap();
    let gone = || !std::path::Path::new(directory.trim_end()).try_exists().unwrap();
    wait_until("the temporary directory is removed", gone);
    wait_until("nothing is left", || env.left().is_empty());
}

/// spec: 21.1
#[test]
fn the_temporary_directory_is_its_own_and_the_working_directory_stays() {
    let env = TestEnv::new();
    let done = guard(&env, &["sh", "-c", "pwd; echo $TMPDIR; touch $TMPDIR/left here"]).with_code(0);
    let out = done.out();
    let [here, temporary] = out.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(std::path::Path::new(here), env.path("work").canonicalize().unwrap());
    assert!(!std::path::Path::new(temporary).try_exists().unwrap());
    assert_eq!(entries(&env.path("work")).len(), 1);
    env.assert_nothing_left();
}

/// As for mktemp(1), an empty TMPDIR is none. Tests change their working directory.
///
/// spec: 21.1
#[test]
fn the_temporary_directory_has_an_absolute_path() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("work/below")).unwrap();
    let script = "cd below && mktemp && echo $TMPDIR $PENFOLD_TEST_HOME_BASE | xargs -n 1";
    let here = env.path("work").canonicalize().unwrap().display().to_string();
    for verb in ["guard", "guard-each"] {
        for (given, start) in
            [("", "/tmp/penfold-"), (".", here.as_str()), ("../work/below", here.rsplit_once('/').unwrap().0)]
        {
            let mut command = env.penfold([verb, "sh", "-c", script]);
            let done = Running::start(command.env("TMPDIR", given)).finish().with_code(0);
            let paths = done.out();
            assert_eq!(
                paths.lines().filter(|path| path.starts_with(start)).count(),
                3,
                "{verb}, `{given}`: {paths}"
            );
        }
    }
    assert!(entries(&env.path("work/below")).is_empty());
    env.assert_nothing_left();
}

/// spec: 21.3
#[test]
fn guards_at_the_same_time_touch_only_their_own() {
    let env = TestEnv::new();
    let mut bystander = Bystander::spawn().unwrap();
    let waits = "sleep 100$N & echo lead >> $UP; until [ -e go ]; do sleep 0.05; done";
    let begin = |number: &str| {
        let mut command =
            env.penfold(["guard", "-t", "50ms", "--report", &format!("r{number}"), "sh", "-c", waits]);
        Running::start(command.env("N", number))
    };
    let guards = ["1", "2", "3"].map(begin);
    await_said(&env, "lead", 3);
    std::fs::write(env.path("work/go"), "").unwrap();
    for (guard, number) in guards.into_iter().zip(1..) {
        guard.finish().with_code(123);
        let leaks = leaks(&env, &format!("r{number}"));
        let commands: Vec<&str> = leaks.iter().map(|leak| leak["command"].as_str().unwrap()).collect();
        assert_eq!(commands, [format!("sleep 100{number}")]);
    }
    bystander.assert_alive();
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn github_gets_annotations_and_a_summary() {
    let env = TestEnv::new();
    let mut command =
        env.penfold(["guard", "-t", "50ms", "sh", "-c", "PENFOLD_TEST='a::b' sleep 1000 & exit 0"]);
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", env.path("work/summary"));
    let done = Running::start(&mut command).finish().with_code(123);
    assert!(done.err().contains("::error title=a%3A%3Ab leaked::leak: sleep 1000 (pid "), "{}", done.err());
    let summary = std::fs::read_to_string(env.path("work/summary")).unwrap();
    assert!(summary.contains("| sleep 1000 (pid ") && summary.contains("| a::b |"), "{summary}");
    env.assert_nothing_left();
}

/// spec: 21.2
#[test]
fn what_appeared_on_the_host_is_named() {
    if !is_root() || !has_program(&["unshare", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    // In a mount namespace of its own, so that no other test sees it.
    let penfold = env.penfold(["guard"]).get_program().to_owned();
    let script = format!(
        "'{}' --root $ROOT guard -t 0 -- sh -c 'mkdir point; mount -t tmpfs none point'",
        penfold.display()
    );
    let mut command = env.command("unshare");
    command.args(["-m", "sh", "-c", &script]).env("ROOT", env.root());
    let done = Running::start(&mut command).finish().with_code(0);
    assert!(
        done.err().contains("perhaps made by others: mount ") && done.err().contains("/point"),
        "{}",
        done.err()
    );
}

/// spec: 21.1
#[test]
fn a_report_that_cannot_be_kept_is_refused_before_the_tests_run() {
    let env = TestEnv::new();
    for file in ["/dev/null", "/no/such/dir/r.json"] {
        guard(&env, &["--report", file, "touch", "ran"]).refused(125, "cannot write the report");
    }
    guard(&env, &["--junit", "/no/such/dir/j.xml", "touch", "ran"]).refused(125, "cannot write the leaks");
    guard(&env, &["--junit", "../same", "--report", "../same", "touch", "ran"]).refused(125, "the same file");
    assert!(entries(&env.path("work")).is_empty());
}

/// spec: 21.1
#[test]
fn a_report_that_the_tests_have_removed_is_told() {
    let env = TestEnv::new();
    let script = "rm -r ../out; mkdir ../out; exit 7";
    for (flag, said) in [
        ("--report=../out/r.json", "cannot write the report"),
        ("--junit=../out/j.xml", "cannot write `../out/j.xml`"),
    ] {
        std::fs::create_dir_all(env.path("out")).unwrap();
        let done = guard(&env, &[flag, "sh", "-c", script]).with_code(7);
        assert!(done.err().contains(&format!("{said}: the file was removed meanwhile")), "{}", done.err());
        assert!(entries(&env.path("out")).is_empty());
    }
    std::fs::create_dir_all(env.path("out")).unwrap();
    let done = env.run(["--report=../out/r.json", "sh", "-c", script]).with_code(7);
    assert!(done.err().contains("cannot write the report: the file was removed meanwhile"), "{}", done.err());
    // A caller's file without a name loses none.
    for flag in ["--report", "--junit"] {
        let script = format!(
            "exec 3<>unnamed && rm unnamed && $PENFOLD --root $ROOT guard {flag} /dev/fd/3 true && [ -s /dev/fd/3 ]"
        );
        assert_eq!(env.script(&script).with_code(0).err().lines().count(), 1);
    }
    // Without a file there is nothing to tell.
    assert_eq!(guard(&env, &["true"]).with_code(0).err().lines().count(), 1);
}

/// spec: 21.4
#[test]
fn each_test_of_a_runner_is_guarded_by_itself() {
    let env = TestEnv::new();
    // What a runner does: a process for each test, below a guard of all.
    let script = "for name in clean leaks; do
        PENFOLD_TEST=suite::$name $PENFOLD --root $ROOT guard-each -t 50ms -- sh -c \"echo $name; [ $name = clean ] || { sleep 1000 & }\"
        echo $name $? >> codes
    done";
    let mut command = env.penfold(["guard", "-t", "50ms", "--report", "r.json", "sh", "-c", script]);
    command.env("PENFOLD", crate::support::penfold()).env("ROOT", env.root());
    let done = Running::start(&mut command).finish().with_code(0);
    assert_eq!(done.out(), "clean\nleaks\n");
    let codes = std::fs::read_to_string(env.path("work/codes")).unwrap();
    assert_eq!(codes, "clean 0\nleaks 123\n");
    assert!(
        done.err().contains("leak: sleep 1000") && done.err().contains("test: suite::leaks"),
        "{}",
        done.err()
    );
    assert_eq!(
        done.err().matches("without leaks").count(),
        1,
        "the guard of a clean test said something: {}",
        done.err()
    );
    assert!(leaks(&env, "r.json").is_empty());
    env.assert_nothing_left();
}

/// What is written about the tests never changes their code.
///
/// spec: 21.1
#[test]
fn a_file_that_cannot_be_written_at_the_end_is_told_and_the_code_stays() {
    let env = TestEnv::new();
    let done = guard(&env, &["--junit", "/dev/full", "sh", "-c", "exit 7"]).with_code(7);
    assert!(done.err().contains("cannot write `/dev/full`"), "{}", done.err());
    guard(&env, &["--junit", "/dev/full", "sh", "-c", "sleep 1000 & exit 0"]).with_code(123);
    env.assert_nothing_left();
}

/// More than are described.
///
/// spec: 21.2
#[test]
fn all_of_many_leaks_are_in_the_report() {
    let env = TestEnv::new();
    let script = "i=0; while [ $i -lt 270 ]; do setsid sleep 1000 & i=$((i + 1)); done";
    let done = guard(&env, &["--report", "r.json", "sh", "-c", script]).with_code(123);
    assert_eq!(leaks(&env, "r.json").len(), 270);
    assert!(
        done.err().contains("270 processes were left") && done.err().contains("220 more"),
        "{}",
        done.err()
    );
    env.assert_nothing_left();
}

/// spec: 21.7
#[test]
fn an_ignored_daemon_is_listed_and_is_no_leak() {
    let env = TestEnv::new();
    let daemon = env.path("work/cache-server");
    std::fs::copy("/bin/sleep", &daemon).unwrap();
    let ignored = format!("setsid {} 1000 > /dev/null 2>&1 & sleep 0.2; exit 0", daemon.display());
    let flags = ["-t", "1h", "--ignore", "cache-server", "--report", "r.json", "sh", "-c"];
    let begun = Instant::now();
    let done = env.call(["guard"].iter().chain(&flags).chain(&[ignored.as_str()])).with_code(0);
    // The grace is for processes that may end by themselves.
    assert!(begun.elapsed() < Duration::from_mins(5));
    assert!(done.err().contains("without leaks"), "{}", done.err());
    assert!(done.err().contains(&format!("ignored: {} 1000 (pid ", daemon.display())), "{}", done.err());
    assert_eq!(leaks(&env, "r.json"), Vec::<Value>::new());
    let [server] = env.find(daemon.to_str().unwrap()).try_into().unwrap();
    let report = json(&env.path("work/r.json")).unwrap();
    assert_eq!(report["spared"][0]["pid"], Process::pid(&server), "{report}");
    server.signal(Signal::KILL);
    server.await_end();
    // Beside it, a leak is one.
    let both = format!("setsid sleep 2000 & {ignored}");
    let flags = ["--ignore", daemon.to_str().unwrap(), "sh", "-c", &both];
    let done = guard(&env, &flags).with_code(123);
    assert!(done.err().contains("leak: sleep 2000") && done.err().contains("ignored: "), "{}", done.err());
    assert!(!env.is_running("sleep 2000"));
    for server in env.find(daemon.to_str().unwrap()) {
        server.signal(Signal::KILL);
        server.await_end();
    }
    env.assert_nothing_left();
}

/// spec: 21.8
#[test]
fn quiet_exit_keeps_the_code() {
    let env = TestEnv::new();
    let code = |flags: &[&str], script: &str| guard(&env, &[flags, &["sh", "-c", script]].concat()).code();
    for (flags, script, expected) in [
        (&["--quiet-exit"][..], "sleep 1000 & exit 0", 0),
        (&["--quiet-exit"], "sleep 1000 & exit 7", 7),
        (&["--quiet-exit", "--timeout", "100ms"], "sleep 1000", 124),
        (&["--quiet-exit=3"], "sleep 1000 & exit 0", 3),
        (&["--quiet-exit=0"], "exit 7", 0),
        (&["--quiet-exit=3"], "kill -9 $$", 3),
    ] {
        assert_eq!(code(flags, script), Some(expected), "{flags:?} {script}");
    }
    guard(&env, &["--quiet-exit", "/no/such/runner"]).refused(127, "/no/such/runner");
    let done = guard(&env, &["--quiet-exit=3", "/no/such/runner"]).with_code(3);
    assert!(done.err().contains("/no/such/runner"), "{}", done.err());
    // In an EXIT trap of the shell.
    for (ends, expected) in [("exit 0", 0), ("exit 5", 5), ("false", 1)] {
        let traps = "trap '\"$PENFOLD\" --root \"$ROOT\" -q guard -t 0 --quiet-exit=$? -- sh -c \"sleep 1000 & exit 9\"' EXIT";
        let done = env.script(&format!("set -e; {traps}; {ends}"));
        assert_eq!(done.code(), Some(expected), "{ends}: {}", done.err());
    }
    assert!(!env.is_running("sleep 1000"));
    env.assert_nothing_left();
}

/// spec: 21.1, 21.4
#[test]
fn tests_run_in_a_directory_that_was_removed() {
    let env = TestEnv::new();
    for (verb, code) in [("run", 0), ("guard", 123), ("guard-each", 123)] {
        let gone = env.path("work/gone");
        std::fs::create_dir(&gone).unwrap();
        let grace: &[&str] = if verb == "run" { &[] } else { &["-t", "0s"] };
        let script = "rmdir ../gone; exec \"$@\"";
        let inner = "setsid sleep 4781 & kill -0 $! && readlink /proc/self/cwd";
        let penfold = env.penfold([&[verb][..], grace, &["sh", "-c", inner]].concat());
        let mut shell = env.command("sh");
        shell.envs(penfold.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.args(["-c", script, "sh"]).arg(penfold.get_program()).args(penfold.get_args());
        let done = Running::start(shell.current_dir(&gone)).finish().with_code(code);
        assert_eq!(done.out(), format!("{} (deleted)\n", gone.display()), "{verb}");
        assert!(!env.is_running("sleep 4781"), "{verb}");
    }
    env.assert_nothing_left();
}
