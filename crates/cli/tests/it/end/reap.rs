//! `penfold reap` on real processes.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_cgroup::{LeafPlace, mountinfo};

use super::standing::{Directory, as_user, await_running, await_state};
use crate::support::{Finished, Running, TestEnv, fresh_id, is_root, skip, wait_until};

/// Runs `penfold reap` with these words, which must succeed.
#[track_caller]
fn reap(env: &TestEnv, words: &[&str]) -> Finished {
    env.call(["reap"].iter().chain(words)).with_code(0)
}

/// Starts a program; the output is not heard.
#[track_caller]
fn start(command: &mut Command) -> Running {
    Running::spawn(command.stdout(Stdio::null()))
}

/// Panics if a `sleep` of so many seconds runs.
#[track_caller]
fn assert_none_run(env: &TestEnv, seconds: &[u32]) {
    for number in seconds {
        assert!(!env.is_running(&format!("sleep {number}")), "sleep {number}");
    }
}

/// `sh` that starts children in every way that leaves its group and keeps its place in the tree.
const TREE: &str = "sleep 3001 & setsid sleep 3002 & (setsid sh -c 'sleep 3003; true' & wait) & wait";

/// spec: 3.2
#[test]
fn pid_ends_the_whole_tree_and_nobody_else() {
    let env = TestEnv::new();
    let tree = start(env.command("bash").args(["-c", TREE]).process_group(0));
    await_running(&env, &[3001, 3002, 3003]);
    let bystander = start(env.command("sleep").arg("3004").process_group(tree.pid()));
    let found = reap(&env, &["--json", "--pid", &tree.pid().to_string()]).json();
    assert_eq!(found["schema"], 1);
    assert_eq!(found["verified"], true);
    // A shell whose child has ended may end by itself before it is asked.
    assert!(found["ended"].as_array().unwrap().len() >= 3, "{found}");
    assert!(found["ended"].as_array().unwrap().iter().all(|ended| ended["how"] == "term"), "{found}");
    assert!(!tree.is_alive());
    assert_none_run(&env, &[3001, 3002, 3003]);
    assert!(bystander.is_alive(), "in the same group, and not of the tree");
}

/// spec: 2.2
#[test]
fn the_child_of_a_thread_belongs_to_the_tree() {
    let env = TestEnv::new();
    let tree = start(env.command(std::env::current_exe().unwrap()).arg("child-of-a-thread"));
    await_running(&env, &[3011]);
    reap(&env, &["-t", "0", "--pid", &tree.pid().to_string()]);
    assert!(!tree.is_alive());
    assert_none_run(&env, &[3011]);
}

/// The program `child-of-a-thread`.
pub fn child_of_a_thread() {
    let child = std::thread::spawn(|| Command::new("sleep").arg("3011").spawn().unwrap().wait());
    let _ = child.join();
}

/// spec: 3.3
#[test]
fn a_dry_run_lists_and_signals_nothing() {
    let env = TestEnv::new();
    let tree = env.shell("sleep 3021 & wait");
    await_running(&env, &[3021]);
    let pid = tree.pid().to_string();
    let listed = reap(&env, &["-n", "--pid", &pid]).out();
    assert!(listed.contains(&pid) && listed.contains("sleep 3021"), "{listed}");
    let listed = reap(&env, &["-n", "--json", "--pid", &pid]).json();
    assert_eq!(listed["targets"].as_array().unwrap().len(), 2);
    assert_eq!(listed["dry_run"], true);
    assert!(tree.is_alive());
    assert!(env.is_running("sleep 3021"));
}

