//! A process that was given the pid of a dead member is never signalled. Forced for real: in a pid namespace with a hundred
//! pids.
//!
//! Each test starts itself again inside of that namespace.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::support::{Level, Process, Running, TestEnv, is_root, json, skip, wait_until};

/// The first hundred pids after those that the kernel keeps for itself.
const PID_MAX: &str = "400";
/// One file per pid namespace since Linux 6.14; before that it is the host's.
const FILE: &str = "/proc/sys/kernel/pid_max";
/// More processes than it takes to get a certain pid: no wait between them gives other processes time to take it.
const MANY: u32 = 10_000;
/// In the environment of a test that runs inside.
const INSIDE: &str = "PENFOLD_TEST_IN_TINY_NAMESPACE";

/// Whether `pid_max` belongs to the namespace on this kernel.
fn is_per_namespace() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 14)
}

/// Runs a test in a pid namespace of its own, which ends with it.
#[expect(
    clippy::disallowed_methods,
    reason = "a test cannot be told in another way that it was started by itself"
)]
fn inside(test: impl FnOnce(&TestEnv)) {
    if std::env::var_os(INSIDE).is_some() {
        spend_reserved_pids();
        return test(&TestEnv::new());
    }
    if !is_root() {
        return;
    }
    if !is_per_namespace() {
        return skip("this kernel has one pid_max for all namespaces");
    }
    let before = std::fs::read_to_string(FILE).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c"]);
    // A shell as pid 1, because it reaps orphans.
    command.arg(format!("echo {PID_MAX} > {FILE} && \"$0\" \"$@\"; exit $?"));
    command.arg(std::env::current_exe().unwrap()).args(["--exact", penfold_harness::name(), "--nocapture"]);
    let finished = Running::start(command.env(INSIDE, "1").stdin(Stdio::null())).finish();
    let said = format!("{}{}", finished.out(), finished.err());
    assert_eq!(std::fs::read_to_string(FILE).unwrap(), before, "the host's pid_max has changed");
    assert!(finished.status.success() && said.contains("1 passed"), "{said}");
}

/// Panics unless this is the namespace: outside it would prove nothing.
fn spend_reserved_pids() {
    assert_eq!(std::fs::read_to_string(FILE).unwrap().trim(), PID_MAX);
    // The first 300 are given out only once (RESERVED_PIDS of kernel/pid.c).
    let pid = || {
        let process = start(&mut Command::new("true"));
        let pid = process.pid();
        process.finish();
        pid
    };
    assert!((0..MANY).any(|_| pid() >= 300), "the reserved pids are not spent");
}

/// Starts a command without threads that hear its output: these would take pids, too.
fn start(command: &mut Command) -> Running {
    Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// The child of the leader ends at TERM and is reaped; the leader ignores TERM.
const SCRIPT: &str = "trap '' TERM; (trap - TERM; exec sleep 60) & wait; while :; do sleep 1; done";

/// The child of [`SCRIPT`], once TERM ends it.
#[track_caller]
fn member(env: &TestEnv) -> Process {
    wait_until("the member runs", || env.is_running("sleep 60"));
    env.running("sleep 60").pop().unwrap()
}

/// Starts innocents until one has this pid; the others end.
fn successor(pid: i32) -> Running {
    let mut innocents = (0..MANY).map(|_| start(Command::new("sleep").arg("30")));
    innocents.find(|innocent| innocent.pid() == pid).expect("no process has got this pid")
}

/// spec: 3.1
#[test]
fn successor_of_a_member_is_not_killed_with_the_sandbox() {
    inside(|env| {
        for level in Level::ALL {
            let words = ["--contain", level.word(), "--grace", "60s", "--", "sh", "-c", SCRIPT];
            let launcher = start(&mut env.run_command(words));
            let member = member(env);
            launcher.signal(Signal::TERM);
            let innocent = successor(member.pid());
            // The second one ends the grace.
            assert!(launcher.is_alive(), "{level:?}");
            launcher.signal(Signal::TERM);
            assert_eq!(launcher.finish().code(), Some(137), "{level:?}: the leader was not killed");
            assert!(innocent.is_alive(), "{level:?}: the successor of {} was hit", member.pid());
        }
    });
}

/// spec: 3.1
#[test]
fn successor_of_a_reaped_process_is_not_killed() {
    inside(|env| {
        let leader = start(env.command("sh").args(["-c", SCRIPT]));
        let member = member(env);
        let reap = start(&mut env.penfold(["reap", "--pid", &leader.pid().to_string(), "-t", "1s"]));
        // `reap` stops the leader while it signals, and continues it: a stopped leader reaps nothing.
        wait_until("the leader has reaped the member", || member.state().is_none());
        // The grace is over for `reap` when it goes on.
        reap.process().stop();
        let innocent = successor(member.pid());
        assert!(leader.is_alive(), "the grace was over too early");
        reap.signal(Signal::CONT);
        // Reaped here, or `reap` would wait for it.
        assert_eq!(leader.finish().signal(), Some(9));
        assert_eq!(reap.finish().code(), Some(0));
        assert!(innocent.is_alive(), "the successor of {} was hit", member.pid());
    });
}

/// Starts processes that end by themselves, until told to stop. Notes their pids; gives how many were killed.
fn innocents(over: &AtomicBool, pids: &Mutex<BTreeSet<i64>>) -> usize {
    let mut hit = 0;
    let mut alive: Vec<Running> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let (gone, left): (Vec<_>, Vec<_>) = alive.into_iter().partition(|innocent| !innocent.is_alive());
        alive = left;
        hit += gone.into_iter().filter_map(|innocent| innocent.finish().signal()).count();
        // The namespace is full at times.
        let innocent = Command::new("sleep").arg("0.03").stdin(Stdio::null()).spawn();
        if let Ok(innocent) = innocent {
            pids.lock().unwrap().insert(innocent.id().into());
            alive.push(Running::of(innocent));
        }
        if let Some(oldest) = alive.first().filter(|_| alive.len() >= 20) {
            oldest.process().await_end();
        }
    }
    hit + alive.into_iter().filter_map(|innocent| innocent.finish().signal()).count()
}

/// spec: 3.1
#[test]
fn innocents_that_take_over_pids_all_the_time_live_on() {
    const DAEMONS: &str = "for i in 1 2 3 4 5 6 7 8; do setsid sleep 30 & sleep 30 & done; exit 0";
    inside(|env| {
        let report = env.path("report.json");
        let (over, pids) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
        let mut ended = BTreeSet::new();
        let hit = std::thread::scope(|scope| {
            let innocents = scope.spawn(|| innocents(&over, &pids));
            let mut rounds = 0;
            wait_until("ten pids were a member's and an innocent's", || {
                for level in Level::ALL {
                    let mut command = env.penfold(["-q", "run", "--contain", level.word(), "--report"]);
                    // The code is that of a shell that could not fork, now and then.
                    start(command.arg(&report).args(["--", "sh", "-c", DAEMONS])).finish();
                    let told = json(&report).unwrap_or_default();
                    let members = told["ended"].as_array().into_iter().flatten();
                    ended.extend(members.filter_map(|member| member["pid"].as_i64()));
                }
                rounds += 1;
                rounds >= 3 && pids.lock().unwrap().intersection(&ended).count() > 10
            });
            over.store(true, Ordering::Relaxed);
            innocents.join().unwrap()
        });
        assert_eq!(hit, 0, "innocents were hit");
    });
}
