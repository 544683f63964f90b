//! `penfold kill`: the selected sandboxes end; messages and exit codes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::standing::{Standing, all_run, answers, as_user, await_said, detach_script, ended};
use crate::support::{Process, Running, Sandbox, TestEnv, skip, wait_until};

/// Says `hup` for each SIGHUP, and goes on.
pub const LISTENER: &str =
    "trap 'echo hup >> $UP' HUP; echo lead >> $UP; while :; do sleep 1000 & wait; done";

/// spec: 11.1
#[test]
fn whole_tree_is_gone_when_kill_answers() {
    for level in TestEnv::new().levels() {
        let env = TestEnv::new();
        let sandbox = Standing::start(&env, &["--contain", level.word()]);
        sandbox.assert_alive();
        answers(&env, &["kill", &sandbox.id[..8]], 0, &[&sandbox.id]);
        sandbox.assert_gone();
        assert_eq!(sandbox.status(&env).as_deref(), Some("killed"));
    }
}

/// spec: 11.1
#[test]
fn what_is_gone_already_counts_as_killed_and_keeps_its_code() {
    let env = TestEnv::new();
    let sandbox = ended(&env, &[], "exit 3");
    for verb in ["kill", "stop", "kill"] {
        answers(&env, &[verb, &sandbox.id], 0, &[&sandbox.id]);
    }
    answers(&env, &["wait", &sandbox.id], 3, &["3"]);
}

/// spec: 11.5
#[test]
fn each_word_is_answered_and_the_others_are_hit_all_the_same() {
    let env = TestEnv::new();
    let one = env.detach(["--name", "one", "sleep", "1000"]);
    let two = env.detach(["sleep", "1000"]);
    let done = answers(&env, &["kill", "one", "nosuch", &two.id], 3, &[&one.id, &two.id]);
    assert!(done.err().contains("nosuch"));
    one.assert_gone(&[]);
    two.assert_gone(&[]);
    answers(&env, &["kill", ""], 3, &[]);
    answers(&env, &["kill"], 2, &[]);
}

/// spec: 11.5
#[test]
fn ambiguous_word_kills_nobody() {
    let env = TestEnv::new();
    let mut sandboxes: Vec<Sandbox> = Vec::new();
    // An id begins with one of sixteen digits: the seventeenth sandbox at the latest repeats one.
    let digit = loop {
        let next = env.detach(["sleep", "1000"]);
        let digit = next.id[..1].to_owned();
        let is_taken = sandboxes.iter().any(|sandbox| sandbox.id.starts_with(&digit));
        sandboxes.push(next);
        if is_taken {
            break digit;
        }
    };
    let done = answers(&env, &["kill", &digit], 4, &[]);
    assert!(done.err().contains("matches"), "{}", done.err());
    assert!(all_run(&env, &sandboxes));
}

/// spec: 11.5
#[test]
fn all_is_refused_without_a_person_and_done_with_force() {
    let env = TestEnv::new();
    let sandboxes = [0; 3].map(|_| env.detach(["sleep", "1000"]));
    ended(&env, &[], "true");
    let done = answers(&env, &["kill", "--all"], 2, &[]);
    assert!(done.err().contains("kill --all -f` does it"), "{}", done.err());
    assert!(all_run(&env, &sandboxes));
    let done = env.call(["kill", "--all", "-f"]).with_code(0);
    assert_eq!(done.out().lines().count(), 3, "{}", done.out());
    for sandbox in &sandboxes {
        sandbox.assert_gone(&[]);
    }
    answers(&env, &["kill", "--all", "-f"], 0, &[]);
}

/// spec: 11.5
#[test]
fn only_what_a_filter_lets_through_is_hit() {
    let env = TestEnv::new();
    let hit = env.detach(["-l", "job=1", "sleep", "1000"]);
    let spared = env.detach(["-l", "job=2", "sleep", "1000"]);
    answers(&env, &["kill", "-f", "--filter", "label=job=1"], 0, &[&hit.id]);
    hit.assert_gone(&[]);
    assert_eq!(spared.status(&env).as_deref(), Some("running"));
}

/// spec: 11.5
#[test]
fn another_signal_goes_to_the_command_and_ends_nothing_else() {
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &[], LISTENER);
    env.await_up(&["lead"]);
    answers(&env, &["kill", "-s", "HUP", &sandbox.id], 0, &[&sandbox.id]);
    env.await_up(&["hup"]);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    answers(&env, &["kill", "-s", "9", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[]);
    answers(&env, &["kill", "-s", "HUP", &sandbox.id], 0, &[&sandbox.id]);
}

