//! `penfold restart` and `run -d --restart`: all lives of a sandbox have one id, one record and one log.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::sandboxes::{await_running, everywhere, remove};
use crate::support::{
    Finished, PATIENCE, Process, Running, Sandbox, TestEnv, entries, has_debug_assertions, is_root, skip,
    wait_until,
};

/// The crash points on the way of a restart only.
pub const POINTS: [&str; 5] = ["restarting", "waiting", "life-kept", "life-replaced", "life-emptied"];

/// A command that fails in its first lives, and stays in the life of this number. Each life notes its id, and the members of former
/// lives that are still alive; it leaves a daemon behind.
pub fn failing(lives: u32) -> String {
    format!(
        "for pid in $(cut -d' ' -f2 lives); do kill -0 $pid && echo $pid >>alive; done 2>/dev/null
        setsid sleep 1141 & echo $PENFOLD_SANDBOX $! >>lives
        kill -0 $! || exit 0
        [ $(wc -l <lives) -lt {lives} ] && exit 3
        exec sleep 1142"
    )
}

/// The ids of the lives of [`failing`] so far.
pub fn lives(env: &TestEnv) -> Vec<String> {
    let text = fs::read_to_string(env.path("work/lives")).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// Starts a command that fails until the life of this number, and waits until that stays.
#[track_caller]
pub fn start_failing(env: &TestEnv, flags: &[&str], count: u32) -> Sandbox {
    fs::write(env.path("work/lives"), "").unwrap();
    fs::set_permissions(env.path("work/lives"), fs::Permissions::from_mode(0o666)).unwrap();
    env.detach([&["--name", "web"], flags, &["--", "sh", "-c", &failing(count)]].concat())
}

/// Waits until the life of this number runs under the name.
#[track_caller]
pub fn await_life(env: &TestEnv, number: usize) -> Sandbox {
    wait_until("the life runs", || lives(env).len() == number && env.is_running("sleep 1142"));
    let id = lives(env).pop().unwrap();
    assert_eq!(inspect(env, "web")["id"], id.as_str());
    Sandbox::printed(env, &format!("{id}\n"))
}

pub fn inspect(env: &TestEnv, id: &str) -> Value {
    env.call(["inspect", id]).with_code(0).json()[0].clone()
}

/// The report of a life.
pub fn report(env: &TestEnv, id: &str, life: usize) -> Value {
    env.call(["report", "--json", "--life", &life.to_string(), id]).with_code(0).json()[0].clone()
}

/// The events of this kind, as JSON.
pub fn events(env: &TestEnv, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(env.path("root/events.jsonl")).unwrap_or_default();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["kind"] == kind).collect()
}

pub fn records(env: &TestEnv) -> Vec<PathBuf> {
    entries(&env.path("root/sandboxes"))
}

/// Waits until no process of penfold is on its way to the next life.
#[track_caller]
pub fn await_no_process(env: &TestEnv) {
    wait_until("nothing runs", || env.processes().is_empty() && env.processes().is_empty());
}

