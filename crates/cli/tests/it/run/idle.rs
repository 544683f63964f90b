//! What a running sandbox costs while nothing happens.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support_e2::{DEADLINE, Pen, Talk, eventually, left, levels, pause, skip};
use penfold_testkit::proc;

const WAIT: [&str; 3] = ["sh", "-c", "echo up; exec sleep 600"];

fn idle(pen: &Pen, level: &str) -> (Talk, Vec<i32>) {
    let words = ["--contain", level, "--grace", "0"];
    let talk = Talk::start(&mut pen.run(words.iter().chain(&WAIT)));
    talk.hear("up", 1);
    pause(Duration::from_millis(300));
    let ours = settled(&talk);
    assert!(ours.len() >= 2, "{ours:?}");
    (talk, ours)
}

/// All of ours, once none of them has had anything to do for a while: a start may take its time on a busy machine.
fn settled(talk: &Talk) -> Vec<i32> {
    let ours = left::ours(talk.pid());
    // Who only waits for its turn is not at rest.
    let asleep = |&pid: &i32| proc::stat(pid).is_some_and(|stat| stat.state == 'S');
    let rest = || {
        let before = switches(&ours);
        pause(Duration::from_millis(100));
        before == switches(&ours) && ours.iter().all(asleep)
    };
    assert!(eventually(DEADLINE, rest), "{ours:?} are never at rest");
    ours
}

/// How often each process has been given the processor: `proc_pid_status(5)`.
fn switches(pids: &[i32]) -> BTreeMap<i32, Vec<String>> {
    let of = |&pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        (pid, lines.map(str::to_owned).collect())
    };
    pids.iter().map(of).collect()
}

#[test]
fn nobody_wakes_up_while_nothing_happens() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let (talk, ours) = idle(&pen, level);
        let before = switches(&ours);
        pause(Duration::from_secs(2));
        assert_eq!(before, switches(&ours), "{level}");
        talk.signal(rustix::process::Signal::TERM);
        talk.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn members_that_come_and_go_wake_nobody_up() {
    let pen = Pen::new();
    let script = "mkfifo g; echo up; for i in $(seq 200); do true & wait; read -r -t 0.01 <> g; done; echo done; exec sleep 600";
    // In a pid namespace our init, in other levels our subreaper, hears of orphans only; these have parents.
    for level in levels(&pen) {
        let talk = Talk::start(&mut pen.run(["--contain", level, "--grace", "0", "bash", "-c", script]));
        talk.hear("up", 1);
        pause(Duration::from_millis(300));
        let ours = settled(&talk);
        let before = switches(&ours);
        talk.hear("done", 1);
        assert_eq!(before, switches(&ours), "{level}");
        talk.signal(rustix::process::Signal::TERM);
        talk.end();
        std::fs::remove_file(pen.path("work/g")).unwrap();
    }
    pen.assert_nothing_left();
}

#[test]
fn memory_of_all_our_processes_is_less_than_a_mebibyte() {
    if cfg!(debug_assertions) {
        return skip("only the release build is as small as promised");
    }
    let pen = Pen::new();
    for level in levels(&pen) {
        let (talk, ours) = idle(&pen, level);
        let share = |pid: &i32| {
            let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let shares: Vec<u64> = ours.iter().map(share).collect();
        assert!(shares.iter().sum::<u64>() <= 1024, "{level}: {shares:?} KiB");
        talk.signal(rustix::process::Signal::TERM);
        talk.end();
    }
    pen.assert_nothing_left();
}
