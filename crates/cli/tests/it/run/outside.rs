//! `run --allow-outside`: sandboxes that members start outside (`run -d --outside`), and trees that are handed over (`keep`).

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Level, Process, Running, Sandbox, TestEnv, Who, fresh_id, has_debug_assertions, has_program, json, skip,
    wait_until,
};

/// Starts `sleep 1001`, with a child, outside.
const NEW: &str = "$PENFOLD --root $ROOT run -d --contain $LEVEL --outside --name out -- \
    sh -c 'sleep 1002 & exec sleep 1001' > $OUT";
/// Starts the same inside, and hands it over.
const KEPT: &str = "setsid sh -c 'sleep 1002 & exec sleep 1001' < /dev/null > /dev/null 2>&1 & \
    until grep -q sleep /proc/$!/comm; do sleep 0.01; done; $PENFOLD --root $ROOT keep --name out $! > $OUT";
/// Then leaves strays of the sandbox itself.
const REST: &str = "echo out >> $UP; sleep 2000 & setsid sleep 2001 & \
    until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo lead >> $UP";
/// The crash points of a sandbox that is being started outside, or handed over.
const POINTS: [&str; 4] = ["recorded", "leaf-made", "adopted", "adopted-kept"];

fn levels(env: &TestEnv) -> Vec<Level> {
    env.levels().into_iter().filter(|level| *level != Level::Pidns).collect()
}

/// The two ways out, as far as the host has them: a tree that is handed over needs a cgroup.
fn ways(env: &TestEnv) -> Vec<(&'static str, &'static str)> {
    let mut ways = vec![("outside", NEW)];
    if env.levels().contains(&Level::Cgroup) {
        ways.push(("keep", KEPT));
    }
    ways
}

fn command(env: &TestEnv, words: &[&str], level: Level) -> std::process::Command {
    for file in ["work/up", "work/out", "work/r.json"] {
        let _ = std::fs::remove_file(env.path(file));
    }
    let mut command = env.penfold(words);
    command.env("LEVEL", level.word()).env("OUT", env.path("work/out"));
    command.stdout(Stdio::null());
    command
}

fn notes(env: &TestEnv) -> usize {
    crate::support::entries(&env.path("root/outside")).len()
}

/// Checks that of all that was started only the sandbox outside lives, for this state root and another one, and ends it.
#[track_caller]
fn check(env: &TestEnv, context: &str) {
    let id = std::fs::read_to_string(env.path("work/out")).unwrap();
    let outside = Sandbox::printed(env, &id);
    for text in ["sleep 2000", "sleep 2001", "sleep 4000"] {
        assert!(!env.is_running(text), "{context}: {text} lives");
    }
    let members: Vec<Process> =
        ["sleep 1001", "sleep 1002"].iter().flat_map(|text| env.running(text)).collect();
    assert_eq!(members.len(), 2, "{context}");
    let listed = env.call(["ps", "-q"]).with_code(0).out();
    assert!(listed.contains(outside.id.as_str()), "{context}: {listed}");
    env.call(["gc", "-f"]).with_code(0);
    env.run(["true"]).with_code(0);
    if !env.is_ordinary() {
        let elsewhere = |words: &[&str]| {
            let mut command = env.command(crate::support::penfold());
            Running::start(command.arg("--root").arg(env.path("other-root")).args(words)).finish()
        };
        let listed = elsewhere(&["ps", "-q"]).with_code(0).out();
        assert!(!listed.contains(outside.id.as_str()), "{context}: {listed}");
        elsewhere(&["gc", "-f"]).with_code(0);
        elsewhere(&["run", "true"]).with_code(0);
    }
    assert_eq!(outside.status(env).as_deref(), Some("running"), "{context}");
    assert!(members.iter().all(|one| !one.has_ended()), "{context}: another command ended it");
    env.call(["stop", "-t", "1s", &outside.id]).with_code(0);
    assert!(members.iter().all(Process::has_ended), "{context}");
    env.call(["rm", &outside.id]).with_code(0);
    assert_eq!(notes(env), 0, "{context}: a note is left");
    wait_until("the records are gone", || env.left().is_empty());
}