/// spec: 27.1
#[test]
fn the_next_life_has_the_command_the_environment_and_the_directory_of_the_first() {
    everywhere(|env, level| {
        let script = "echo \"$A $PWD $(umask)\"; sleep 1143 & exec sleep 1144";
        let flags = ["-d", "--contain", level.word(), "--name", "web", "-l", "job=7", "-e", "A=of the first"];
        let mut command = env.run_command([&flags[..], &["--", "sh", "-c", script]].concat());
        let printed = Running::start(command.env("B", "1")).finish().with_code(0).out();
        let old = Sandbox::printed(env, &printed);
        let members = await_running(env, &["sleep 1143", "sleep 1144"]);
        let mut restart = env.penfold(["restart", "web"]);
        restart.env("A", "of the caller").current_dir("/");
        let new = Sandbox::printed(env, &Running::start(&mut restart).finish().with_code(0).out());
        assert!(members.iter().chain(&old.supervisors).all(Process::has_ended));
        assert_eq!(new.id, old.id);
        let report = report(env, &old.id, 1);
        assert_eq!((&report["cause"], &report["by"]["verb"]), (&json!("stop"), &json!("restart")));
        await_running(env, &["sleep 1143", "sleep 1144"]);
        wait_until("the output is the same", || env.call(["logs", "web"]).out().lines().count() == 2);
        let out = env.call(["logs", "web"]).out();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0] == lines[1] && lines[0].starts_with("of the first "), "{out}");
        let seen = inspect(env, "web");
        assert_eq!((&seen["id"], &seen["restart_of"]), (&json!(new.id), &json!(null)));
        assert_eq!((&seen["restarts"], &seen["labels"]), (&json!(1), &json!({"job": "7"})));
        let started = events(env, "start").pop().unwrap();
        assert_eq!((&started["id"], &started["life"]), (&json!(old.id), &json!(2)));
        assert_eq!((&started["restart_of"], &started["restarts"]), (&json!(null), &json!(1)));
        assert_eq!(env.listed(&["-a"]).len(), 1);
        remove(env, &new);
        assert!(records(env).is_empty());
        let _ = fs::remove_file(env.path("root/events.jsonl"));
    });
}

/// spec: 27.1
#[test]
fn a_sandbox_that_has_ended_is_started_by_its_id() {
    let env = TestEnv::new();
    let old = env.detach(["--name", "web", "--", "sleep", "1145"]);
    env.call(["kill", "web"]).with_code(0);
    for life in 2..4 {
        let new = Sandbox::printed(&env, &env.call(["restart", &old.id]).with_code(0).out());
        let members = await_running(&env, &["sleep 1145"]);
        assert_eq!((new.id.as_str(), members.len()), (old.id.as_str(), 1));
        assert_eq!(inspect(&env, "web")["restarts"], life - 1);
    }
    let said = env.call(["report", "--life", "3", "web"]).with_code(1);
    assert!(said.err().contains("this life has not ended"), "{}", said.err());
    let said = env.call(["report", "--life", "4", "web"]).with_code(1);
    assert!(said.err().contains("its newest life is 3"), "{}", said.err());
    env.call(["stop", &old.id]).with_code(0);
    assert!(env.running("sleep 1145").is_empty());
    assert_eq!(report(&env, "web", 1)["cause"], "kill");
    for life in 2..4 {
        assert_eq!(report(&env, "web", life)["cause"], "stop");
    }
    remove(&env, &old);
    env.assert_nothing_left();
}

/// spec: 27.1
#[test]
fn sandboxes_that_cannot_be_restarted_are_refused_and_go_on() {
    let env = TestEnv::new();
    let foreground = Running::start(&mut env.run_command(["--name", "front", "--", "sleep", "1146"]));
    let removed = env.detach(["--rm", "--", "sleep", "1147"]);
    let mut stray = env.command("sleep");
    let stray = Running::start(stray.arg("1148"));
    let adopted = env.call(["adopt", &stray.pid().to_string()]).with_code(0).out();
    let adopted = Sandbox::printed(&env, &adopted);
    let members = await_running(&env, &["sleep 1146", "sleep 1147", "sleep 1148"]);
    env.call(["restart", "front"]).refused(1, "in the foreground");
    env.call(["restart", &removed.id]).refused(1, "`--rm`");
    env.call(["restart", &adopted.id]).refused(1, "was adopted");
    assert!(members.iter().all(|member| !member.has_ended()));
    for words in [&["--rm"][..], &["--on-owner-exit", "kill"]] {
        let words = [&["-d", "--restart", "on-failure"], words, &["--", "true"]].concat();
        env.run(words).refused(125, "`--restart` cannot be used together with");
    }
    env.run(["--restart", "on-failure", "--", "true"]).refused(125, "detached");
    env.run(["-d", "--restart", "on-failure:0", "--", "true"]).refused(125, "on-failure:N");
    env.call(["kill", "front", &removed.id, &adopted.id]).with_code(0);
    foreground.finish();
    stray.finish();
    remove(&env, &adopted);
    env.assert_nothing_left();
}

