//! The cost of a running sandbox without events. `promptness` tests that no timer wakes penfold.

use std::collections::BTreeMap;

use rustix::process::Signal;

use super::launcher::own_processes;
use crate::support::{Level, Process, Running, TestEnv, has_debug_assertions, skip, wait_until};

/// How often each process of a sandbox was scheduled.
pub type Switches = BTreeMap<i32, Vec<String>>;

/// Starts a command that sleeps.
pub fn asleep(env: &TestEnv, level: Level) -> Running {
    let words = ["--contain", level.word(), "--grace", "0", "sh", "-c", "echo up; exec sleep 600"];
    let running = Running::start(&mut env.run_command(words));
    running.hear("up", 1);
    running
}

/// The context switches of all processes of penfold around a command, once all of them have slept for a while.
pub fn at_rest(running: &Running) -> Switches {
    let own = own_processes(running.pid());
    assert!(own.len() >= 2, "{own:?}");
    let (mut seen, mut looks) = (Switches::new(), 0);
    wait_until("penfold is at rest", || {
        // A process that was woken and does not run yet is in another state.
        let asleep = own.iter().all(|process| process.state() == Some('S'));
        let before = std::mem::replace(&mut seen, switches(&own));
        // The last timer of a start runs for 5 ms; twenty looks take longer.
        looks = if asleep && seen == before { looks + 1 } else { 0 };
        looks == 20
    });
    seen
}

/// The context switches of each process: `proc_pid_status(5)`.
pub fn switches(processes: &[Process]) -> Switches {
    let of = |process: &Process| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        (process.pid(), lines.map(str::to_owned).collect())
    };
    processes.iter().map(of).collect()
}

#[test]
fn members_that_come_and_go_wake_nobody_up() {
    let env = TestEnv::new();
    let script = "read -r _ < go; for i in $(seq 200); do true & wait; done; echo done; exec sleep 600";
    // Only orphans are reported to the init of a pid namespace or to a subreaper; these members have parents.
    for level in env.levels() {
        let script = format!("mkfifo go; echo up; {script}");
        let words = ["--contain", level.word(), "--grace", "0", "bash", "-c", &script];
        let running = Running::start(&mut env.run_command(words));
        running.hear("up", 1);
        let before = at_rest(&running);
        std::fs::write(env.path("work/go"), "go\n").unwrap();
        running.hear("done", 1);
        assert_eq!(before, at_rest(&running), "{level:?}");
        running.signal(Signal::TERM);
        running.finish();
        std::fs::remove_file(env.path("work/go")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 8.5
#[test]
fn memory_of_all_our_processes_is_less_than_a_mebibyte() {
    if has_debug_assertions() {
        return skip("only the release build is as small as promised");
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let running = asleep(&env, level);
        let share = |pid: &i32| {
            let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let shares: Vec<u64> = at_rest(&running).keys().map(share).collect();
        assert!(shares.iter().sum::<u64>() <= 1024, "{level:?}: {shares:?} KiB");
        running.signal(Signal::TERM);
        running.finish();
    }
    env.assert_nothing_left();
}