/// spec: 29.1, 29.2, 29.3
#[test]
fn sandbox_outside_lives_on_after_every_end_of_a_foreground_sandbox() {
    for who in [Who::Tester, Who::Delegated, Who::Plain] {
        let Some(env) = TestEnv::of(who) else { continue };
        for level in levels(&env) {
            for (way, start) in ways(&env) {
                for cause in ["exit", "limit", "term", "supervisor", "launcher", "both"] {
                    if who != Who::Tester && !matches!(cause, "exit" | "both") {
                        continue;
                    }
                    end_in_the_foreground(
                        &env,
                        level,
                        start,
                        cause,
                        &format!("{who:?} {level:?} {way} {cause}"),
                    );
                }
            }
        }
        env.assert_nothing_left();
    }
}

/// Ends a sandbox of the foreground from outside, if the cause is of that kind.
#[track_caller]
fn bring_about(cause: &str, running: &Running) {
    let supervisor = || {
        let found = crate::support::descendants(running.pid()).into_iter().filter_map(Process::find);
        let ours = |one: &Process| one.command_line().starts_with("pf-supervisor");
        let outside = |one: &Process| one.command_line().contains(" out");
        found.into_iter().find(|one| ours(one) && !outside(one)).expect("a supervisor")
    };
    match cause {
        "term" => running.signal(Signal::TERM),
        "supervisor" => supervisor().signal(Signal::KILL),
        "launcher" => running.signal(Signal::KILL),
        "both" => crate::support::kill_at_once(&[running.process(), &supervisor()]),
        _ => {}
    }
}

#[track_caller]
fn end_in_the_foreground(env: &TestEnv, level: Level, start: &str, cause: &str, context: &str) {
    let last = if cause == "exit" { "exit 3" } else { "exec sleep 4000" };
    let limit = if cause == "limit" { "--timeout=1s" } else { "--timeout=0" };
    let script = format!("{start} || exit 1; {REST}; {last}");
    let contain = format!("--contain={}", level.word());
    let words = [
        "run",
        "--allow-outside",
        &contain,
        "--grace",
        "300ms",
        limit,
        "--report",
        "r.json",
        "sh",
        "-c",
        &script,
    ];
    let mut command = command(env, &words, level);
    if matches!(cause, "launcher" | "both") {
        // What is left for a moment would hold it open.
        command.stderr(Stdio::null());
    } else {
        command.stderr(Stdio::piped());
    }
    let running = Running::spawn(&mut command);
    env.await_up(&["out", "lead"]);
    bring_about(cause, &running);
    let done = running.finish();
    if cause == "both" {
        env.run(["true"]).with_code(0);
    }
    wait_until("the sandbox has ended", || {
        !["sleep 2000", "sleep 2001", "sleep 4000"].iter().any(|text| env.is_running(text))
    });
    if matches!(cause, "exit" | "limit" | "term" | "supervisor") {
        let err = done.err();
        assert!(
            err.contains("outside: sandbox out (") && err.contains("`penfold stop out`"),
            "{context}: {err}"
        );
        assert!(err.contains("verified gone"), "{context}: {err}");
        let report = json(&env.path("work/r.json")).unwrap();
        assert_eq!(report["verified"], true, "{context}: {report}");
        assert_eq!(report["outside"][0]["name"], "out", "{context}: {report}");
        let strays = if cause == "exit" { 2 } else { 3 };
        assert_eq!(report["ended"].as_array().map(Vec::len), Some(strays), "{context}: {report}");
    }
    if cause == "exit" {
        assert_eq!(done.code(), Some(3), "{context}");
    }
    check(env, context);
}

