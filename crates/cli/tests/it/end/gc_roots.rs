//! `penfold gc` and `penfold doctor` on things of another state root or another user.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_cgroup::LeafPlace;
use rustix::process::Signal;

use super::leaks::{doctor, leaks_of};
use super::standing::{Directory, await_count};
use crate::support::jail::jailed;
use crate::support::{
    Finished, Process, Running, TestEnv, USER, fresh_id, json, kill_at_once, penfold, wait_until,
};

/// Runs `penfold` with these words below another state root.
#[track_caller]
fn call_below(env: &TestEnv, root: &Path, words: &[&str]) -> Finished {
    Running::start(env.command(penfold()).arg("--root").arg(root).args(words)).finish().with_code(0)
}

/// Starts a detached sandbox below another root that is to outlive its supervisors, and kills both at once; gives the id.
#[track_caller]
fn keep(env: &TestEnv, root: &Path, contain: &str, seconds: &str) -> String {
    let script = format!("cd /; setsid sleep {seconds} & exec sleep {seconds}");
    let flags = ["run", "-d", "--on-supervisor-exit", "keep", "--scratch", "--contain", contain];
    let started = call_below(env, root, &[&flags, ["--", "sh", "-c", &script].as_slice()].concat());
    let id = started.out().trim().to_owned();
    await_count(env, seconds, 2);
    let state = json(&root.join("sandboxes").join(&id).join("state.json")).unwrap();
    let told = state["supervisors"].as_array().unwrap();
    let pids = told.iter().map(|one| i32::try_from(one["pid"].as_i64().unwrap()).unwrap());
    let both: Vec<Process> = pids.map(|pid| Process::find(pid).unwrap()).collect();
    assert_eq!(both.len(), 2);
    kill_at_once(&both.iter().collect::<Vec<_>>());
    assert_eq!(count(env, seconds), 2);
    id
}

/// How many `sleep` of so many seconds run.
fn count(env: &TestEnv, seconds: &str) -> usize {
    env.running(&format!("sleep {seconds}")).len()
}

fn scratch(env: &TestEnv, id: &str) -> PathBuf {
    env.path("tmp").join(format!("penfold-{id}"))
}

/// spec: 5.13
#[test]
fn what_another_state_root_keeps_is_neither_shown_nor_ended() {
    jailed(|| {
        let env = TestEnv::new();
        let root = env.path("another");
        let id = keep(&env, &root, "cgroup", "3501");
        assert!(scratch(&env, &id).is_dir());
        let found = doctor(&env);
        assert!(leaks_of(&found, &id).is_empty(), "{found}");
        let dry = env.call(["gc", "-n", "--older-than", "0", "--json"]).json();
        assert!(leaks_of(&dry, &id).is_empty(), "{dry}");
        let all = env.call(["gc", "-f", "--older-than", "0", "--json"]).with_code(0).json();
        assert!(leaks_of(&all, &id).is_empty(), "{all}");
        env.call(["gc", "-f", "--older-than", "0", &id]).with_code(3);
        assert_eq!(count(&env, "3501"), 2);
        assert!(scratch(&env, &id).is_dir());

        call_below(&env, &root, &["gc", &id]);
        assert_eq!(count(&env, "3501"), 0);
    });
}

/// spec: 5.13
#[test]
fn what_may_belong_to_another_state_root_is_ended_only_by_its_id() {
    jailed(|| {
        for (contain, seconds) in [("subreaper", "3511"), ("cgroup", "3512")] {
            let env = TestEnv::new();
            let root = env.path("another");
            let id = keep(&env, &root, contain, seconds);
            if contain == "cgroup" {
                // The label names a record that is not there.
                std::fs::rename(&root, env.path("moved")).unwrap();
            }
            let found = doctor(&env);
            let leaks = leaks_of(&found, &id);
            assert!(leaks.iter().any(|leak| leak["kind"] == "processes"), "{found}");
            assert!(leaks.iter().any(|leak| leak["kind"] == "directory"), "{found}");
            assert_eq!(leaks.iter().any(|leak| leak["kind"] == "cgroup"), contain == "cgroup", "{found}");
            let text = env.call(["doctor"]).out();
            assert!(text.contains("perhaps one below another state root"), "{text}");
            assert!(text.contains(&format!("gc --older-than 0 {id}")), "{text}");

            let found = env.call(["gc", "-f", "--older-than", "0", "--json"]).with_code(0).json();
            let kept = leaks_of(&found, &id);
            assert!(kept.iter().all(|leak| leak["outcome"] == "kept"), "{found}");
            assert!(kept[0]["reason"].as_str().unwrap().contains(&format!("gc {id}")), "{found}");
            assert_eq!(count(&env, seconds), 2, "{contain}");
            assert!(scratch(&env, &id).is_dir());

            env.call(["gc", "--older-than", "0", &id]).with_code(0);
            assert_eq!(count(&env, seconds), 0, "{contain}");
            assert!(!scratch(&env, &id).try_exists().unwrap());
            assert!(leaks_of(&doctor(&env), &id).is_empty());
        }
    });
}

/// Starts an orphan of an ordinary user that carries a marker.
#[track_caller]
fn stray(env: &TestEnv, id: &str, seconds: &str) -> Process {
    let mut command: Command = env.command("sh");
    command.args(["-c", &format!("sleep {seconds} & :")]).env("PENFOLD_SANDBOX", id).uid(USER).gid(USER);
    Running::spawn(command.stdout(Stdio::null())).finish().with_code(0);
    await_count(env, seconds, 1);
    env.running(&format!("sleep {seconds}")).remove(0)
}

/// spec: 5.13
#[test]
fn orphans_of_another_user_are_left_to_that_user() {
    jailed(|| {
        let env = TestEnv::new();
        let (bare, leafed) = (fresh_id(), fresh_id());
        stray(&env, &bare, "3521");
        let member = stray(&env, &leafed, "3522");
        let place = LeafPlace::find_here().unwrap();
        let leaf = Directory::make(place.path().join(format!("penfold-{leafed}"))).unwrap();
        chown(leaf.path(), Some(USER), Some(USER)).unwrap();
        std::fs::write(leaf.path().join("cgroup.procs"), member.pid().to_string()).unwrap();

        for found in [doctor(&env), env.call(["gc", "-f", "--older-than", "0", "--json"]).json()] {
            assert!(leaks_of(&found, &bare).is_empty() && leaks_of(&found, &leafed).is_empty(), "{found}");
        }
        for id in [&bare, &leafed] {
            env.call(["gc", "-f", "--older-than", "0", id]).with_code(3);
        }
        assert_eq!((count(&env, "3521"), count(&env, "3522")), (1, 1));
        member.signal(Signal::KILL);
        member.await_end();
        wait_until("its leaf is empty", || {
            std::fs::read(leaf.path().join("cgroup.procs")).unwrap().is_empty()
        });
    });
}
