//! Fixtures for tests of detached sandboxes: execs, processes by handle, and the end.

use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::{Value, json};

use crate::support::{ControlClient, Finished, Level, Process, Running, Sandbox, TestEnv, Who, wait_until};

/// Each kind of user with each level that works there; nothing may be left after each.
pub fn everywhere(test: impl Fn(&TestEnv, Level)) {
    for who in [Who::Tester, Who::Plain, Who::Delegated] {
        at_each_level(who, &test);
    }
}

/// A user with each level that works there; nothing may be left after each.
pub fn at_each_level(who: Who, test: impl Fn(&TestEnv, Level)) {
    let env = if who == Who::Tester { Some(TestEnv::new()) } else { TestEnv::of(who) };
    let Some(env) = env else { return };
    for level in env.levels() {
        test(&env, level);
        env.assert_nothing_left();
    }
}

/// `penfold exec FLAGS ID WORDS`.
pub fn exec_command(env: &TestEnv, sandbox: &Sandbox, flags: &[&str], words: &[&str]) -> Command {
    let mut command = env.penfold(["exec"]);
    command.args(flags).arg(&sandbox.id).args(words);
    command
}

/// Starts a command in a sandbox.
#[track_caller]
pub fn begin(env: &TestEnv, sandbox: &Sandbox, flags: &[&str], words: &[&str]) -> Running {
    Running::start(&mut exec_command(env, sandbox, flags, words))
}

/// Runs a command in a sandbox to its end.
#[track_caller]
pub fn exec(env: &TestEnv, sandbox: &Sandbox, words: &[&str]) -> Finished {
    begin(env, sandbox, &[], words).finish()
}

/// Puts a command in that goes on without a client.
#[track_caller]
pub fn put_in(env: &TestEnv, sandbox: &Sandbox, words: &[&str]) {
    begin(env, sandbox, &["-d"], words).finish().with_code(0);
}

/// Waits until each of these command lines runs; gives all processes with one of them.
#[track_caller]
pub fn await_running(env: &TestEnv, commands: &[&str]) -> Vec<Process> {
    await_trees(env, commands, 1)
}

/// Waits until each of these command lines runs so many times; gives all processes with one of them.
#[track_caller]
pub fn await_trees(env: &TestEnv, commands: &[&str], count: usize) -> Vec<Process> {
    let mut found = Vec::new();
    wait_until("the tree stands", || {
        found = env.processes().into_iter().map(|process| (process.command_line(), process)).collect();
        found.retain(|(line, _)| commands.contains(&line.trim_end()));
        let times = |command: &&str| found.iter().filter(|(line, _)| line.trim_end() == *command).count();
        commands.iter().all(|command| times(command) >= count)
    });
    found.into_iter().map(|(_, process)| process).collect()
}

/// Whether each of these is alive.
pub fn all_live(processes: &[Process]) -> bool {
    !processes.iter().any(Process::has_ended)
}

/// Whether none of these is alive.
pub fn none_lives(processes: &[Process]) -> bool {
    processes.iter().all(Process::has_ended)
}

/// Waits until none of these is alive.
#[track_caller]
pub fn await_end_of(processes: &[Process]) {
    processes.iter().for_each(Process::await_end);
}

/// Waits for this text in the log.
#[track_caller]
pub fn await_log(env: &TestEnv, sandbox: &Sandbox, text: &str) {
    wait_until(text, || sandbox.call(env, &["logs", "ID"]).out().contains(text));
}

/// Kills a sandbox by its socket, and waits until its supervisors are gone.
#[track_caller]
pub fn kill(sandbox: &Sandbox) {
    let client = ControlClient::connect(&sandbox.record).expect("nobody listens");
    client.say("\"kill\"");
    client.rest();
    await_end_of(&sandbox.supervisors);
    await_end_of(&sandbox.supervisors_now());
}

/// Waits until a sandbox has ended; gives its status, the cause, and how its command ended.
#[track_caller]
pub fn end(env: &TestEnv, sandbox: &Sandbox) -> (String, String, Value) {
    sandbox.await_end();
    let exit = sandbox.file("exit.json").and_then(|exited| exited.get("exit").cloned());
    let status = sandbox.status(env).unwrap_or_default();
    (status, sandbox.cause().unwrap_or_default(), exit.unwrap_or_default())
}

/// Ends a sandbox, if it has not ended, and removes its record.
#[track_caller]
pub fn remove(env: &TestEnv, sandbox: &Sandbox) {
    sandbox.call(env, &["rm", "-f", "ID"]).with_code(0);
}

/// The names of strays in a report.
pub fn strays(report: &Value) -> Vec<String> {
    let ended = report["ended"].as_array().expect("no list of members").iter();
    let strays = ended.filter(|ended| ended["stray"] == true);
    strays.map(|ended| ended["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until all of these use no processor time for a fifth of a second. A process that spins uses all of the time.
#[track_caller]
pub fn await_rest(what: &str, processes: &[Process]) {
    const WINDOW: Duration = Duration::from_millis(200);
    let all = || processes.iter().map(|process| ticks(process.pid())).collect::<Vec<_>>();
    wait_until(&format!("at rest: {what}"), || {
        let before = all();
        penfold_testkit::until(WINDOW, || false);
        all().iter().zip(before).all(|(after, before)| after - before <= 1)
    });
}

/// The processor time that a process has used, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A set of signals in the status of a process, proc(5).
pub fn signals(pid: i32, set: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap()
}

/// The packet that asks for an exec; the descriptors come with it.
pub fn exec_request() -> Vec<u8> {
    json!({"exec": {"command": ["touch"]}}).to_string().into_bytes()
}

/// The memory that `exec -d touch FILE` hands over, sealed or not.
pub fn exec_description(file: &Path, sealed: bool) -> OwnedFd {
    let words = ["touch".as_bytes(), file.as_os_str().as_encoded_bytes()];
    let text = json!({
        "schema": 1,
        "command": words.map(|word| json!({"Unix": word})),
        "environment": [],
        "directory": null,
        "timeout_ms": null,
        "signal": 15,
        "grace_ms": 100,
        "terminal": false,
        "detached": true,
    });
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = std::fs::File::from(rustix::fs::memfd_create("description", flags).unwrap());
    memory.write_all(text.to_string().as_bytes()).unwrap();
    if sealed {
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(memory.as_fd(), seals).unwrap();
    }
    memory.into()
}

/// `/dev/null`.
pub fn null() -> OwnedFd {
    std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into()
}
