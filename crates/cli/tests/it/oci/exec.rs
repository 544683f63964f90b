//! `exec` of a container with the annotation `dev.penfold.exec=contain`, and `run` in the foreground.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::bundle::{Engine, TREE, cgroups};
use super::id;
use crate::support::{
    Finished, Process, Running, TestEnv, has_debug_assertions, is_root, kill_at_once, skip, wait_until,
};

/// Strays of each kind: a daemon, one without an environment, and a plain child in the background.
const STRAYS: &str = "setsid sleep 1011 & setsid env -i sleep 1012 & (sleep 1013 &) &
    while [ $(grep -ls sleep /proc/[0-9]*/comm | wc -l) -lt 5 ]; do :; done";

const NAMES: [&str; 3] = ["sleep 1011", "sleep 1012", "sleep 1013"];

fn contain(config: &mut Value) {
    config["annotations"] = json!({ "dev.penfold.exec": "contain" });
}

/// A running container whose execs are contained; its first process and that one's child stay.
struct Contained<'a> {
    engine: Engine<'a>,
    env: &'a TestEnv,
    id: String,
    members: [Process; 2],
}

impl<'a> Contained<'a> {
    fn start(env: &'a TestEnv, private_pids: bool) -> Option<Contained<'a>> {
        let engine = Engine::new(env, "runc")?;
        let id = id(env);
        let init = engine.run(&id, &engine.bundle(TREE, private_pids, contain));
        let members = [init, engine.stray()];
        Some(Contained { engine, env, id, members })
    }

    fn exec(&self, words: &[&str]) -> Finished {
        self.engine.call(&[&["exec", &self.id], words].concat())
    }

    /// Starts a command that leaves strays and stays; returns it and its strays. `pid_file` may be left out.
    fn detach(&self, pid_file: Option<&str>, number: u32) -> (Process, Process) {
        let script = format!("setsid sleep {number} & exec sleep {}", number + 1);
        let file = self.env.path("work/exec.pid");
        let mut command = self.engine.command(&["exec", "--detach"]);
        if let Some(name) = pid_file {
            command.args([name, file.to_str().unwrap()]);
        }
        command.args([&self.id, "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().unwrap().success());
        let names = [format!("sleep {}", number + 1), format!("sleep {number}")];
        wait_until("both run", || names.iter().all(|name| self.env.is_running(name)));
        let [leader, stray] = names.map(|name| self.env.running(&name).remove(0));
        if pid_file.is_some() {
            assert_eq!(std::fs::read_to_string(file).unwrap(), leader.pid().to_string());
        }
        (leader, stray)
    }

    #[track_caller]
    fn await_execs_gone(&self) {
        wait_until("no cgroup of an exec is left", || self.exec_cgroups() == 0);
        assert!(self.members.iter().all(|member| !member.has_ended()), "the container runs");
    }

    fn exec_cgroups(&self) -> usize {
        let below = |dir: std::path::PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = cgroups(&self.id).into_iter().flat_map(below).map(|entry| entry.file_name());
        names.filter(|name| name.to_str().is_some_and(|name| name.starts_with("penfold-exec-"))).count()
    }

    fn delete(&self) {
        self.engine.call(&["delete", "--force", &self.id]).with_code(0);
        assert!(self.members.iter().all(Process::has_ended));
        assert_eq!(cgroups(&self.id), Vec::<std::path::PathBuf>::new());
        assert_eq!(self.engine.notes(), 0);
        self.env.assert_nothing_left();
    }
}

/// spec: 30.9
#[test]
fn what_an_exec_leaves_ends_with_its_command() {
    for private_pids in [true, false] {
        let env = TestEnv::new();
        let Some(container) = Contained::start(&env, private_pids) else { return };
        // The strays hold the stream: it ends with them.
        let done = container.exec(&["sh", "-c", &format!("{STRAYS}; echo said; exit 7")]).with_code(7);
        assert_eq!(done.out(), "said\n");
        wait_until("no stray is left", || !NAMES.iter().any(|name| env.is_running(name)));
        container.await_execs_gone();
        let told = || std::fs::read_to_string(env.root().join("events.jsonl")).unwrap_or_default();
        wait_until("an event says so", || told().contains("\"ended\""));
        assert!(told().contains("exec: pid") && told().contains("sleep 1011"), "{}", told());
        container.delete();
    }
}

/// spec: 30.9
#[test]
fn execs_at_the_same_time_end_one_by_one() {
    let env = TestEnv::new();
    // Nobody reaps the commands here, and the first process of a pid namespace waits for that.
    let Some(container) = Contained::start(&env, false) else { return };
    let (first, its) = container.detach(Some("--pid-file"), 1014);
    let (second, others) = container.detach(None, 1016);
    first.signal(Signal::KILL);
    its.await_end();
    assert!(!second.has_ended() && !others.has_ended());
    second.signal(Signal::KILL);
    others.await_end();
    container.await_execs_gone();
    let files = std::fs::read_dir(env.root().join("oci")).unwrap().count();
    assert_eq!(files, 1, "the note alone");
    container.delete();
}

/// spec: 30.9
#[test]
fn exec_in_the_foreground_ends_with_its_caller_and_with_the_delegate() {
    let env = TestEnv::new();
    // Nobody reaps a command whose delegate was killed, and the first process of a pid namespace waits for that.
    let Some(container) = Contained::start(&env, false) else { return };
    for kills_caller in [true, false] {
        let command = container.engine.command(&[
            "exec",
            &container.id,
            "sh",
            "-c",
            "setsid sleep 1018 & exec sleep 1019",
        ]);
        let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
        let mut caller = env.command("sh");
        caller.args(["-c", "\"$@\"; :", "sh"]).args(words);
        caller.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let running = Running::spawn(caller.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        wait_until("both run", || ["sleep 1018", "sleep 1019"].iter().all(|name| env.is_running(name)));
        let members = [env.running("sleep 1018").remove(0), env.running("sleep 1019").remove(0)];
        let shell = Process::find(running.pid()).unwrap();
        if kills_caller {
            shell.signal(Signal::KILL);
        } else {
            let is_delegate = |one: &Process| one.command_line().starts_with("/usr/sbin/runc ");
            env.processes().into_iter().find(is_delegate).expect("the delegate").signal(Signal::KILL);
        }
        members.iter().for_each(Process::await_end);
        container.await_execs_gone();
        drop(running.finish());
    }
    container.delete();
}

/// spec: 30.9
#[test]
fn container_can_be_given_other_processors_during_a_contained_exec() {
    let env = TestEnv::new();
    let Some(container) = Contained::start(&env, false) else { return };
    let cpuset = cgroups(&container.id).into_iter().find(|dir| dir.join("cpuset.cpus").is_file());
    let Some(cpus) = cpuset.map(|dir| dir.join("cpuset.cpus")) else { return skip("no v1 cpuset") };
    let before = std::fs::read_to_string(&cpus).unwrap();
    let Some((first, _)) = before.trim().split_once(['-', ',']) else { return skip("one processor") };
    let (leader, stray) = container.detach(None, 1021);
    assert!(container.exec_cgroups() > 0, "the command has a cgroup of its own");
    container.engine.call(&["update", "--cpuset-cpus", first, &container.id]).with_code(0);
    assert_eq!(std::fs::read_to_string(&cpus).unwrap().trim(), first);
    assert!(!leader.has_ended() && !stray.has_ended());
    leader.signal(Signal::KILL);
    stray.await_end();
    container.await_execs_gone();
    container.delete();
}

/// spec: 30.9
#[test]
fn engine_that_takes_its_pid_file_away_at_once_changes_nothing() {
    let env = TestEnv::new();
    let Some(container) = Contained::start(&env, false) else { return };
    let file = env.path("work/taken.pid");
    let exec = |script: &str| {
        let words =
            ["exec", "--detach", "--pid-file", file.to_str().unwrap(), &container.id, "sh", "-c", script];
        let mut exec = container.engine.command(&words);
        assert!(exec.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        let pid = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        pid
    };
    // A command that goes on.
    let pid = exec("setsid sleep 1011 & exec sleep 1012");
    wait_until("both run", || env.is_running("sleep 1011") && env.is_running("sleep 1012"));
    let [leader, stray] = ["sleep 1012", "sleep 1011"].map(|name| env.running(name).remove(0));
    assert_eq!(pid, leader.pid().to_string());
    assert!(!leader.has_ended() && !stray.has_ended());
    // Commands that end at once.
    for _ in 0..10 {
        exec("setsid sleep 1013 & :");
    }
    wait_until("their strays are gone", || !env.is_running("sleep 1013"));
    assert!(!leader.has_ended() && !stray.has_ended());
    leader.signal(Signal::KILL);
    stray.await_end();
    container.await_execs_gone();
    container.delete();
}

/// spec: 30.9
#[test]
fn caller_that_ignores_its_children_starts_contained_commands() {
    let env = TestEnv::new();
    let Some(container) = Contained::start(&env, false) else { return };
    let exec =
        container.engine.command(&["exec", &container.id, "sh", "-c", "setsid sleep 1011 & echo said"]);
    let mut python = env.command("python3");
    python.args(["-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"]);
    python.arg(exec.get_program()).args(exec.get_args());
    python.envs(exec.get_envs().filter_map(|(key, value)| Some((key, value?))));
    assert_eq!(Running::start(&mut python).finish().out(), "said\n");
    container.await_execs_gone();
    container.delete();
}

/// spec: 30.9
#[test]
fn variable_holds_where_there_is_no_annotation() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    for (annotation, is_contained) in [(None, true), (Some("plain"), false)] {
        let bundle = engine.bundle("sleep 1002", false, |config| {
            config["annotations"] =
                annotation.map_or(json!({}), |value| json!({ "dev.penfold.exec": value }));
        });
        let mut create = engine.command(&["create", "--bundle"]);
        create.arg(bundle).arg(&id).env("PENFOLD_OCI_EXEC", "contain");
        assert!(create.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        engine.call(&["start", &id]).with_code(0);
        let mut exec =
            engine.command(&["exec", "--detach", &id, "sh", "-c", "setsid sleep 1011 & sleep 1012"]);
        assert!(exec.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        wait_until("both run", || env.is_running("sleep 1011") && env.is_running("sleep 1012"));
        assert_eq!(!env.find("penfold-oci").is_empty(), is_contained, "{annotation:?}");
        engine.call(&["delete", "--force", &id]).with_code(0);
        wait_until("no follower is left", || env.find("penfold-oci").is_empty());
    }
    env.assert_nothing_left();
}

/// spec: 30.9
#[test]
fn containers_that_do_not_ask_for_it_have_plain_execs() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    let mut command = engine.command(&["exec", "--detach", &id, "sh", "-c", "setsid sleep 1011 & :"]);
    assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    wait_until("the stray runs", || env.is_running("sleep 1011"));
    let stray = env.running("sleep 1011").remove(0);
    assert!(env.find("penfold-oci").is_empty() && !stray.has_ended());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(stray.has_ended() && init.has_ended());
    env.assert_nothing_left();
}

/// The crash point after a `run` in the foreground.
pub const RUN_POINT: &str = "oci-run-ended";

/// The crash points of an exec.
pub const POINTS: [&str; 4] = ["oci-exec", "oci-followed", "oci-exec-made", "oci-exec-ended"];

/// spec: 30.9, 30.8
#[test]
fn penfold_that_is_killed_leaves_nothing_that_outlives_the_container() {
    if !has_debug_assertions() {
        return skip("the binary has no crash points");
    }
    for point in POINTS {
        let env = TestEnv::new();
        let Some(container) = Contained::start(&env, false) else { return };
        let mut command = container.engine.command(&["exec", "--detach", &container.id]);
        command.args(["sh", "-c", "setsid sleep 1011 & sleep 1012 & :"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).env("PENFOLD_CRASH_AT", point);
        let done = Running::spawn(&mut command).finish();
        if point == "oci-exec-ended" {
            done.with_code(0);
            wait_until("the follower is gone", || env.find("penfold-oci").is_empty());
            wait_until("both live", || env.is_running("sleep 1011") && env.is_running("sleep 1012"));
        } else {
            assert_eq!(done.signal(), Some(9), "{point}");
            container.await_execs_gone();
        }
        container.delete();
    }
}

/// spec: 30.2
#[test]
fn run_in_the_foreground_leaves_no_note() {
    if !is_root() {
        return skip("only root can use runc here");
    }
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    for private_pids in [true, false] {
        let bundle = engine.bundle("setsid sleep 1001 & echo said; exit 3", private_pids, |_| ());
        let mut command = engine.command(&["run", "--bundle"]);
        let done = Running::start(command.arg(&bundle).arg(&id)).finish().with_code(3);
        assert_eq!(done.out(), "said\n");
        wait_until("the note is removed", || engine.notes() == 0);
        assert!(!env.is_running("sleep 1001"));
        assert_eq!(cgroups(&id), Vec::<std::path::PathBuf>::new());
        env.assert_nothing_left();
    }
}

/// spec: 30.2, 30.8
#[test]
fn run_whose_follower_is_killed_keeps_its_note() {
    if !has_debug_assertions() {
        return skip("the binary has no crash points");
    }
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let mut command = engine.command(&["run", "--bundle"]);
    command.arg(engine.bundle("exit 3", true, |_| ())).arg(&id).env("PENFOLD_CRASH_AT", RUN_POINT);
    Running::start(&mut command).finish().with_code(3);
    wait_until("the follower is gone", || env.find("penfold-oci").is_empty());
    assert_eq!(engine.notes(), 1);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert_eq!(engine.notes(), 0);
    env.assert_nothing_left();
}

/// spec: 30.2
#[test]
fn run_that_follows_at_once_keeps_its_note_and_its_processes() {
    if !has_debug_assertions() {
        return skip("the binary does not stop there");
    }
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let mut first = engine.command(&["run", "--bundle"]);
    first.arg(engine.bundle("exit 3", false, |_| ())).arg(&id).env("PENFOLD_STOP_AT", RUN_POINT);
    Running::start(&mut first).finish().with_code(3);
    wait_until("the follower stops", || {
        env.find("penfold-oci").iter().any(|follower| follower.state() == Some('T'))
    });
    let follower = env.find("penfold-oci").remove(0);
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    let stray = engine.stray();
    follower.signal(Signal::CONT);
    follower.await_end();
    assert!(!init.has_ended() && !stray.has_ended() && engine.notes() == 1);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended() && stray.has_ended() && engine.notes() == 0);
    env.assert_nothing_left();
}

/// spec: 30.2, 30.8
#[test]
fn run_whose_delegate_is_killed_keeps_its_note() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let bundle = engine.bundle(TREE, false, |_| ());
    let mut command = engine.command(&["run", "--bundle"]);
    command.arg(&bundle).arg(&id).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running::spawn(&mut command);
    let stray = engine.stray();
    kill_at_once(&[&Process::find(running.pid()).unwrap()]);
    drop(running.finish());
    wait_until("the follower is gone", || env.find("penfold-oci").is_empty());
    assert!(!stray.has_ended());
    assert_eq!(engine.notes(), 1);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(stray.has_ended());
    assert_eq!(engine.notes(), 0);
    env.assert_nothing_left();
}