/// spec: 3.2
#[test]
fn env_ends_carriers_and_what_they_started_and_not_the_rest_of_their_pipeline() {
    let env = TestEnv::new();
    // A value that no other test has.
    let cookie = env.dir().display();
    let script =
        format!("set -m; BUILD='{cookie}' bash -c 'env -u BUILD sleep 3031 & wait' | sleep 3032 & wait");
    let shell = env.shell(&script);
    await_running(&env, &[3031, 3032]);
    reap(&env, &["--env", &format!("BUILD={cookie}")]);
    assert!(!env.is_running("sleep 3031"), "without the variable, and started by a carrier");
    assert!(env.is_running("sleep 3032"), "the rest of the pipeline carries nothing");
    assert!(shell.is_alive());
    // What is gone already counts as ended.
    reap(&env, &["--env", &format!("BUILD={cookie}x")]);
}

/// spec: 3.2
#[test]
fn group_and_session_spare_what_penfold_runs_under() {
    for flag in ["--pgid", "--session"] {
        let env = TestEnv::new();
        let script = format!("sleep 3041 & \"$PENFOLD\" reap --json {flag} $$; echo code $?; wait");
        let done = Running::start(env.command("setsid").args(["--wait", "bash", "-c", &script])).finish();
        let text = done.out();
        assert!(text.ends_with("code 0\n"), "{flag}: {text} {}", done.err());
        let found: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let left_out = found["left_out"].as_array().unwrap();
        assert!(left_out.iter().any(|mark| mark["name"] == "bash"), "{flag}: {found}");
        assert_eq!(found["ended"].as_array().unwrap().len(), 1, "{flag}: {found}");
        assert!(!env.is_running("sleep 3041"), "{flag}");
    }
}

/// spec: 3.3
#[test]
fn a_session_is_followed_beyond_a_dead_parent() {
    let env = TestEnv::new();
    let script = "(sleep 3051 & sleep 3052 & exec true); exec sleep 3053";
    let leader = start(env.command("setsid").args(["bash", "-c", script]));
    await_running(&env, &[3051, 3052, 3053]);
    reap(&env, &["--pid", &env.running("sleep 3053")[0].pid().to_string()]);
    assert_none_run(&env, &[3051, 3052, 3053]);
    leader.process().await_end();
}

/// spec: 3.2
#[test]
fn cgroup_members_are_ended_one_by_one_and_the_cgroup_stays_usable() {
    let Ok(place) = LeafPlace::find_here() else { return skip("no cgroup2 to write to") };
    let env = TestEnv::new();
    let name = format!("reap-test-{}", fresh_id());
    let cgroup = Directory::make(place.path().join(&name)).unwrap();
    let below = Directory::make(cgroup.path().join("below")).unwrap();
    let enter = |directory: &Path, seconds: &str| {
        let started = start(env.command("sleep").arg(seconds));
        std::fs::write(directory.join("cgroup.procs"), started.pid().to_string()).unwrap();
        started
    };
    let beside = start(env.command("sleep").arg("3069"));
    let shown = format!("{}/{name}", place.cgroup().trim_end_matches('/'));
    for given in [cgroup.path().display().to_string(), shown] {
        let (one, two) = (enter(cgroup.path(), "3061"), enter(below.path(), "3062"));
        let found = reap(&env, &["--json", "--cgroup", &given]).json();
        assert_eq!(found["ended"].as_array().unwrap().len(), 2, "{given}");
        assert!(!one.is_alive() && !two.is_alive(), "{given}");
    }
    assert!(beside.is_alive());
    let gone = below.path().display().to_string();
    drop(below);
    reap(&env, &["--cgroup", &gone]);
}

/// The mount point of the v1 freezer; nothing, and the reason said, where there is none to write to.
pub fn v1_freezer() -> Option<PathBuf> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap();
    let found = mountinfo::parse_mountinfo(&text).unwrap().into_iter();
    let freezer = found.rev().find(|mount| mount.fs_type == "cgroup" && mount.has_option("freezer"));
    if freezer.is_none() || !is_root() {
        skip("no cgroup v1 freezer to write to");
        return None;
    }
    freezer.map(|mount| mount.mount_point)
}

/// Moves a process into a cgroup.
#[track_caller]
pub fn enter(group: &Path, pid: i32) {
    std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
}

