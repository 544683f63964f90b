//! What will not die, and who ends it: a sweeper is nobody's member and does not make an orphan run; a supervisor rests.

use std::process::Stdio;

use crate::support_control::{Fold, read};
use crate::support_d::{Started, children, frozen, signal, state, until};
use rustix::process::{Pid, Signal};

#[test]
fn orphan_that_will_not_die_is_shown_as_one_and_who_ends_it_is_no_member() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let file = frozen.path().join("file");
    let orphan = fold.start(&[], &format!("echo lead >> $UP; echo text > {}; sleep 1000", file.display()));
    fold.yard.await_up(&["lead"]);
    until("it is stuck", || state(orphan.leader) == Some('D'));
    orphan.kill_supervisors();
    assert_eq!(fold.status(&orphan.id), "orphaned");
    let report = fold.yard.path("report.json");
    let mut command = fold.yard.penfold(["run", "--report", report.to_str().unwrap(), "sleep", "4501"]);
    let mut front = Started::of(command.stderr(Stdio::piped()));
    // The supervisor, and who ends the orphan.
    until("both stand", || children(front.pid()).len() == 2 && fold.yard.find("sleep 4501").len() == 1);
    let leader = fold.yard.find("sleep 4501")[0];
    let (inner, sweepers): (Vec<_>, Vec<_>) =
        children(front.pid()).into_iter().partition(|&child| children(child).contains(&leader));
    until("the sweeper has begun", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let holder = format!(" {} ", sweepers[0].as_raw_pid());
        locks.lines().any(|line| line.contains("FLOCK") && line.contains(&holder))
    });
    assert_eq!(fold.status(&orphan.id), "orphaned");
    signal(inner[0], Signal::KILL);
    until("the front has ended", || !front.is_alive());
    let ended = read(&report)["ended"].as_array().unwrap().clone();
    assert!(!ended.is_empty() && ended.iter().all(|ended| ended["name"] == "sleep"), "{ended:?}");
    drop(frozen);
    until("the orphan's member is gone", || state(orphan.leader).is_none());
}

/// The processor time that a process has used, in clock ticks.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn lease_that_passes_while_a_stray_will_not_die_leaves_the_supervisor_at_rest() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let file = frozen.path().join("file");
    let script = format!("mkfifo $UP.go; echo text > {} & read -r word < $UP.go", file.display());
    let sandbox = fold.start(&["--ttl", "6s"], &script);
    let (inner, _) = &sandbox.supervisors[1];
    until("the stray is stuck", || children(sandbox.leader).iter().any(|&child| state(child) == Some('D')));
    std::fs::write(fold.yard.path("up.go"), "go\n").unwrap();
    until("the leader has ended", || sandbox.record.join("exit.json").try_exists().unwrap());
    let expires = read(&sandbox.record.join("state.json"))["expires_at_ms"].as_u64().unwrap();
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    until("the lease is over", || now() > u128::from(expires));
    let (before, begun) = (ticks(*inner), now());
    until("half a second is over", || now() > begun + 500);
    let used = ticks(*inner) - before;
    assert!(used < 10, "{used} ticks of 50");
    assert!(sandbox.leaf.as_ref().unwrap().try_exists().unwrap(), "the stray has died");
    drop(frozen);
    until("it is over", || fold.status(&sandbox.id) == "exited");
}
