//! Fixtures for tests of `penfold run`: the penfold processes around a command, and commands that print `ready`.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use crate::support::{Finished, Process, Running, descendants, penfold, wait_until};

/// The end of a bash script: prints `ready`, then runs traps until one of them exits.
pub const SERVE: &str = "mkfifo gate 2>/dev/null; echo ready; while :; do read -r -t 0.1 <> gate; done";

/// A script for bash: three members that ignore every polite signal, two of them without their parent.
pub const DEAF: &str = "trap '' TERM INT HUP; setsid -f sleep 600; (sleep 600 &); echo ready; exec sleep 600";

/// Time limits in seconds, shortest first.
const LIMITS: [&str; 4] = ["0.4", "1.2", "5", "25"];

/// Runs a command with a time limit that passes after the command has printed `ready`.
///
/// A limit that passes before proves nothing about the command: the next limit is longer.
#[track_caller]
pub fn run_until_limit(run: impl Fn(&str) -> Finished) -> Finished {
    let ready = |finished: &Finished| finished.out().contains("ready");
    LIMITS.iter().map(|limit| run(limit)).find(ready).expect("no command was ready before its time limit")
}

/// Runs a closure for all cases at the same time.
pub fn at_once<T: Copy + Send>(cases: &[T], run: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for &case in cases {
            let run = &run;
            scope.spawn(move || run(case));
        }
    });
}

/// Waits until the command has printed `ready` as often as this, and penfold has handled its start.
#[track_caller]
pub fn await_ready(running: &Running, times: usize) {
    running.hear("ready", times);
    await_started(running.pid());
}

/// Waits until penfold has handled the start of a command that already runs, below this process.
///
/// The init of a pid namespace reports the start to the supervisor. A stop that comes before this report kills at once.
#[track_caller]
pub fn await_started(pid: i32) {
    let asleep = |process: &Process| process.state() == Some('S');
    // The youngest first: a process wakes its parent before it sleeps.
    wait_until("penfold has handled the start", || own_processes(pid).iter().rev().all(asleep));
}

/// The processes of penfold among a process and its descendants, parents first.
pub fn own_processes(pid: i32) -> Vec<Process> {
    let file = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let penfold = file(std::fs::metadata(penfold()).unwrap());
    // In another mount namespace the link may name no file here, but its metadata can be read.
    let is_own =
        |pid: &i32| std::fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|exe| file(exe) == penfold);
    let all = std::iter::once(pid).chain(descendants(pid));
    all.filter(is_own).filter_map(Process::find).collect()
}

/// The launcher of the sandbox that a process or one of its descendants runs.
#[track_caller]
pub fn launcher(pid: i32) -> Process {
    own_processes(pid).into_iter().next().expect("no process of penfold there")
}

/// The leader below a launcher: the first process of another program, if it lives.
pub fn leader(launcher: i32) -> Option<Process> {
    let own: Vec<i32> = own_processes(launcher).iter().map(Process::pid).collect();
    descendants(launcher).into_iter().find(|pid| !own.contains(pid)).and_then(Process::find)
}