/// A v1 cgroup that is frozen until the value goes: members whose test fails can be ended then.
pub struct Frozen(PathBuf);

impl Frozen {
    #[track_caller]
    pub fn freeze(group: &Path) -> Frozen {
        let state = group.join("freezer.state");
        std::fs::write(&state, "FROZEN").unwrap();
        let frozen = Frozen(state);
        wait_until("frozen", || std::fs::read_to_string(&frozen.0).is_ok_and(|text| text.trim() == "FROZEN"));
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, "THAWED");
    }
}

/// spec: 31.1
#[test]
fn the_members_of_a_v1_cgroup_end_frozen_or_not() {
    let Some(freezer) = v1_freezer() else { return };
    let env = TestEnv::new();
    let group = Directory::make(freezer.join(format!("reap-test-{}", fresh_id()))).unwrap();
    let below = Directory::make(group.path().join("below")).unwrap();
    let beside = start(env.command("sleep").arg("3119"));
    let (one, two) = (start(env.command("sleep").arg("3111")), start(env.command("sleep").arg("3112")));
    enter(group.path(), one.pid());
    enter(below.path(), two.pid());
    let _frozen = Frozen::freeze(below.path());
    assert!(one.is_alive() && two.is_alive());
    let shown = group.path().display().to_string();
    let listed = reap(&env, &["-n", "--json", "--cgroup", &shown]).json();
    assert_eq!(listed["targets"].as_array().unwrap().len(), 2, "{listed}");
    let found = reap(&env, &["--json", "-t", "100ms", "--cgroup", &shown]).json();
    assert_eq!(found["ended"].as_array().unwrap().len(), 2, "{found}");
    assert!(!one.is_alive() && !two.is_alive() && beside.is_alive());
    drop(below);
    drop(group);
    reap(&env, &["--cgroup", &shown]);
    env.call(["reap", "--cgroup", freezer.to_str().unwrap()]).refused(2, "the root of all cgroups");
}

/// spec: 31.1
#[test]
fn several_selectors_mean_their_union() {
    let env = TestEnv::new();
    let cookie = format!("UNION={}", env.dir().display());
    let one = start(env.command("sleep").arg("3121"));
    let two = start(env.command("sleep").arg("3122"));
    let three = start(env.command("sleep").arg("3123").process_group(0));
    let (key, value) = cookie.split_once('=').unwrap();
    let four = start(env.command("sleep").arg("3124").env(key, value));
    let beside = start(env.command("sleep").arg("3125"));
    await_running(&env, &[3121, 3122, 3123, 3124, 3125]);
    let pids = [one.pid(), two.pid(), three.pid()].map(|pid| pid.to_string());
    let words = ["--pid", &pids[0], "--pid", &pids[1], "--pgid", &pids[2], "--env", &cookie];
    let listed = reap(&env, &[&["-n", "--json"], &words[..]].concat()).json();
    assert_eq!(listed["targets"].as_array().unwrap().len(), 4, "{listed}");
    let refused = env.call(["reap"].iter().chain(&words).chain(&["--pid", "1"]));
    assert_eq!(refused.code(), Some(2), "one that is never ended: {}", refused.err());
    env.call(["reap"].iter().chain(&words).chain(&["--home", "/nowhere"])).with_code(2);
    assert!([&one, &two, &three, &four].iter().all(|one| one.is_alive()));
    let found = reap(&env, &[&["--json"], &words[..]].concat()).json();
    assert_eq!(found["ended"].as_array().unwrap().len(), 4, "{found}");
    assert_none_run(&env, &[3121, 3122, 3123, 3124]);
    assert!(beside.is_alive());
}

