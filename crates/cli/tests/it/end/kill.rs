//! `penfold kill`: whom it hits, what it answers.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::support_control::{Fold, Sandbox};
use crate::support_d::{Started, code, output, said, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[test]
fn whole_tree_is_gone_when_kill_answers() {
    for flags in [&[][..], &["--contain", "subreaper"], &["--contain", "pidns"]] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(flags);
        sandbox.assert_alive();
        fold.expect(&["kill", &sandbox.id[..8]], 0, &[&sandbox.id]);
        sandbox.assert_gone();
        assert_eq!(fold.status(&sandbox.id), "killed");
    }
}

#[test]
fn what_is_gone_already_counts_as_killed_and_keeps_its_code() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "exit 3");
    until("it is over", || fold.status(&sandbox.id) == "exited");
    for verb in ["kill", "stop", "kill"] {
        fold.expect(&[verb, &sandbox.id], 0, &[&sandbox.id]);
    }
    fold.expect(&["wait", &sandbox.id], 3, &["3"]);
}

#[test]
fn each_word_is_answered_and_the_others_are_hit_all_the_same() {
    let fold = Fold::new();
    let (one, two) = (fold.start(&["--name", "one"], "sleep 1000"), fold.start(&[], "sleep 1000"));
    let done = fold.expect(&["kill", "one", "nosuch", &two.id], 3, &[&one.id, &two.id]);
    assert!(said(&done).contains("nosuch"));
    one.assert_gone();
    two.assert_gone();
    fold.expect(&["kill", ""], 3, &[]);
    fold.expect(&["kill"], 2, &[]);
}

#[test]
fn ambiguous_word_kills_nobody() {
    let fold = Fold::new();
    let sandboxes: Vec<_> = (0..17).map(|_| fold.start(&[], "sleep 1000")).collect();
    let first = |id: &str| id[..1].to_owned();
    let twice = sandboxes
        .iter()
        .map(|one| first(&one.id))
        .find(|digit| sandboxes.iter().filter(|one| one.id.starts_with(digit.as_str())).count() > 1);
    let done = fold.expect(&["kill", &twice.unwrap()], 4, &[]);
    assert!(said(&done).contains("matches"), "{}", said(&done));
    assert!(sandboxes.iter().all(|one| fold.status(&one.id) == "running"));
}

#[test]
fn all_is_refused_without_a_person_and_done_with_force() {
    let fold = Fold::new();
    let sandboxes: Vec<_> = (0..3).map(|_| fold.start(&[], "sleep 1000")).collect();
    let ended = fold.start(&[], "true");
    until("it is over", || fold.status(&ended.id) == "exited");
    let done = fold.expect(&["kill", "--all"], 2, &[]);
    assert!(said(&done).contains("kill --all -f` does it"), "{}", said(&done));
    assert!(sandboxes.iter().all(|one| fold.status(&one.id) == "running"));
    let done = fold.call(&["kill", "--all", "-f"]);
    let printed = String::from_utf8(done.stdout.clone()).unwrap();
    assert_eq!((code(&done), printed.lines().count()), (0, 3), "{printed}");
    sandboxes.iter().for_each(crate::support_control::Sandbox::assert_gone);
    fold.expect(&["kill", "--all", "-f"], 0, &[]);
}

#[test]
fn only_what_a_filter_lets_through_is_hit() {
    let fold = Fold::new();
    let hit = fold.start(&["-l", "job=1"], "sleep 1000");
    let spared = fold.start(&["-l", "job=2"], "sleep 1000");
    fold.expect(&["kill", "-f", "--filter", "label=job=1"], 0, &[&hit.id]);
    hit.assert_gone();
    assert_eq!(fold.status(&spared.id), "running");
}

