//! What the tests of crash points share: the names of the points, trees, and the look at what a crash has left.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use penfold_harness::Trial;
use penfold_testkit::LeakGuard;

use crate::support::{
    Finished, Process, Running, TestEnv, Who, entries, has_debug_assertions, penfold, skip, wait_until,
};

/// A leader that leaves two processes behind, one of them in a session of its own.
pub const LEAVES: &str = r#"mkfifo "$UP.fifo"; setsid sh -c 'echo > "$UP.fifo"; exec sleep 60' &
    sleep 60 & read -r _ < "$UP.fifo""#;
/// A leader that stays, and says `up` when the other two run.
pub const STAYS: &str = r#"setsid sh -c 'echo up >> "$UP"; exec sleep 60' & sleep 60"#;
/// The same with a leader that outlives its children.
pub const STAYS_AND_WAITS: &str = r#"setsid sh -c 'echo up >> "$UP"; exec sleep 60' & sleep 60 & wait; wait"#;

/// All crash points; a test compares them with the sources.
pub const POINTS: [&str; 16] = [
    "adopted",
    "adopted-kept",
    "exec-begun",
    "launcher-forked",
    "supervisor-cloned",
    "supervisor-started",
    "killed",
    "launch-kept",
    "leaf-made",
    "standby-forked",
    "recorded",
    "recovering",
    "releasing",
    "reserving",
    "running",
    "taking-over",
];

/// A test for each of these points. It fails if a process must come by the point, and `comes_by` says that none did.
pub fn each(
    test: &str,
    points: impl IntoIterator<Item = &'static str>,
    must_come_by: fn(&str) -> bool,
    comes_by: fn(&str) -> bool,
) -> Vec<Trial> {
    let trial = |point: &'static str| {
        let name = format!("state::{test}::{}", point.replace('-', "_"));
        Trial::test(name, move || {
            if can_crash() {
                let guard = LeakGuard::new();
                let came_by = comes_by(point);
                assert!(came_by || !must_come_by(point), "no process comes by this point");
                guard.check();
            }
            Ok(())
        })
    };
    points.into_iter().map(trial).collect()
}

/// Whether the binary under test has crash points, and the host has what these tests need; says so if not.
pub fn can_crash() -> bool {
    if !has_debug_assertions() {
        skip("only a debug build that was built with the tests has crash points for sure");
        return false;
    }
    TestEnv::of(Who::Root).is_some()
}

/// Names the case that runs, for the output of a test that fails.
pub fn begin_case(case: &dyn std::fmt::Debug) {
    println!("case {case:?}");
}

/// Tells a command to crash at this point.
pub fn crashing(mut command: Command, point: &str) -> Command {
    command.env("PENFOLD_CRASH_AT", point);
    command
}

/// Starts a command without output: processes that it leaves may hold that open.
pub fn start_silent(command: &mut Command) -> Running {
    Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Runs a command that prints an id, and that may crash; gives how it ended, and what it printed.
#[track_caller]
pub fn printed(env: &TestEnv, command: &mut Command) -> (Finished, String) {
    let file = env.path("id");
    let out = File::create(&file).unwrap();
    let finished = Running::spawn(command.stdout(out).stderr(Stdio::null())).finish();
    (finished, fs::read_to_string(file).unwrap())
}

/// Waits until every process of penfold has ended by itself: what is left then stays until the next command.
#[track_caller]
pub fn await_inaction(env: &TestEnv) {
    // A process that is exiting has no `exe` any more.
    let may_be_ours = |process: &Process| {
        fs::read_link(format!("/proc/{}/exe", process.pid())).map_or(true, |exe| exe == penfold())
    };
    // One look may miss a process on its way to a new parent.
    let looks = || env.processes().into_iter().chain(env.processes());
    wait_until("penfold has ended", || !looks().any(|process| may_be_ours(&process)));
}

/// Processes, records, scratch directories and leaves that are there.
pub fn left(env: &TestEnv) -> Vec<String> {
    let processes = env.processes();
    let mut left: Vec<String> =
        processes.iter().map(|process| format!("{} {}", process.id(), process.command_line())).collect();
    let record = |path: &std::path::PathBuf| {
        let files: Vec<_> =
            entries(path).into_iter().filter_map(|file| file.file_name().map(ToOwned::to_owned)).collect();
        format!("{} with {files:?}", path.display())
    };
    left.extend(entries(&env.path("root/sandboxes")).iter().map(record));
    left.extend(entries(&env.path("tmp")).iter().map(|path| path.display().to_string()));
    let leaves = env.cgroup().into_iter().flat_map(entries).filter(|path| path.is_dir());
    left.extend(leaves.map(|path| path.display().to_string()));
    left
}

/// Runs the next command of the same user, and waits until nothing is left.
#[track_caller]
pub fn clean_up(env: &TestEnv) {
    next_command(env);
    await_clean(env);
}

/// The same, and removes what is listed.
#[track_caller]
pub fn clean_up_detached(env: &TestEnv) {
    next_command(env);
    remove_all(env);
    await_clean(env);
}

/// Runs the next command of the same user, which recovers every record whose lock is free.
#[track_caller]
pub fn next_command(env: &TestEnv) {
    let is_free = |record: &std::path::PathBuf| File::open(record).is_ok_and(|dir| dir.try_lock().is_ok());
    wait_until("all records are unlocked", || entries(&env.path("root/sandboxes")).iter().all(is_free));
    env.run(["--contain", "subreaper", "--", "true"]).with_code(0);
}

/// Removes every sandbox that has a record.
#[track_caller]
pub fn remove_all(env: &TestEnv) {
    for record in entries(&env.path("root/sandboxes")) {
        let id = record.file_name().unwrap().to_str().unwrap();
        let finished = env.call(["rm", "-f", id]);
        assert!(matches!(finished.code(), Some(0 | 3)), "{}", finished.err());
    }
}

#[track_caller]
fn await_clean(env: &TestEnv) {
    let is_clean = penfold_testkit::until(crate::support::DEADLINE, || left(env).is_empty());
    assert!(is_clean, "left: {:?}", left(env));
}