/// spec: 29.2, 29.3
#[test]
fn sandbox_outside_lives_on_after_every_end_of_a_detached_sandbox() {
    let env = TestEnv::new();
    for level in levels(&env) {
        for (way, start) in ways(&env) {
            for verb in ["stop", "kill", "forced kill", "lost", "takeover"] {
                let context = format!("{level:?} {way} {verb}");
                let script = format!("{start} || exit 1; {REST}; exec sleep 4000");
                let words = [
                    "run",
                    "-d",
                    "--allow-outside",
                    "--contain",
                    level.word(),
                    "--grace",
                    "300ms",
                    "sh",
                    "-c",
                    &script,
                ];
                let mut command = command(&env, &words, level);
                let printed = Running::start(command.stdout(Stdio::piped())).finish().with_code(0).out();
                let sandbox = Sandbox::printed(&env, &printed);
                env.await_up(&["out", "lead"]);
                match verb {
                    "forced kill" => {
                        sandbox.stop_supervisors();
                        env.call(["kill", &sandbox.id]).with_code(0);
                    }
                    "lost" => {
                        sandbox.kill_supervisors();
                        env.call(["gc", "-f", &sandbox.id]).with_code(0);
                    }
                    "takeover" => {
                        let supervisors = sandbox.supervisors_now();
                        let supervisor = supervisors.iter().find(|one| one.command_line().starts_with("pf-"));
                        supervisor.unwrap().signal(Signal::KILL);
                        sandbox.await_end();
                    }
                    verb => drop(env.call([verb, &sandbox.id]).with_code(0)),
                }
                drop(env.call(["rm", "-f", &sandbox.id]));
                check(&env, &context);
            }
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.2
#[test]
fn sandbox_outside_lives_on_after_the_exec_that_started_it() {
    let env = TestEnv::new();
    for level in levels(&env) {
        for (way, start) in ways(&env) {
            let script = format!("{start} || exit 1; {REST}");
            let words = ["run", "-d", "--allow-outside", "--contain", level.word(), "sleep", "4000"];
            let mut outer = command(&env, &words, level);
            let printed = Running::start(outer.stdout(Stdio::piped())).finish().with_code(0).out();
            let sandbox = Sandbox::printed(&env, &printed);
            env.call(["exec", &sandbox.id, "sh", "-c", &script]).with_code(0);
            env.await_up(&["out", "lead"]);
            assert!(!env.is_running("sleep 2000"), "{level:?} {way}: the exec left a process");
            assert_eq!(env.running("sleep 1001").len(), 1, "{level:?} {way}: it ended with the exec");
            assert_eq!(env.running("sleep 4000").len(), 1, "{level:?} {way}");
            env.call(["stop", &sandbox.id]).with_code(0);
            env.call(["rm", &sandbox.id]).with_code(0);
            check(&env, &format!("{level:?} {way}"));
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.4
#[test]
fn sandbox_outside_without_supervisors_ends_with_the_one_that_it_left() {
    let env = TestEnv::new();
    for level in levels(&env) {
        for (way, start) in ways(&env) {
            let script = format!("{start} || exit 1; {REST}; read x");
            let words = ["run", "--allow-outside", "--contain", level.word(), "sh", "-c", &script];
            let mut running = Running::start(command(&env, &words, level).stdin(Stdio::piped()));
            env.await_up(&["out", "lead"]);
            let outside = Sandbox::printed(&env, &std::fs::read_to_string(env.path("work/out")).unwrap());
            outside.kill_supervisors();
            assert!(env.is_running("sleep 1001"), "{level:?} {way}");
            running.say("\n");
            running.finish().with_code(0);
            assert!(!env.is_running("sleep 1001"), "{level:?} {way}: it lives without a supervisor");
            assert!(!env.is_running("sleep 1002"), "{level:?} {way}");
            assert_eq!(notes(&env), 0, "{level:?} {way}: a note is left");
            env.call(["rm", "-f", &outside.id]).with_code(0);
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.4
#[test]
fn death_of_penfold_on_the_way_out_leaves_nothing() {
    if !has_debug_assertions() {
        return skip("the binary has no crash points");
    }
    let env = TestEnv::new();
    for level in levels(&env) {
        for (way, start) in ways(&env) {
            for point in POINTS {
                if way == "outside" && point.starts_with("adopted") {
                    continue;
                }
                let context = format!("{level:?} {way} {point}");
                let script = format!("export PENFOLD_CRASH_AT={point}; {start} && exit 9; {REST}");
                let words = ["run", "--allow-outside", "--contain", level.word(), "sh", "-c", &script];
                let done = Running::start(&mut command(&env, &words, level)).finish();
                // The supervisor of a tree that was handed over may die after the answer.
                assert!(matches!(done.code(), Some(0 | 9)), "{context}: {}", done.err());
                for text in ["sleep 2000", "sleep 2001"] {
                    assert!(!env.is_running(text), "{context}: {text} lives");
                }
                if done.code() == Some(0) || way == "keep" {
                    env.call(["gc", "-f"]).with_code(0);
                }
                drop(env.call(["rm", "-f", "out"]));
                wait_until("nothing is left", || {
                    drop(env.run(["true"]));
                    !env.is_running("sleep 1001") && !env.is_running("sleep 1002") && env.left().is_empty()
                });
                env.call(["gc", "-f"]).with_code(0);
                assert_eq!(notes(&env), 0, "{context}: a note is left");
            }
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.2
#[test]
fn sandbox_outside_of_a_nested_one_ends_with_the_enclosing_one() {
    let env = TestEnv::new();
    for level in levels(&env) {
        for (way, start) in ways(&env) {
            let inner = format!("{start} || exit 1; {REST}");
            let script = "$PF --allow-outside --contain $LEVEL sh -c \"$INNER\" || exit 1; \
                $PENFOLD --root $ROOT ps -q | grep -q $(cat $OUT) && echo alive >> $UP";
            let words = ["run", "--contain", level.word(), "sh", "-c", script];
            let mut command = command(&env, &words, level);
            let done = Running::start(command.env("INNER", &inner)).finish().with_code(0);
            env.await_up(&["out", "lead", "alive"]);
            assert!(!done.err().contains("not gone"), "{}", done.err());
            assert!(!env.is_running("sleep 1001"), "{level:?} {way}: {}", done.err());
            assert!(!env.is_running("sleep 2001"), "{level:?} {way}");
            drop(env.call(["rm", "-f", "out"]));
            env.call(["gc", "-f"]).with_code(0);
            assert_eq!(notes(&env), 0, "{level:?} {way}: a note is left");
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.1
#[test]
fn outside_is_refused_unless_the_sandbox_allows_it() {
    let env = TestEnv::new();
    for level in levels(&env) {
        let refused = |flags: &[&str], script: &str, code: i32, part: &str| {
            let words = [&["run", "--contain", level.word()], flags, &["sh", "-c", script]].concat();
            let done = Running::start(&mut command(&env, &words, level)).finish().with_code(code);
            assert!(done.err().contains(part), "{script}: {}", done.err());
            assert!(!env.is_running("sleep 1001"), "{script}");
        };
        let keep = "setsid sleep 1001 & until grep -q sleep /proc/$!/comm; do :; done; $PENFOLD --root $ROOT keep $!";
        refused(&[], &format!("exec {NEW}"), 125, "lets nothing go on outside of it");
        refused(&[], keep, 2, "lets nothing go on outside of it");
        refused(&["--allow-outside"], "$PENFOLD --root $ROOT keep $PPID", 2, "");
        refused(&["--allow-outside"], "$PENFOLD --root $ROOT keep $$", 2, "");
        let other = "exec $PENFOLD --root $ROOT/other run -d --outside sleep 1001";
        refused(&["--allow-outside"], other, 125, "has no record below");
        let nested = "$PF sleep 1001 & until $PENFOLD --root $ROOT ps -q | wc -l | grep -q 2; do sleep 0.05; done; $PENFOLD --root $ROOT keep $!";
        refused(&["--allow-outside"], nested, 2, "");
    }
    let words = ["run", "--allow-outside", "sleep", "1001"];
    let running = Running::start(&mut command(&env, &words, Level::Cgroup));
    wait_until("it runs", || env.is_running("sleep 1001"));
    let leader = env.running("sleep 1001").remove(0);
    let pid = leader.pid().to_string();
    env.call(["keep", &pid]).refused(2, "is the command of sandbox");
    running.signal(Signal::TERM);
    drop(running.finish());
    env.call(["run", "-d", "--outside", "true"]).refused(125, "is in no sandbox");
    env.call(["run", "--outside", "true"]).refused(125, "works for detached sandboxes only");
    env.call(["keep", &std::process::id().to_string()]).refused(2, "");
    env.call(["keep", "4194303"]).refused(3, "no such process");
    if has_program(&["unshare", "--version"]) {
        env.run(["--allow-outside", "--contain", "pidns", "true"]).refused(125, "`--allow-outside`");
        env.run(["--allow-outside", "--profile", "jail", "true"]).refused(125, "`--allow-outside`");
    }
    env.assert_nothing_left();
}

/// Ends sandboxes at any moment while their members start others outside: each of these runs, or nothing of it is left.
///
/// spec: 29.2, 29.4
#[test]
fn end_in_the_midst_of_starts_leaves_whole_sandboxes_or_nothing() {
    const ROUNDS: usize = 6;
    let env = TestEnv::new();
    for level in levels(&env) {
        for round in 0..ROUNDS {
            let script = "while [ $(wc -l < $UP) -lt 40 ]; do \
                $PENFOLD --root $ROOT run -d --contain $LEVEL --outside -- sh -c 'sleep 1002 & exec sleep 1001' >> $UP; done";
            let words = ["run", "--allow-outside", "--contain", level.word(), "sh", "-c", script];
            let mut command = command(&env, &words, level);
            std::fs::write(env.path("work/up"), "").unwrap();
            let running = Running::spawn(command.stderr(Stdio::null()));
            let started = || std::fs::read_to_string(env.path("work/up")).unwrap().lines().count();
            wait_until("some are started", || started() > round);
            running.signal(Signal::KILL);
            drop(running.finish());
            wait_until("the sandbox has ended", || env.find("sh -c while").is_empty());
            let context = format!("{level:?} {round}");
            let living = || {
                let all = env.call(["ps", "--json"]).with_code(0).json();
                // Those of other tests are listed, too, if nothing tells below which state root they are.
                let outside = |one: &&Value| {
                    one["claimed"] == true && one["command"][2].to_string().starts_with("\"sleep 1002")
                };
                let ids = all
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(outside)
                    .map(|one| one["id"].as_str().unwrap().to_owned());
                ids.collect::<Vec<_>>()
            };
            // One that was just being started ends, or has its note and then the rest.
            wait_until("each is whole", || {
                env.call(["gc", "-f"]).with_code(0);
                let count = living().len();
                let is_whole = |text| env.running(text).len() == count;
                notes(&env) == count && is_whole("sleep 1001") && is_whole("sleep 1002")
            });
            let printed = std::fs::read_to_string(env.path("work/up")).unwrap();
            let living = living();
            assert!(
                printed.lines().all(|id| living.iter().any(|one| one == id)),
                "{context}: {printed} {living:?}"
            );
            // Those that were killed while they were started are lost, and nothing of them is left but the record.
            // The sandbox itself may be listed, and be gone by now.
            for id in env.listed_ids(&["-a"]) {
                assert!(matches!(env.call(["rm", "-f", &id]).code(), Some(0 | 3)), "{context}: {id}");
            }
            assert!(!env.is_running("sleep 1001") && !env.is_running("sleep 1002"), "{context}");
            env.call(["gc", "-f"]).with_code(0);
            assert_eq!(notes(&env), 0, "{context}: a note is left");
        }
    }
    env.assert_nothing_left();
}

/// spec: 29.4
#[test]
fn a_note_whose_writer_died_before_it_was_whole_goes() {
    let env = TestEnv::new();
    let (mut writer, living) = (std::process::Command::new("true").spawn().unwrap(), std::process::id());
    writer.wait().unwrap();
    for directory in ["outside", "spared"] {
        let place = env.path("root").join(directory);
        std::fs::create_dir_all(&place).unwrap();
        let file = |writer: u32| {
            let path = place.join(format!("{}.{writer}.new", fresh_id()));
            std::fs::write(&path, "").unwrap();
            path
        };
        let (dead, alive) = (file(writer.id()), file(living));
        let foreign = place.join("notes.1.new");
        std::fs::write(&foreign, "").unwrap();
        env.call(["gc", "-f"]).with_code(0);
        assert!(!dead.try_exists().unwrap(), "{directory}");
        assert!(alive.try_exists().unwrap() && foreign.try_exists().unwrap(), "{directory}");
    }
}