#[test]
fn another_signal_goes_to_the_command_and_ends_nothing_else() {
    let fold = Fold::new();
    let script = "trap 'echo hup >> $UP' HUP; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = fold.start(&[], script);
    fold.yard.await_up(&["lead"]);
    fold.expect(&["kill", "-s", "HUP", &sandbox.id], 0, &[&sandbox.id]);
    fold.yard.await_up(&["hup"]);
    assert_eq!(fold.status(&sandbox.id), "running");
    fold.expect(&["kill", "-s", "9", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    fold.expect(&["kill", "-s", "HUP", &sandbox.id], 0, &[&sandbox.id]);
}

#[test]
fn stopped_supervisors_do_not_keep_a_signal_from_other_commands() {
    let fold = Fold::new();
    let script = "trap 'echo hup >> $UP' HUP; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandboxes = [0; 4].map(|_| fold.start(&[], script));
    let said_by = |number: usize, word: &str| {
        let said = std::fs::read_to_string(fold.yard.path("up")).unwrap_or_default();
        said.lines().filter(|line| *line == word).count() == number
    };
    until("all listen", || said_by(4, "lead"));
    let (last, stopped) = sandboxes.split_last().unwrap();
    stopped.iter().for_each(Sandbox::stop_supervisors);
    let ids = sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    let words: Vec<&str> = ["kill", "-s", "HUP"].into_iter().chain(ids).collect();
    let kill = fold.begin(&words);
    until("one has heard", || said_by(1, "hup"));
    stopped.iter().for_each(Sandbox::continue_supervisors);
    // Nobody was waited for in vain.
    let done = kill.wait_with_output().unwrap();
    assert_eq!(code(&done), 0, "{}", said(&done));
    until("all have heard", || said_by(4, "hup"));
    assert_eq!(fold.status(&last.id), "running");
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// As on a host whose processors are all taken for more than a second.
#[test]
fn supervisor_that_takes_its_time_is_waited_for() {
    let fold = Fold::new();
    let script = "trap 'echo hup >> $UP' HUP; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = fold.start(&["--ttl", "1h"], script);
    fold.yard.await_up(&["lead"]);
    sandbox.stop_supervisors();
    let asked = [
        fold.begin(&["extend", &sandbox.id, "2h"]),
        fold.begin(&["kill", "-s", "HUP", &sandbox.id]),
        fold.begin(&["exec", &sandbox.id, "true"]),
    ];
    let handles = asked.each_ref().map(|child| crate::support_d::handle(pid_of(child)));
    let mut fds = handles.each_ref().map(|handle| PollFd::new(handle, PollFlags::IN));
    let given_up = poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 500_000_000 })).unwrap();
    assert_eq!(given_up, 0, "somebody did not wait");
    sandbox.continue_supervisors();
    for done in asked.map(|child| child.wait_with_output().unwrap()) {
        assert_eq!(code(&done), 0, "{}", said(&done));
    }
    fold.yard.await_up(&["lead", "hup"]);
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// A v1 cgroup whose processes get a thousandth of a processor, and one on each processor that uses it up before others.
struct Starved {
    dir: PathBuf,
    hogs: Vec<Started>,
}

impl Starved {
    fn new() -> io::Result<Starved> {
        let dir = PathBuf::from(format!("/sys/fs/cgroup/cpu/penfold-test-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let mut starved = Starved { dir, hogs: Vec::new() };
        std::fs::write(starved.dir.join("cpu.cfs_period_us"), "1000000")?;
        std::fs::write(starved.dir.join("cpu.cfs_quota_us"), "1000")?;
        for number in (0..CpuSet::MAX_CPU).filter(|&number| sched_getaffinity(None).unwrap().is_set(number)) {
            let mut hog = Command::new("sh");
            let hog = Started::of(hog.args(["-c", "ulimit -t 5; while :; do :; done"]));
            let mut only = CpuSet::new();
            only.set(number);
            sched_setaffinity(Some(hog.pid()), &only)?;
            setpriority_process(Some(hog.pid()), -20)?;
            std::fs::write(starved.dir.join("cgroup.procs"), hog.pid().as_raw_pid().to_string())?;
            starved.hogs.push(hog);
        }
        Ok(starved)
    }

    fn take(&self, pid: Pid) {
        setpriority_process(Some(pid), 19).unwrap();
        std::fs::write(self.dir.join("cgroup.procs"), pid.as_raw_pid().to_string()).unwrap();
    }

    fn give_back(&self, pid: Pid) {
        let above = self.dir.parent().unwrap().join("cgroup.procs");
        setpriority_process(Some(pid), 0).unwrap();
        std::fs::write(above, pid.as_raw_pid().to_string()).unwrap();
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        let above = self.dir.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&above, pid);
        }
        self.hogs.clear();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// The end of its sandbox is its own to tell.
#[test]
fn supervisor_that_has_no_processor_is_not_taken_for_a_deaf_one() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    let starved = match Starved::new() {
        Ok(starved) => starved,
        Err(error) => return crate::support_d::skip(&format!("no cpu controller of cgroup v1: {error}")),
    };
    let both: Vec<Pid> = sandbox.supervisors.iter().map(|(pid, _)| *pid).collect();
    for &pid in &both {
        starved.take(pid);
    }
    let killer = fold.begin(&["kill", &sandbox.id]);
    let handle = crate::support_d::handle(pid_of(&killer));
    let wait = Timespec { tv_sec: 2, tv_nsec: 500_000_000 };
    let given_up = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&wait)).unwrap();
    for &pid in &both {
        starved.give_back(pid);
    }
    let done = killer.wait_with_output().unwrap();
    assert_eq!(code(&done), 0, "{}", said(&done));
    sandbox.assert_gone();
    let report = crate::support_d::json(&fold.call(&["report", &sandbox.id, "--json"]));
    assert_eq!((given_up, &report[0]["cause"]), (0, &"kill".into()), "{report}");
}

#[test]
fn sandbox_of_another_user_is_not_ours_to_kill() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    let mut command = match fold.yard.penfold_as_user(&["kill", &sandbox.id]) {
        Ok(command) => command,
        Err(reason) => return crate::support_d::skip(reason),
    };
    let refused = output(command.arg("--root").arg(fold.yard.path("root")));
    assert_eq!(code(&refused), 7, "{}", said(&refused));
    assert_eq!(fold.status(&sandbox.id), "running");
}

#[test]
fn extended_lease_ends_later_and_a_renewed_one_sooner() {
    let fold = Fold::new();
    let sandbox = fold.start(&["--ttl", "1h"], "sleep 1000");
    fold.expect(&["extend", &sandbox.id, "100ms"], 0, &[&sandbox.id]);
    fold.expect(&["wait", "--timeout", "20s", &sandbox.id], 143, &["143"]);
    let refused = fold.expect(&["extend", &sandbox.id, "1h"], 1, &[]);
    assert!(said(&refused).contains("killed"), "{}", said(&refused));
    fold.expect(&["extend", "nosuch", "1h"], 3, &[]);
}
