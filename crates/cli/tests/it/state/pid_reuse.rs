//! The successor of a dead member's pid is never signalled. Forced for real: in a pid namespace with a hundred pids.
//!
//! Each test starts itself again inside of that namespace.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a skipped test says why, and what is watched here is watched from outside"
)]

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support_e1::{Level, until};

/// The first hundred pids after those that the kernel keeps for itself.
const PID_MAX: &str = "400";
/// Where it is per namespace, since Linux 6.14; before that it is the host's.
const FILE: &str = "/proc/sys/kernel/pid_max";
/// What says that this process is inside.
const INSIDE: &str = "PENFOLD_TEST_IN_TINY_NAMESPACE";
/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(20);

/// Whether `pid_max` belongs to the namespace on this kernel.
fn is_per_namespace() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 14)
}

/// Runs a test in a namespace of its own, which ends with it, and in an empty directory.
fn inside(test: impl FnOnce(&Path)) {
    if std::env::var_os(INSIDE).is_some() {
        return test(directory_inside().path());
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: not root");
    }
    if !is_per_namespace() {
        return println!("skipped: this kernel has one pid_max for all namespaces");
    }
    let before = std::fs::read_to_string(FILE).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c"]);
    // A shell as pid 1, because it reaps whoever is left to it.
    command.arg(format!("echo {PID_MAX} > {FILE} && \"$0\" \"$@\"; exit $?"));
    command.arg(std::env::current_exe().unwrap()).args(["--exact", penfold_harness::name(), "--nocapture"]);
    let output = command.env(INSIDE, "1").stdin(Stdio::null()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(FILE).unwrap(), before, "the host's pid_max has changed");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Panics unless this is the namespace: outside it would prove nothing.
fn directory_inside() -> tempfile::TempDir {
    assert_eq!(std::fs::read_to_string(FILE).unwrap().trim(), PID_MAX);
    // The first 300 are given out once only (RESERVED_PIDS of kernel/pid.c).
    let spent = || {
        let mut process = Command::new("true").spawn().unwrap();
        let pid = process.id();
        process.wait().unwrap();
        pid >= 300
    };
    assert!(until(LONG, spent));
    tempfile::Builder::new().prefix("penfold-e1-").tempdir().unwrap()
}

fn penfold(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penfold"));
    command.arg("--root").arg(directory.join("root")).stdin(Stdio::null());
    command
}

/// Writes its child's pid down; the child ends politely and is reaped, the leader ignores TERM.
fn script(directory: &Path) -> (String, PathBuf) {
    let file = directory.join("pid");
    let script = "trap '' TERM; (trap - TERM; exec sleep 60) & echo $! > \"$0.new\"; mv \"$0.new\" \"$0\"; wait; \
        while :; do sleep 1; done";
    (script.to_owned(), file)
}

fn await_pid(file: &Path) -> u32 {
    let mut pid = None;
    until(LONG, || {
        pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// Starts innocents until one has this pid; the others end.
fn successor(pid: u32) -> Child {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        let mut innocent = Command::new("sleep").arg("30").stdin(Stdio::null()).spawn().unwrap();
        if innocent.id() == pid {
            return innocent;
        }
        innocent.kill().unwrap();
        innocent.wait().unwrap();
    }
    panic!("no process got pid {pid}");
}

/// TERM to a process of this test's, which it has not reaped.
fn term(child: &Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

fn finish(mut child: Child) -> Option<i32> {
    let mut status = None;
    let ended = until(LONG, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    status.and_then(|status| status.code())
}

#[test]
fn successor_of_a_member_is_not_killed_with_the_sandbox() {
    inside(|directory| {
        for level in Level::ALL {
            let (script, file) = script(directory);
            let mut command = penfold(directory);
            command
                .args(["run", "--contain", level.word(), "--grace", "2s", "--", "sh", "-c", &script])
                .arg(&file);
            let front = command.spawn().unwrap();
            await_pid(&file);
            // In a namespace of its own the child knows itself by another number.
            let member = member_of(front.id());
            term(&front);
            let mut innocent = successor(member);
            let code = finish(front);
            assert_eq!(code, Some(137), "{level:?}: the kill after the grace has not been");
            assert!(innocent.try_wait().unwrap().is_none(), "{level:?}: the successor of {member} was hit");
            innocent.kill().unwrap();
            innocent.wait().unwrap();
            std::fs::remove_file(file).unwrap();
        }
    });
}

/// The youngest generation below a process: where each has one child, the last of the line.
fn member_of(front: u32) -> u32 {
    let mut pid = front;
    while let Some(child) = crate::support_e1::nest::child_of(pid) {
        pid = u32::try_from(child.pid).unwrap();
    }
    assert_ne!(pid, front);
    pid
}

#[test]
fn successor_of_a_reaped_process_is_not_killed() {
    inside(|directory| {
        let (script, file) = script(directory);
        let mut leader = Command::new("sh").args(["-c", &script]).arg(&file).spawn().unwrap();
        let member = await_pid(&file);
        let mut command = penfold(directory);
        let reap = command.args(["reap", "--pid", &leader.id().to_string(), "-t", "2s"]).spawn().unwrap();
        let mut innocent = successor(member);
        // Reaped here, or the leader would be looked at for ever.
        let ended = until(LONG, || leader.try_wait().unwrap().is_some());
        let code = finish(reap);
        assert!(ended, "the leader was not ended");
        assert_eq!(code, Some(0));
        assert!(innocent.try_wait().unwrap().is_none(), "the successor of {member} was hit");
        innocent.kill().unwrap();
        innocent.wait().unwrap();
    });
}

/// Innocents come and go until told to stop; returns their pids, and how many somebody has hit.
fn innocents(over: &AtomicBool) -> (BTreeSet<i64>, u32) {
    let (mut pids, mut hit) = (BTreeSet::new(), 0);
    let mut alive: Vec<Child> = Vec::new();
    while !over.load(Ordering::Relaxed) || !alive.is_empty() {
        alive.retain_mut(|innocent| match innocent.try_wait().unwrap() {
            None => true,
            Some(status) => {
                hit += u32::from(status.signal().is_some());
                false
            }
        });
        if alive.len() < 20 && !over.load(Ordering::Relaxed) {
            let innocent = Command::new("sleep").arg("0.03").stdin(Stdio::null()).spawn();
            // The namespace is full for a moment.
            let Ok(innocent) = innocent else { continue };
            pids.insert(i64::from(innocent.id()));
            alive.push(innocent);
        } else {
            sleep(Duration::from_millis(2));
        }
    }
    (pids, hit)
}

#[test]
fn innocents_that_take_over_pids_all_the_time_live_on() {
    inside(|directory| {
        let report = directory.join("report.json");
        let over = AtomicBool::new(false);
        let mut ended = BTreeSet::new();
        let (pids, hit) = std::thread::scope(|scope| {
            let innocents = scope.spawn(|| innocents(&over));
            for round in 0..30 {
                let level = Level::ALL[round % 3];
                let mut command = penfold(directory);
                command.args(["-q", "run", "--contain", level.word(), "--report"]).arg(&report);
                command.args([
                    "--",
                    "sh",
                    "-c",
                    "for i in 1 2 3 4 5 6 7 8; do setsid sleep 30 & sleep 30 & done; exit 0",
                ]);
                // The code is that of a shell that could not fork, now and then.
                drop(command.output().unwrap());
                let text = std::fs::read(&report).unwrap_or_default();
                let told: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
                let members = told["ended"].as_array().into_iter().flatten();
                ended.extend(members.filter_map(|member| member["pid"].as_i64()));
            }
            over.store(true, Ordering::Relaxed);
            innocents.join().unwrap()
        });
        let shared = pids.intersection(&ended).count();
        assert!(shared > 10, "only {shared} pids were members' and innocents'");
        assert_eq!(hit, 0, "innocents were hit");
    });
}
