//! `penfold run` with a member that cannot end: penfold names the member, the supervisor stays and notices the later end.
//!
//! The matrix of hostile trees also has a member that became root; the tests here check the report about such a member.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use penfold_testkit::proc::{Handle, Identity};
use penfold_testkit::{Tool, ToolExit, Tree};
use rustix::process::Signal;
use serde_json::Value;

use super::foreground::{Shape, await_nothing_left, left, run_command};
use super::standing::{frozen, write_to};
use crate::support::{
    DEADLINE, Level, PATIENCE, Process, Running, TestEnv, USER, Who, entries, has_program, json, penfold,
    wait_until,
};

/// What the report says of this survivor.
#[track_caller]
fn survivor(report: &Path, member: Identity) -> Value {
    let report = json(report).unwrap();
    assert_eq!(report["verified"], false, "{report}");
    let survivors = report["survivors"].as_array().cloned().unwrap_or_default();
    let is_member =
        |survivor: &&Value| survivor["pid"] == member.pid && survivor["start_time"] == member.start;
    survivors.iter().find(is_member).cloned().unwrap_or_else(|| panic!("{member} is not in {report}"))
}

#[track_caller]
fn await_end(env: &TestEnv, report: &Path) {
    await_nothing_left(env);
    let verified = json(report).is_some_and(|report| report["verified"] == true);
    assert!(verified, "the report of the end: {:?}", json(report));
}

fn writer_in_state_d(level: Level) {
    let Some(frozen) = frozen() else { return };
    let Some(env) = TestEnv::of(Who::Root) else { return };
    let report = env.path("work/report.json");
    let flags = ["--patience", PATIENCE, "--report", report.to_str().unwrap()];
    let script = format!("{} & echo lead >> $UP; read -r word", write_to(&frozen));
    let mut command = run_command(&env, Shape::Pair, level, &flags, &script);
    // Not a pipe: the writer holds it open.
    let said = env.path("said");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&said).unwrap());
    let mut run = Running::spawn(&mut command);
    env.await_up(&["lead"]);
    let mut writer = None;
    wait_until("the writer hangs", || {
        writer = env.processes().into_iter().find(|process| process.state() == Some('D'));
        writer.is_some()
    });
    let writer = writer.unwrap();
    run.say("go\n");
    run.finish().with_code(120);
    let said = std::fs::read_to_string(said).unwrap();
    let named = format!("pid {}", writer.pid());
    let line = said.lines().find(|line| line.contains(&named)).unwrap_or_else(|| panic!("{named}: {said}"));
    assert!(line.contains("state D"), "{line}");
    let entry = survivor(&report, writer.id());
    assert_eq!(entry["state"], "D", "{entry}");
    let channel = entry["wait_channel"].as_str().unwrap_or_default();
    assert!(!channel.is_empty() && line.contains(channel), "{entry}: {line}");
    assert!(!left(&env).is_empty(), "the record of a member that lives is gone");
    assert!(!writer.has_ended());
    frozen.thaw().unwrap();
    writer.await_end();
    await_end(&env, &report);
}

/// spec: 2.3, 7.2
#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_cgroup_level() {
    writer_in_state_d(Level::Cgroup);
}

/// spec: 2.3
#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_pidns_level() {
    writer_in_state_d(Level::Pidns);
}

/// spec: 2.3
#[test]
fn writer_on_a_frozen_file_system_is_named_and_ends_after_the_thaw_at_subreaper_level() {
    writer_in_state_d(Level::Subreaper);
}

/// spec: 2.3
#[test]
fn member_that_became_root_is_reported_and_its_end_noticed() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let report = env.path("work/report.json");
    let (program, root) = (penfold().display().to_string(), env.root().display().to_string());
    let flags = ["run", "--contain", "subreaper", "--patience", PATIENCE, "--report"];
    let mut words = vec![program.as_str(), "--root", &root];
    words.extend(flags);
    words.extend([report.to_str().unwrap(), "--", "{cmd}"]);
    let tree = Tree::spawn(&Tool::new(words).user(USER), "setuid-root").unwrap();
    tree.assert_alive();
    let member = tree.members()[1];
    tree.tell_leader_to_exit().unwrap();
    assert_eq!(tree.await_tool_exit(DEADLINE), Some(ToolExit::Code(120)), "{}", tree.stderr());
    assert!(tree.stderr().contains("not permitted"), "{}", tree.stderr());
    let entry = survivor(&report, member);
    assert!(entry["reason"].as_str().is_some_and(|reason| reason.contains("not permitted")), "{entry}");
    Handle::open(member).unwrap().unwrap().signal(Signal::KILL).unwrap();
    let survivors = tree.await_gone(DEADLINE);
    assert!(survivors.is_empty(), "{survivors:?}");
    await_end(&env, &report);
    tree.end().unwrap();
}

/// A process whose main thread has ended while another hangs on the file: its main thread waits nowhere.
const ZOMBIE: &str = "import ctypes, os, sys, threading
threading.Thread(target=lambda: os.write(os.open(sys.argv[1], os.O_WRONLY), b'text')).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)";

/// The state of a thread that is not the first.
fn other_thread(process: &Process) -> Option<char> {
    let tasks = entries(Path::new(&format!("/proc/{}/task", process.pid())));
    let other = tasks.into_iter().find(|task| !task.ends_with(process.pid().to_string()))?;
    let stat = std::fs::read_to_string(other.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// spec: 2.3
#[test]
fn thread_in_state_d_behind_a_main_thread_that_ended_is_named_with_its_wait_channel() {
    if !has_program(&["python3", "-c", "import ctypes"]) {
        return;
    }
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let file = frozen.path().join("file");
    let (report, program) = (env.path("work/report.json"), env.path("work/zombie.py"));
    std::fs::write(&program, ZOMBIE).unwrap();
    let script = format!("python3 {} {} & read -r word", program.display(), file.display());
    let said = env.path("said");
    let mut command =
        env.run_command(["--patience", PATIENCE, "--report", "report.json", "sh", "-c", &script]);
    // Not a pipe: the writer holds it open.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&said).unwrap());
    let mut run = Running::spawn(&mut command);
    let mut writer = None;
    wait_until("a thread hangs", || {
        let is_stuck = |process: &Process| process.state() == Some('Z') && other_thread(process) == Some('D');
        writer = env.processes().into_iter().find(is_stuck);
        writer.is_some()
    });
    let writer = writer.unwrap();
    run.say("go\n");
    run.finish().with_code(120);
    let entry = survivor(&report, writer.id());
    let channel = entry["wait_channel"].as_str().unwrap_or_default();
    assert!(entry["state"] == "D" && !channel.is_empty(), "{entry}");
    let said = std::fs::read_to_string(said).unwrap();
    let named = format!("pid {} (python3) state D in {channel}", writer.pid());
    assert!(said.contains(&named), "{named}: {said}");
    frozen.thaw().unwrap();
    writer.await_end();
    await_end(&env, &report);
}