/// spec: 27.1
#[test]
fn a_start_that_fails_can_be_repeated() {
    let env = TestEnv::new();
    let program = env.path("work/program");
    fs::write(&program, "#!/bin/sh\nexec sleep 1149\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let old = env.detach(["--name", "web", "--", program.to_str().unwrap()]);
    let members = await_running(&env, &["sleep 1149"]);
    fs::rename(&program, env.path("work/other")).unwrap();
    env.call(["restart", "web"]).refused(127, "program");
    old.assert_gone(&members);
    assert_eq!(records(&env), std::slice::from_ref(&old.record));
    // The record is that of the first life again.
    let seen = inspect(&env, "web");
    assert_eq!((&seen["restarts"], &seen["status"]), (&json!(0), &json!("killed")));
    assert_eq!(report(&env, "web", 1)["cause"], "stop");
    assert_eq!(env.call(["logs", "web"]).with_code(0).err(), "");
    fs::rename(env.path("work/other"), &program).unwrap();
    let new = Sandbox::printed(&env, &env.call(["restart", "web"]).with_code(0).out());
    await_running(&env, &["sleep 1149"]);
    assert_eq!((&new.id, &inspect(&env, "web")["restarts"]), (&old.id, &json!(1)));
    remove(&env, &new);
    env.assert_nothing_left();
}

/// spec: 27.2
#[test]
fn of_many_restarts_at_once_one_sandbox_runs() {
    for name in [&["--name", "web"][..], &[]] {
        let env = TestEnv::new();
        let first = env.detach([name, &["--", "sleep", "1150"]].concat());
        let restarts: Vec<Running> = (0..12).map(|_| env.begin(["restart", &first.id])).collect();
        let finished: Vec<_> = restarts.into_iter().map(Running::finish).collect();
        let winners: Vec<String> =
            finished.iter().filter(|one| one.code() == Some(0)).map(Finished::out).collect();
        // One that comes later restarts what the first one has started.
        assert!(!winners.is_empty());
        for loser in finished.iter().filter(|one| one.code() != Some(0)) {
            let said = loser.err();
            let is_clear = said.contains("another command");
            assert!(is_clear && loser.out().is_empty(), "{said}");
        }
        assert!(winners.iter().all(|id| id.trim_end() == first.id));
        assert_eq!(env.running("sleep 1150").len(), 1);
        assert_eq!(inspect(&env, &first.id)["restarts"], winners.len());
        remove(&env, &first);
        assert!(records(&env).is_empty());
        env.assert_nothing_left();
    }
}

/// spec: 27.3
#[test]
fn the_launch_file_is_private_and_leaves_with_the_record() {
    let env = TestEnv::new();
    let mut command = env.run_command(["-d", "--", "sleep", "1151"]);
    command.env("SECRET", "of the caller").env("PENFOLD_TOKEN", "of penfold");
    let sandbox = Sandbox::printed(&env, &Running::start(&mut command).finish().with_code(0).out());
    let launch = sandbox.record.join("launch");
    assert_eq!(fs::metadata(&launch).unwrap().permissions().mode() & 0o777, 0o600);
    let text = String::from_utf8_lossy(&fs::read(&launch).unwrap()).into_owned();
    assert!(text.contains("SECRET=of the caller") && !text.contains("of penfold"), "{text}");
    let removed = env.detach(["--rm", "--", "sleep", "1152"]);
    assert!(!removed.record.join("launch").try_exists().unwrap());
    env.call(["restart", &sandbox.id]).with_code(0);
    assert_eq!(String::from_utf8_lossy(&fs::read(&launch).unwrap()), text);
    assert_eq!(fs::metadata(&launch).unwrap().permissions().mode() & 0o777, 0o600);
    env.call(["kill", &removed.id]).with_code(0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 27.4, 27.6
#[test]
fn a_command_that_fails_runs_again_once_the_former_life_is_gone() {
    everywhere(|env, level| {
        let _ = fs::remove_file(env.path("root/events.jsonl"));
        start_failing(env, &["--contain", level.word(), "--restart", "on-failure"], 4);
        let newest = await_life(env, 4);
        assert!(!env.path("work/alive").try_exists().unwrap(), "two lives at once");
        let lives = lives(env);
        let started = events(env, "start");
        let ids: Vec<&str> = started.iter().map(|event| event["id"].as_str().unwrap()).collect();
        assert_eq!(ids, lives);
        assert!(lives.iter().all(|id| *id == newest.id));
        for (number, event) in started.iter().enumerate().skip(1) {
            assert_eq!((&event["life"], &event["restarts"]), (&json!(number + 1), &json!(number)));
        }
        assert_eq!(inspect(env, "web")["restarts"], 3);
        assert_eq!((records(env).len(), env.listed(&["-a"]).len()), (1, 1));
        for life in 1..4 {
            let report = report(env, &newest.id, life);
            assert_eq!((&report["cause"], &report["exit"]), (&json!("exit"), &json!({"code": 3})));
            let strays = report["ended"].as_array().unwrap();
            assert_eq!(strays.len(), 1, "{report}");
        }
        env.call(["stop", "-t", "0", "web"]).with_code(0);
        await_no_process(env);
        assert!(newest.has_ended());
        env.call(["rm", "web"]).with_code(0);
        assert!(records(env).is_empty());
    });
}

/// spec: 27.4
#[test]
fn only_a_failure_of_the_command_itself_restarts_it() {
    let env = TestEnv::new();
    let flags = ["--restart", "on-failure", "--name", "web"];
    // (flags, command, what ends it)
    let cases: [(&[&str], &str, &[&str]); 7] = [
        (&[], "exit 0", &[]),
        (&[], "sleep 1153; exit 1", &["stop", "web"]),
        (&[], "sleep 1153; exit 1", &["kill", "web"]),
        (&[], "sleep 1153; exit 1", &["rm", "-f", "web"]),
        (&["--timeout", "300ms"], "sleep 1153; exit 1", &[]),
        (&["--ttl", "300ms"], "sleep 1153; exit 1", &[]),
        (&["--idle-timeout", "300ms"], "sleep 1153; exit 1", &[]),
    ];
    for (more, script, ended_by) in cases {
        let sandbox = env.detach([&flags[..], more, &["--", "sh", "-c", script]].concat());
        if !ended_by.is_empty() {
            await_running(&env, &["sleep 1153"]);
            env.call(ended_by).with_code(0);
        }
        sandbox.supervisors.iter().for_each(Process::await_end);
        await_no_process(&env);
        let left = records(&env);
        assert!(left.len() <= 1, "{more:?} {script} {ended_by:?}: {left:?}");
        remove_if_there(&env);
    }
    // The death of a penfold process.
    for number in [0, 1] {
        let sandbox = env.detach([&flags[..], &["--", "sh", "-c", "sleep 1153; exit 1"]].concat());
        await_running(&env, &["sleep 1153"]);
        sandbox.supervisors[number].signal(Signal::KILL);
        await_no_process(&env);
        assert_eq!(records(&env).len(), 1);
        assert_eq!(sandbox.cause().as_deref(), Some("supervisor"));
        remove_if_there(&env);
    }
    env.assert_nothing_left();
}

#[track_caller]
fn remove_if_there(env: &TestEnv) {
    let code = env.call(["rm", "web"]).code();
    assert!(matches!(code, Some(0 | 3)), "{code:?}");
}

/// spec: 27.4
#[test]
fn a_signal_of_another_process_restarts_it() {
    let env = TestEnv::new();
    let first = env.detach(["--restart", "on-failure", "--name", "web", "--", "sleep", "1154"]);
    first.leader().unwrap().signal(Signal::KILL);
    wait_until("the next life runs", || {
        inspect(&env, &first.id)["restarts"] == 1 && env.is_running("sleep 1154")
    });
    assert_eq!(report(&env, "web", 1)["cause"], "signal");
    env.call(["rm", "-f", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 27.5
#[test]
fn the_limit_ends_the_row_and_an_event_says_so() {
    let env = TestEnv::new();
    start_failing(&env, &["--restart", "on-failure:2"], 9);
    wait_until("an event says so", || events(&env, "no-restart").len() == 1);
    await_no_process(&env);
    assert_eq!(lives(&env).len(), 3);
    let event = &events(&env, "no-restart")[0];
    assert_eq!(event["reason"], "the limit of 2 restarts in a row is reached");
    assert_eq!(event["id"], lives(&env)[2].as_str());
    // Each life waits longer than the one before.
    let times =
        |kind| events(&env, kind).iter().map(|event| event["time_ns"].as_u64().unwrap()).collect::<Vec<_>>();
    let waits: Vec<u64> =
        times("start").iter().skip(1).zip(times("exit")).map(|(start, exit)| start - exit).collect();
    assert!(waits[0] >= 100_000_000 && waits[1] >= 200_000_000, "{waits:?}");
    // A request begins a new row.
    env.call(["restart", "web"]).with_code(0);
    wait_until("an event says so again", || events(&env, "no-restart").len() == 2);
    await_no_process(&env);
    assert_eq!(lives(&env).len(), 6);
    assert_eq!(inspect(&env, "web")["restarts"], 5);
    env.call(["rm", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 27.5
#[test]
fn a_stop_at_any_time_of_a_crash_loop_is_for_good() {
    for round in 0..30 {
        let env = TestEnv::new();
        start_failing(&env, &["--restart", "on-failure"], 99);
        // The stop meets each part of the way to the second life.
        wait_until("the first life ends", || lives(&env).len() == 1);
        penfold_testkit::until(std::time::Duration::from_millis(round), || false);
        let said = env.call(["stop", "-t", "0", "web"]).with_code(0);
        let looked = (records(&env), fs::read_to_string(env.path("root/events.jsonl")));
        if !penfold_testkit::until(std::time::Duration::from_secs(5), || env.processes().is_empty()) {
            let left: Vec<String> = env.processes().iter().map(Process::command_line).collect();
            panic!("round {round}: {left:?}, stopped {}{}, {looked:?}", said.out(), said.err());
        }
        let ended = records(&env).iter().all(|record| record.join("report.json").try_exists().unwrap());
        assert!(ended, "round {round}");
        remove_if_there(&env);
        env.assert_nothing_left();
    }
}

/// spec: 27.4, 27.5
#[test]
fn a_stop_between_the_end_and_the_next_life_loses_nothing() {
    if !has_debug_assertions() {
        return skip("only a build with debug assertions stops there");
    }
    let env = TestEnv::new();
    let words = ["-d", "--restart", "on-failure", "--name", "web", "--", "sh", "-c", "exit 3"];
    let out = Running::start(env.run_command(words).env("PENFOLD_STOP_AT", "restarting"))
        .finish()
        .with_code(0)
        .out();
    let sandbox = Sandbox::printed(&env, &out);
    // Where the kernel continues it at once, for it has lost its parent, the stop comes later.
    wait_until("its last process stops before the next life, or goes on", || {
        let is_stopped = env.processes().iter().any(|one| one.state() == Some('T'));
        is_stopped
            || !env.processes().iter().any(|one| sandbox.supervisors.iter().any(|own| own.id() == one.id()))
    });
    env.call(["stop", "-t", "0", "web"]).with_code(0);
    await_no_process(&env);
    assert_eq!(sandbox.cause().as_deref(), Some("exit"));
    assert!(events(&env, "lost").is_empty(), "{:?}", events(&env, "lost"));
    remove_if_there(&env);
    env.assert_nothing_left();
}

/// Adds a variable to the environment of the lives to come.
fn add_variable(sandbox: &Sandbox, variable: &str) {
    let mut file = fs::File::options().append(true).open(sandbox.record.join("launch")).unwrap();
    file.write_all(format!("{variable}\0").as_bytes()).unwrap();
}

/// spec: 27.7
#[test]
fn a_crash_on_the_way_leaves_a_record_or_the_next_life() {
    if !has_debug_assertions() {
        return skip("only a debug build has crash points");
    }
    let ways = [
        "waiting",
        "life-kept",
        "life-replaced",
        "life-emptied",
        "launch-kept",
        "recorded",
        "leaf-made",
        "standby-forked",
        "supervisor-cloned",
        "supervisor-started",
        "running",
    ];
    for point in ways {
        println!("case {point}");
        let env = TestEnv::new();
        start_failing(&env, &["--restart", "on-failure"], 1);
        let first = await_life(&env, 1);
        add_variable(&first, &format!("PENFOLD_CRASH_AT={point}"));
        first.leader().unwrap().signal(Signal::KILL);
        first.supervisors.iter().for_each(Process::await_end);
        // The process that starts the next life crashes, or one of those that it starts.
        wait_until("penfold has ended what it started", || {
            env.call(["ps", "-a"]).with_code(0);
            env.processes().is_empty()
        });
        assert!(!env.path("work/alive").try_exists().unwrap(), "two lives at once");
        assert_eq!(records(&env), std::slice::from_ref(&first.record), "no record says what happened");
        assert_eq!(report(&env, "web", 1)["exit"], json!({"signal": 9}));
        let seen = inspect(&env, "web");
        let never_began = ["waiting", "life-kept", "life-replaced", "life-emptied"].contains(&point);
        let restarts = seen["restarts"].as_u64().unwrap();
        assert!(restarts == 0 || (restarts == 1 && !never_began), "{seen}");
        if restarts == 0 {
            assert_eq!((&seen["status"], &seen["exit"]), (&json!("exited"), &json!({"signal": 9})));
        }
        assert!(["exited", "killed", "lost"].iter().any(|status| seen["status"] == *status), "{seen}");
        env.call(["rm", "-f", "--all"]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 27.7
#[test]
fn a_crash_before_the_next_life_leaves_the_record() {
    if !has_debug_assertions() {
        return skip("only a debug build has crash points");
    }
    let env = TestEnv::new();
    let mut command =
        env.run_command(["-d", "--name", "web", "--restart", "on-failure", "--", "sleep", "1156"]);
    command.env("PENFOLD_CRASH_AT", POINTS[0]);
    let first = Sandbox::printed(&env, &Running::start(&mut command).finish().with_code(0).out());
    first.leader().unwrap().signal(Signal::KILL);
    first.await_end();
    await_no_process(&env);
    assert_eq!(records(&env), std::slice::from_ref(&first.record));
    // A request starts it all the same.
    env.call(["restart", "web"]).with_code(0);
    await_running(&env, &["sleep 1156"]);
    remove(&env, &first);
    env.assert_nothing_left();
}

/// A mount on a cgroup in a leaf, which keeps the kernel from removing the leaf.
struct Held(PathBuf);

impl Held {
    fn on(leaf: &Path) -> Held {
        let path = leaf.join("held");
        fs::create_dir(&path).unwrap();
        rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), None).unwrap();
        Held(path)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::empty());
    }
}

/// spec: 27.2, 27.4
#[test]
fn nothing_is_started_while_something_is_left() {
    if !is_root() {
        return skip("only root may mount");
    }
    let env = TestEnv::new();
    let flags = ["--contain", "cgroup", "--patience", PATIENCE, "--name", "web", "--restart", "on-failure"];
    let sandbox = env.detach([&flags[..], &["--", "sleep", "1157"]].concat());
    let held = Held::on(sandbox.leaf.as_ref().unwrap());
    let said = env.call(["restart", "-t", "0", "--patience", PATIENCE, "web"]).with_code(120);
    assert!(said.err().contains("not gone: cgroup") && said.out().is_empty(), "{}", said.err());
    assert_eq!(records(&env), std::slice::from_ref(&sandbox.record));
    drop(held);
    sandbox.supervisors.iter().for_each(Process::await_end);
    await_no_process(&env);
    let next = Sandbox::printed(&env, &env.call(["restart", "web"]).with_code(0).out());
    // Without a request the next life waits for the end.
    let held = Held::on(next.leaf.as_ref().unwrap());
    next.leader().unwrap().signal(Signal::KILL);
    assert!(events(&env, "no-restart").is_empty());
    wait_until("an event says why", || events(&env, "no-restart").len() == 1);
    assert!(env.running("sleep 1157").is_empty());
    assert_eq!(events(&env, "no-restart")[0]["reason"], "1 of its members or resources is not gone");
    drop(held);
    wait_until("the next life runs", || !env.running("sleep 1157").is_empty());
    assert_eq!(inspect(&env, &next.id)["restarts"], 2);
    env.call(["rm", "-f", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 27.1
#[test]
fn without_its_directory_a_sandbox_is_not_ended_for_a_restart() {
    let env = TestEnv::new();
    let directory = env.path("work/d");
    let make = || fs::create_dir(&directory).unwrap();
    let run = |name: &str, flags: &[&str], here: &Path, script: &str| {
        let words = [&["run", "-d", "--name", name][..], flags, &["sleep", "1143"]].concat();
        let mut shell = env.command("sh");
        let penfold = env.penfold(words);
        shell.envs(penfold.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.args(["-c", script, "sh"]).arg(penfold.get_program()).args(penfold.get_args());
        Running::start(shell.current_dir(here)).finish().with_code(0);
    };
    let (work, given) = (env.path("work"), directory.display().to_string());
    make();
    run("removed", &[], &directory, "rmdir ../d; exec \"$@\"");
    make();
    run("start", &[], &directory, "exec \"$@\"");
    run("workdir", &["-w", &given], &work, "exec \"$@\"");
    fs::remove_dir(&directory).unwrap();
    for (name, part) in [
        ("removed", "in a directory that had been removed".to_owned()),
        ("start", format!("`{given}`, where it was started, does not exist")),
        ("workdir", format!("`{given}`, in which its command starts, does not exist")),
    ] {
        let restart = env.call(["restart", name]).with_code(1);
        assert!(restart.err().contains(&part), "{name}: {}", restart.err());
        let shown = inspect(&env, name);
        assert_eq!((&shown["status"], &shown["restarts"]), (&"running".into(), &0.into()), "{name}");
    }
    make();
    env.call(["restart", "start", "workdir"]).with_code(0);
    env.call(["rm", "-f", "removed", "start", "workdir"]).with_code(0);
    assert!(!env.is_running("sleep 1143"));
    env.assert_nothing_left();
}

/// spec: 27.4
#[test]
fn without_its_directory_no_next_life_starts_and_the_event_says_so() {
    let env = TestEnv::new();
    let directory = env.path("work/d");
    fs::create_dir(&directory).unwrap();
    let words = ["run", "-d", "--name", "web", "--restart", "on-failure", "sh", "-c", "rmdir ../d; exit 3"];
    Running::start(env.penfold(words).current_dir(&directory)).finish().with_code(0);
    env.call(["wait", "web"]).with_code(3);
    let told = || env.call(["events", "--no-follow", "--json"]).out();
    wait_until("the event is there", || told().contains("no-restart"));
    assert!(told().contains("where it was started, does not exist any more"), "{}", told());
    env.call(["rm", "web"]).with_code(0);
    env.assert_nothing_left();
}
