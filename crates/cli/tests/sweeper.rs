//! A sandbox that somebody else ends, whose supervisors were killed: it is shown as it is, and who ends it is nobody's member.

mod support_control;
mod support_d;

use std::process::Stdio;

use penfold_testkit::{FrozenFs, FrozenFsError};
use rustix::process::Signal;
use support_control::{Fold, read};
use support_d::{Started, children, signal, skip, state, until};

#[test]
fn orphan_that_will_not_die_is_shown_as_one_and_who_ends_it_is_no_member() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can freeze a file system");
    }
    let frozen = match FrozenFs::new() {
        Ok(frozen) => frozen,
        Err(FrozenFsError::Refused(why)) => return skip(&why),
        Err(error) => panic!("{error}"),
    };
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
