//! The marker of a sandbox that lost both supervisors is in the environment of a process that is no member.

use std::os::unix::process::CommandExt as _;

use super::standing::await_sleeps;
use crate::support::jail::jailed;
use crate::support::{Level, Process, Running, Sandbox, TestEnv, USER, is_root, wait_until};

/// A sandbox whose supervisors are killed, with a leader and a daemon; its id, and its members.
fn orphan(env: &TestEnv, level: Level) -> (Sandbox, Vec<Process>) {
    let script = "setsid sleep 1000 & echo lead >> $UP; sleep 1000 & wait; wait";
    let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", script]);
    env.await_up(&["lead"]);
    await_sleeps(env, 2);
    let members = sandbox.members(env);
    assert!(members.len() >= 3, "{members:?}");
    (sandbox, members)
}

/// A process with a session of its own, a parent that lives, and a copy of the marker of this sandbox. As this user.
fn copy(env: &TestEnv, id: &str, user: Option<u32>) -> (Running, Process) {
    let mut command = env.command("setsid");
    command.args(["-w", "sh", "-c", "env PENFOLD_SANDBOX=$0 sleep 2000 & exec sleep 3000", id]);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let shell = Running::start(&mut command);
    let mut found = Vec::new();
    wait_until("the copy runs", || {
        found = env.running("sleep 2000");
        !found.is_empty() && env.is_running("sleep 3000")
    });
    (shell, found.remove(0))
}

/// spec: 4.2
#[test]
fn process_with_nothing_but_the_marker_is_named_and_ended_with_the_id_only() {
    jailed(|| [Level::Cgroup, Level::Subreaper].into_iter().for_each(named_and_ended_with_the_id_only));
}

fn named_and_ended_with_the_id_only(level: Level) {
    let env = TestEnv::new();
    let (sandbox, members) = orphan(&env, level);
    let (_shell, stranger) = copy(&env, &sandbox.id, None);
    sandbox.kill_supervisors();
    assert!(members.iter().all(|member| !member.has_ended()));

    let gc = env.call(["gc", "-f"]);
    members.iter().for_each(Process::await_end);
    assert!(!stranger.has_ended(), "{level:?}: a copy of the marker has ended a stranger: {gc:?}");
    let said = gc.with_code(5);
    let pid = stranger.pid().to_string();
    assert!((said.out() + &said.err()).contains(&pid), "{level:?}: {} is not named", stranger.pid());

    env.run(["true"]).with_code(0);
    assert!(!stranger.has_ended());
    env.call(["kill", &sandbox.id]).with_code(0);
    stranger.await_end();
}

/// spec: 4.2
#[test]
fn process_of_another_user_is_never_ended_for_its_marker() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let (sandbox, members) = orphan(&env, Level::Subreaper);
    let (_shell, stranger) = copy(&env, &sandbox.id, Some(USER));
    sandbox.kill_supervisors();
    env.call(["kill", &sandbox.id]).with_code(0);
    members.iter().for_each(Process::await_end);
    assert!(!stranger.has_ended(), "root has ended a process of user {USER}");
}
