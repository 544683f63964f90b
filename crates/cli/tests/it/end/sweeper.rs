//! Members that cannot end, and the processes that end them: a sweeper is no member of an orphan, a supervisor rests.

use rustix::process::Signal;

use super::standing::{answers, await_state_d, await_verified, detach_script, frozen, write_to};
use crate::support::{PATIENCE, Process, TestEnv, children, json, wait_until};

/// spec: 4.2
#[test]
fn orphan_that_will_not_die_is_shown_as_one_and_who_ends_it_is_no_member() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let script = format!("{}; sleep 1000", write_to(&frozen));
    let orphan = detach_script(&env, &["--patience", PATIENCE], &script);
    let member = orphan.leader().unwrap();
    await_state_d(&member);
    orphan.kill_supervisors();
    assert_eq!(orphan.status(&env).as_deref(), Some("orphaned"));
    let report = env.path("work/report.json");
    let words = ["run", "--patience", PATIENCE, "--report", report.to_str().unwrap(), "sleep", "4501"];
    let launcher = env.begin(words);
    // The supervisor, and the process that ends the orphan.
    wait_until("both stand", || children(launcher.pid()).len() == 2 && env.is_running("sleep 4501"));
    let leader = env.running("sleep 4501")[0].pid();
    let (inner, sweepers): (Vec<i32>, Vec<i32>) =
        children(launcher.pid()).into_iter().partition(|&child| children(child).contains(&leader));
    wait_until("the sweeper has begun", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let holder = format!(" {} ", sweepers[0]);
        locks.lines().any(|line| line.contains("FLOCK") && line.contains(&holder))
    });
    assert_eq!(orphan.status(&env).as_deref(), Some("orphaned"));
    Process::find(inner[0]).unwrap().signal(Signal::KILL);
    launcher.finish();
    let ended = json(&report).unwrap()["ended"].as_array().unwrap().clone();
    assert!(!ended.is_empty() && ended.iter().all(|ended| ended["name"] == "sleep"), "{ended:?}");
    assert!(!member.has_ended());
    drop(frozen);
    member.await_end();
}

/// The processor time that a process has used, in clock ticks.
fn ticks(process: &Process) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// spec: 12.3
#[test]
fn lease_that_passes_while_a_stray_will_not_die_leaves_the_supervisor_at_rest() {
    let Some(frozen) = frozen() else { return };
    // The leader must end before its lease does: on a busy machine that takes one of the longer leases.
    let with_lease = |lease| {
        let env = TestEnv::new();
        let script = format!("mkfifo $UP.go; {} & read -r word < $UP.go", write_to(&frozen));
        let sandbox = detach_script(&env, &["--ttl", lease], &script);
        let leader = sandbox.leader()?.pid();
        let is_stuck = |&child: &i32| Process::find(child).is_some_and(|child| child.state() == Some('D'));
        wait_until("the stray hangs", || children(leader).iter().any(is_stuck));
        std::fs::write(env.path("work/up.go"), "go\n").unwrap();
        wait_until("the leader has ended", || sandbox.file("exit.json").is_some());
        (sandbox.cause().as_deref() == Some("exit")).then_some((env, sandbox))
    };
    let (env, sandbox) =
        ["1s", "4s", "16s"].into_iter().find_map(with_lease).expect("a leader that ends in time");
    let expires = sandbox.file("state.json").unwrap()["expires_at_ms"].as_u64().unwrap();
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    wait_until("the lease is over", || now() > u128::from(expires));
    let inner = &sandbox.supervisors[1];
    let before = ticks(inner);
    // The sandbox does not end meanwhile.
    answers(&env, &["wait", "--timeout", "500ms", &sandbox.id], 124, &[]);
    let used = ticks(inner) - before;
    assert!(used < 10, "{used} ticks of 50");
    assert!(sandbox.leaf.as_ref().unwrap().try_exists().unwrap(), "the stray has died");
    drop(frozen);
    await_verified(&sandbox);
    assert_eq!(sandbox.status(&env).as_deref(), Some("exited"));
}