/// spec: 3.2
#[test]
fn what_is_never_ended_is_refused() {
    let env = TestEnv::new();
    let own = std::process::id().to_string();
    let refused = |words: &[&str]| {
        let done = env.call(["reap", "-t", "0"].iter().chain(words));
        assert_eq!(done.code(), Some(2), "{words:?}: {}", done.err());
        assert_eq!(done.out(), "", "{words:?}");
    };
    for words in [
        ["--pid", "1"],
        ["--pid", &own],
        ["--pid", "0"],
        ["--pgid", "0"],
        ["--pgid", "1"],
        ["--session", "0"],
        ["--session", "1"],
        ["--env", "=x"],
        ["--env", "="],
        ["--env", "EMPTY="],
        ["--cgroup", "/"],
        ["--cgroup", "relative"],
        ["--cgroup", "/tmp"],
        ["--cgroup", "/a/../.."],
    ] {
        refused(&words);
    }
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(&["--pid", "2"]);
    }
}

/// spec: 3.3
#[test]
fn a_thread_is_not_taken_for_a_process() {
    let env = TestEnv::new();
    let (tell, hear) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
        let _ = wait.recv();
    });
    let tid = hear.recv().unwrap().to_string();
    env.call(["reap", "--pid", &tid]).with_code(2);
    drop(end);
    thread.join().unwrap();
}

/// spec: 3.1
#[test]
fn what_is_gone_already_is_done() {
    let env = TestEnv::new();
    let child = start(&mut env.command("true"));
    let pid = child.pid().to_string();
    await_state(child.process(), 'Z');
    reap(&env, &["--pid", &pid]);
    // Reaps it.
    child.finish();
    assert_eq!(reap(&env, &["--json", "--pid", &pid]).json()["verified"], true);
}

/// spec: 3.3
#[test]
fn who_ignores_the_signal_is_killed_after_the_grace() {
    let env = TestEnv::new();
    let script =
        "trap 'sleep 0.1; echo granted >> $UP' TERM; sleep 3071 & wait; wait; while :; do sleep 3072; done";
    let tree = env.shell(script);
    await_running(&env, &[3071]);
    let found = reap(&env, &["--json", "-t", "300ms", "--pid", &tree.pid().to_string()]).json();
    let ended = found["ended"].as_array().unwrap();
    let shell = ended.iter().find(|ended| ended["pid"] == tree.pid());
    assert_eq!(shell.expect("the shell")["how"], "kill", "{found}");
    env.await_up(&["granted"]);
    assert!(!tree.is_alive());
    assert_none_run(&env, &[3071, 3072]);
}

/// spec: 3.3
#[test]
fn a_tree_that_forks_when_asked_to_end_ends() {
    let env = TestEnv::new();
    // Each fork is the shell's own. A fork cannot be followed whose parent dies of the signal in the same instant.
    let script = "trap 'sleep 3081 & setsid sleep 3082 &' TERM; echo up >> $UP; \
                  n=0; while [ $n -lt 500 ]; do n=$((n+1)); sleep 3083 & wait; done";
    let tree = env.shell(script);
    env.await_up(&["up"]);
    reap(&env, &["-t", "300ms", "--pid", &tree.pid().to_string()]);
    assert!(!tree.is_alive());
    assert_none_run(&env, &[3081, 3082, 3083]);
}

/// spec: 3.3
#[test]
fn a_stopped_process_ends() {
    let env = TestEnv::new();
    let stopped = start(env.command("sleep").arg("3091"));
    stopped.process().stop();
    let found = reap(&env, &["--json", "--pid", &stopped.pid().to_string()]).json();
    assert_eq!(found["ended"][0]["how"], "term");
    assert!(!stopped.is_alive());
}

/// The grace of an hour is not waited for: the process did not get the signal.
/// spec: 2.3
#[test]
fn what_is_not_ours_to_signal_is_told_at_once() {
    let env = TestEnv::new();
    let target = start(env.command("sleep").arg("3101"));
    let Some(mut reap) =
        as_user(&env, &env.root(), &["reap", "-t", "1h", "--pid", &target.pid().to_string()])
    else {
        return;
    };
    Running::start(&mut reap).finish().with_code(7);
    assert!(target.is_alive());
}
