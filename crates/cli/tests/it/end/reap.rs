//! `penfold reap` on real processes.

#![allow(clippy::missing_panics_doc, reason = "these are tests")]

use std::os::unix::process::CommandExt as _;

use crate::support_d::{
    Directory, Started, Yard, code, handle, has_ended, json, output, said, skip, state, until,
};
use penfold_cgroup::Place;
use rustix::process::Signal;

/// `sh` that starts children in every way that leaves its group and keeps its place in the tree.
const TREE: &str = "sleep 3001 & setsid sleep 3002 & (setsid sh -c 'sleep 3003; true' & wait) & \
                    echo up >> $UP; wait";

#[test]
fn pid_ends_the_whole_tree_and_nobody_else() {
    let yard = Yard::new();
    let mut tree =
        Started::of(yard.command("bash").args(["-c", TREE]).env("UP", yard.path("up")).process_group(0));
    yard.await_up(&["up"]);
    until("all children run", || (3001..=3003).all(|n| !yard.find(&format!("sleep {n}")).is_empty()));
    let group = i32::try_from(tree.child.id()).unwrap();
    let mut bystander = Started::of(yard.command("sleep").arg("3004").process_group(group));
    let done = output(&mut yard.penfold(["reap", "--json", "--pid", &group.to_string()]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    let found = json(&done);
    assert_eq!(found["schema"], 1);
    assert_eq!(found["verified"], true);
    // A shell whose child has ended may end by itself before it is asked.
    assert!(found["ended"].as_array().unwrap().len() >= 3, "{found}");
    assert!(found["ended"].as_array().unwrap().iter().all(|ended| ended["how"] == "term"), "{found}");
    assert!(!tree.is_alive());
    for n in 3001..=3003 {
        assert!(yard.find(&format!("sleep {n}")).is_empty(), "{n}");
    }
    assert!(bystander.is_alive(), "in the same group, and not of the tree");
}

#[test]
fn the_child_of_a_thread_belongs_to_the_tree() {
    let yard = Yard::new();
    let own = std::env::current_exe().unwrap();
    let mut tree = Started::of(yard.command(own).arg("child-of-a-thread"));
    until("the thread's child runs", || !yard.find("sleep 3011").is_empty());
    let pid = tree.child.id().to_string();
    let done = output(&mut yard.penfold(["reap", "-t", "0", "--pid", &pid]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(!tree.is_alive());
    assert!(yard.find("sleep 3011").is_empty());
}

/// The program `child-of-a-thread`.
pub fn child_of_a_thread() {
    let child =
        std::thread::spawn(|| std::process::Command::new("sleep").arg("3011").spawn().unwrap().wait());
    let _ = child.join();
}

#[test]
fn a_dry_run_lists_and_signals_nothing() {
    let yard = Yard::new();
    let mut tree = yard.shell("sleep 3021 & echo up >> $UP; wait");
    yard.await_up(&["up"]);
    let pid = tree.child.id().to_string();
    until("the child runs", || !yard.find("sleep 3021").is_empty());
    let listed = output(&mut yard.penfold(["reap", "-n", "--pid", &pid]));
    assert_eq!(code(&listed), 0);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains(&pid) && text.contains("sleep 3021"), "{text}");
    let listed = json(&output(&mut yard.penfold(["reap", "-n", "--json", "--pid", &pid])));
    assert_eq!(listed["targets"].as_array().unwrap().len(), 2);
    assert_eq!(listed["dry_run"], true);
    assert!(tree.is_alive());
    assert!(!yard.find("sleep 3021").is_empty());
}

#[test]
fn env_ends_carriers_and_what_they_started_and_not_the_rest_of_their_pipeline() {
    let yard = Yard::new();
    let cookie = yard.cookie();
    let script = format!(
        "set -m; BUILD='{cookie}' bash -c 'env -u BUILD sleep 3031 & echo up >> $UP; wait' | sleep 3032 & wait"
    );
    let mut shell = yard.shell(&script);
    yard.await_up(&["up"]);
    until("all run", || [3031, 3032].iter().all(|n| !yard.find(&format!("sleep {n}")).is_empty()));
    let done = output(&mut yard.penfold(["reap", "--env", &format!("BUILD={cookie}")]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(yard.find("sleep 3031").is_empty(), "without the variable, and started by a carrier");
    assert!(!yard.find("sleep 3032").is_empty(), "the rest of the pipeline carries nothing");
    assert!(shell.is_alive());
    let again = output(&mut yard.penfold(["reap", "--env", &format!("BUILD={cookie}x")]));
    assert_eq!(code(&again), 0, "already gone");
}

#[test]
fn group_and_session_spare_what_penfold_runs_under() {
    for flag in ["--pgid", "--session"] {
        let yard = Yard::new();
        let script = format!("sleep 3041 & \"$PF\" reap --json {flag} $$; echo code $?; wait");
        let mut command = yard.command("setsid");
        command.args(["--wait", "bash", "-c", &script]).env("PF", env!("CARGO_BIN_EXE_penfold"));
        let done = output(&mut command);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(text.ends_with("code 0\n"), "{flag}: {text} {}", said(&done));
        let found: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let left_out = found["left_out"].as_array().unwrap();
        assert!(left_out.iter().any(|mark| mark["name"] == "bash"), "{flag}: {found}");
        assert_eq!(found["ended"].as_array().unwrap().len(), 1, "{flag}: {found}");
        assert!(yard.find("sleep 3041").is_empty(), "{flag}");
    }
}

#[test]
fn a_session_is_followed_beyond_a_dead_parent() {
    let yard = Yard::new();
    let mut leader = Started::of(yard.command("setsid").args([
        "bash",
        "-c",
        "(sleep 3051 & sleep 3052 & exec true); exec sleep 3053",
    ]));
    until("all run", || (3051..=3053).all(|n| !yard.find(&format!("sleep {n}")).is_empty()));
    let pid = yard.find("sleep 3053")[0].as_raw_pid().to_string();
    let done = output(&mut yard.penfold(["reap", "--pid", &pid]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!((3051..=3053).all(|n| yard.find(&format!("sleep {n}")).is_empty()));
    until("setsid ends", || !leader.is_alive());
}

#[test]
fn cgroup_members_are_ended_one_by_one_and_the_cgroup_stays_usable() {
    let Ok(place) = Place::find_here() else { return skip("no cgroup2 to write to") };
    let yard = Yard::new();
    let name = format!("reap-test-{}", crate::support_d::fresh_id());
    let cgroup = Directory::make(place.path().join(&name)).unwrap();
    let below = Directory::make(cgroup.path().join("below")).unwrap();
    let enter = |directory: &std::path::Path, seconds: &str| {
        let started = Started::of(yard.command("sleep").arg(seconds));
        std::fs::write(directory.join("cgroup.procs"), started.child.id().to_string()).unwrap();
        started
    };
    let mut beside = Started::of(yard.command("sleep").arg("3069"));
    let shown = format!("{}/{name}", place.cgroup().trim_end_matches('/'));
    for given in [cgroup.path().display().to_string(), shown] {
        let (mut one, mut two) = (enter(cgroup.path(), "3061"), enter(below.path(), "3062"));
        let done = output(&mut yard.penfold(["reap", "--json", "--cgroup", &given]));
        assert_eq!(code(&done), 0, "{given}: {}", said(&done));
        assert_eq!(json(&done)["ended"].as_array().unwrap().len(), 2, "{given}");
        assert!(!one.is_alive() && !two.is_alive(), "{given}");
    }
    assert!(beside.is_alive());
    drop(below);
    let gone = output(&mut yard.penfold(["reap", "--cgroup", &format!("{}/below", cgroup.path().display())]));
    assert_eq!(code(&gone), 0, "already gone");
}

#[test]
fn what_is_never_ended_is_refused() {
    let yard = Yard::new();
    let own = std::process::id().to_string();
    let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_pid().to_string());
    let refused = |words: &[&str]| {
        let done = output(&mut yard.penfold([&["reap", "-t", "0"][..], words].concat()));
        assert_eq!(code(&done), 2, "{words:?}: {}", said(&done));
        assert!(done.stdout.is_empty(), "{words:?}");
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
    drop(thread.join());
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(&["--pid", "2"]);
    }
}

#[test]
fn a_thread_is_not_taken_for_a_process() {
    let yard = Yard::new();
    let (tell, hear) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
        let _ = wait.recv();
    });
    let tid = hear.recv().unwrap().to_string();
    let done = output(&mut yard.penfold(["reap", "--pid", &tid]));
    assert_eq!(code(&done), 2, "{}", said(&done));
    drop(end);
    thread.join().unwrap();
}

#[test]
fn what_is_gone_already_is_done() {
    let yard = Yard::new();
    let mut child = Started::of(&mut yard.command("true"));
    let pid = child.child.id().to_string();
    until("it is a zombie", || state(child.pid()) == Some('Z'));
    assert_eq!(code(&output(&mut yard.penfold(["reap", "--pid", &pid]))), 0, "a zombie");
    until("it is reaped", || !child.is_alive());
    let done = output(&mut yard.penfold(["reap", "--json", "--pid", &pid]));
    assert_eq!((code(&done), json(&done)["verified"].as_bool()), (0, Some(true)));
}

#[test]
fn who_ignores_the_signal_is_killed_after_the_grace() {
    let yard = Yard::new();
    let mut tree = yard.shell("trap '' TERM; sleep 3071 & echo up >> $UP; wait; sleep 3072");
    yard.await_up(&["up"]);
    until("the child runs", || !yard.find("sleep 3071").is_empty());
    let pid = tree.child.id().to_string();
    let done = output(&mut yard.penfold(["reap", "--json", "-t", "200ms", "--pid", &pid]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    let found = json(&done);
    assert!(found["ended"].as_array().unwrap().iter().all(|ended| ended["how"] == "kill"), "{found}");
    assert!(found["took_us"].as_u64().unwrap() >= 200_000, "{found}");
    assert!(!tree.is_alive());
    assert!(yard.find("sleep 3071").is_empty());
}

#[test]
fn a_tree_that_forks_when_asked_to_end_ends() {
    let yard = Yard::new();
    // Each fork is the shell's own: what is forked by who dies of the signal in the same instant cannot be followed.
    let script = "trap 'sleep 3081 & setsid sleep 3082 &' TERM; echo up >> $UP; \
                  n=0; while [ $n -lt 500 ]; do n=$((n+1)); sleep 3083 & wait; done";
    let mut tree = yard.shell(script);
    yard.await_up(&["up"]);
    let pid = tree.child.id().to_string();
    let done = output(&mut yard.penfold(["reap", "-t", "300ms", "--pid", &pid]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(!tree.is_alive());
    assert!((3081..=3083).all(|n| yard.find(&format!("sleep {n}")).is_empty()));
}

#[test]
fn a_stopped_process_ends() {
    let yard = Yard::new();
    let mut stopped = Started::of(yard.command("sleep").arg("3091"));
    crate::support_d::signal(stopped.pid(), Signal::STOP);
    until("it is stopped", || state(stopped.pid()) == Some('T'));
    let pid = stopped.child.id().to_string();
    let done = output(&mut yard.penfold(["reap", "--json", "--pid", &pid]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert_eq!(json(&done)["ended"][0]["how"], "term");
    assert!(!stopped.is_alive());
}

#[test]
fn what_is_not_ours_to_signal_is_told_at_once() {
    let yard = Yard::new();
    let mut target = Started::of(yard.command("sleep").arg("3101"));
    let ended = handle(target.pid());
    let pid = target.child.id().to_string();
    let mut command = match yard.penfold_as_user(&["reap", "--pid", &pid]) {
        Ok(command) => command,
        Err(reason) => return skip(reason),
    };
    let begun = std::time::Instant::now();
    let done = output(&mut command);
    assert_eq!(code(&done), 7, "{}", said(&done));
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "no grace for those that heard nothing");
    assert!(!has_ended(&ended) && target.is_alive());
}