/// spec: 11.5
#[test]
fn stopped_supervisors_do_not_keep_a_signal_from_other_commands() {
    let env = TestEnv::new();
    let sandboxes = [0; 4].map(|_| detach_script(&env, &[], LISTENER));
    await_said(&env, "lead", 4);
    let (last, stopped) = sandboxes.split_last().unwrap();
    stopped.iter().for_each(Sandbox::stop_supervisors);
    let ids = sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    let kill = env.begin(["kill", "-s", "HUP"].into_iter().chain(ids));
    await_said(&env, "hup", 1);
    assert!(kill.is_alive(), "the stopped supervisors are not waited for");
    stopped.iter().for_each(Sandbox::continue_supervisors);
    kill.finish().with_code(0);
    await_said(&env, "hup", 4);
    assert_eq!(last.status(&env).as_deref(), Some("running"));
}

fn raw(process: &Process) -> Pid {
    Pid::from_raw(process.pid()).unwrap()
}

/// A v1 cgroup whose processes get 1 ms of 250, and one on each processor that uses it up before others.
struct Starved {
    dir: PathBuf,
    hogs: Vec<Running>,
}

impl Starved {
    fn new() -> io::Result<Starved> {
        let dir = PathBuf::from(format!("/sys/fs/cgroup/cpu/penfold-test-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let mut starved = Starved { dir, hogs: Vec::new() };
        std::fs::write(starved.dir.join("cpu.cfs_period_us"), "250000")?;
        std::fs::write(starved.dir.join("cpu.cfs_quota_us"), "1000")?;
        for number in (0..CpuSet::MAX_CPU).filter(|&number| sched_getaffinity(None).unwrap().is_set(number)) {
            let mut hog = Command::new("sh");
            let hog = hog.args(["-c", "ulimit -t 5; while :; do :; done"]).stdin(Stdio::null());
            let hog = Running::start(hog);
            let mut only = CpuSet::new();
            only.set(number);
            sched_setaffinity(Some(raw(hog.process())), &only)?;
            setpriority_process(Some(raw(hog.process())), -20)?;
            std::fs::write(starved.dir.join("cgroup.procs"), hog.pid().to_string())?;
            starved.hogs.push(hog);
        }
        Ok(starved)
    }

    fn take(&self, process: &Process) {
        setpriority_process(Some(raw(process)), 19).unwrap();
        std::fs::write(self.dir.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    fn give_back(&self, process: &Process) {
        setpriority_process(Some(raw(process)), 0).unwrap();
        std::fs::write(above(&self.dir), process.pid().to_string()).unwrap();
    }

    /// In how many periods nobody here got all the time that was wanted.
    fn throttled(&self) -> u64 {
        let stat = std::fs::read_to_string(self.dir.join("cpu.stat")).unwrap();
        let count = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        count.unwrap().parse().unwrap()
    }
}

/// The list of processes of the cgroup above this one.
fn above(dir: &Path) -> PathBuf {
    dir.parent().unwrap().join("cgroup.procs")
}

impl Drop for Starved {
    fn drop(&mut self) {
        for pid in std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(above(&self.dir), pid);
        }
        self.hogs.clear();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// The supervisor alone can report the cause `kill`.
/// spec: 11.7
#[test]
fn supervisor_that_has_no_processor_is_not_taken_for_a_deaf_one() {
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1000"]);
    let starved = match Starved::new() {
        Ok(starved) => starved,
        Err(error) => return skip(&format!("no cpu controller of cgroup v1: {error}")),
    };
    for supervisor in &sandbox.supervisors {
        starved.take(supervisor);
    }
    let before = starved.throttled();
    let killer = env.begin(["kill", &sandbox.id]);
    // Five periods are longer than a supervisor may take that could run.
    wait_until("five periods without a processor", || starved.throttled() >= before + 5);
    assert!(killer.is_alive(), "the supervisor was not waited for");
    for supervisor in &sandbox.supervisors {
        starved.give_back(supervisor);
    }
    killer.finish().with_code(0);
    sandbox.assert_gone(&[]);
    let report = env.call(["report", &sandbox.id, "--json"]).json();
    assert_eq!(report[0]["cause"], "kill", "{report}");
}

/// spec: 11.5
#[test]
fn sandbox_of_another_user_is_not_ours_to_kill() {
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1000"]);
    let Some(mut kill) = as_user(&env, &env.root(), &["kill", &sandbox.id]) else { return };
    Running::start(&mut kill).finish().with_code(7);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
}

/// spec: 11.7
#[test]
fn extended_lease_ends_later_and_a_renewed_one_sooner() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--ttl", "1h", "sleep", "1000"]);
    answers(&env, &["extend", &sandbox.id, "100ms"], 0, &[&sandbox.id]);
    answers(&env, &["wait", "--timeout", "30s", &sandbox.id], 143, &["143"]);
    let refused = answers(&env, &["extend", &sandbox.id, "1h"], 1, &[]);
    assert!(refused.err().contains("killed"), "{}", refused.err());
    answers(&env, &["extend", "nosuch", "1h"], 3, &[]);
}
