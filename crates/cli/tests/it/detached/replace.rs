//! `run --replace`: a new sandbox takes the name of another one.

use super::sandboxes::{await_running, end, remove};
use crate::support::{Running, Sandbox, TestEnv, wait_until};

/// spec: 12.2
#[test]
fn sandbox_that_has_the_name_is_stopped_and_seen_to_be_gone_first() {
    let env = TestEnv::new();
    for level in env.levels() {
        let flags = ["--contain", level.word(), "--name", "web", "--"];
        let old = env.detach([&flags[..], &["sh", "-c", "setsid sleep 1021 & exec sleep 1022"]].concat());
        let members = await_running(&env, &["sleep 1021", "sleep 1022"]);
        let new = env.detach([&["--replace"], &flags[..], &["sleep", "1023"]].concat());
        old.assert_gone(&members);
        let (status, cause, _) = end(&env, &old);
        assert_eq!((status.as_str(), cause.as_str()), ("killed", "stop"), "{level:?}");
        assert_eq!(env.listed_ids(&[]), [new.id.as_str()], "{level:?}");
        assert_eq!(env.call(["inspect", "web"]).json()[0]["id"], new.id.as_str());
        env.call(["rm", "-f", "web"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 12.2
#[test]
fn name_that_nobody_has_is_taken_and_a_sandbox_in_the_foreground_replaced() {
    let env = TestEnv::new();
    let launcher =
        Running::start(&mut env.run_command(["--replace", "--name", "web", "--", "sleep", "1024"]));
    await_running(&env, &["sleep 1024"]);
    let new = env.detach(["--replace", "--name", "web", "--", "sleep", "1025"]);
    assert!(!env.is_running("sleep 1024"), "it was not ended before the other started");
    launcher.finish();
    remove(&env, &new);
    env.call(["run", "--replace", "--", "true"]).refused(125, "--name");
    env.assert_nothing_left();
}

/// spec: 12.2
#[test]
fn sandbox_that_the_caller_is_in_is_not_replaced() {
    let env = TestEnv::new();
    let script = "$PF --replace --name web -- sleep 1026 2>said; echo $? >code; exec sleep 1027";
    let sandbox = env.detach(["--name", "web", "--", "sh", "-c", script]);
    let leader = sandbox.leader().unwrap();
    await_running(&env, &["sleep 1027"]);
    assert_eq!(std::fs::read_to_string(env.path("work/code")).unwrap(), "125\n");
    let said = std::fs::read_to_string(env.path("work/said")).unwrap();
    assert!(said.contains("cannot replace `web`") && said.contains(&sandbox.id), "{said}");
    assert!(!leader.has_ended() && !env.is_running("sleep 1026"));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.2
#[test]
fn of_fifty_that_replace_each_other_at_once_one_survives_and_nothing_of_the_others() {
    let env = TestEnv::new();
    let words = ["-d", "--replace", "--name", "web", "--", "sleep", "1028"];
    let callers: Vec<Running> = (0..50).map(|_| Running::start(&mut env.run_command(words))).collect();
    let (started, refused): (Vec<_>, Vec<_>) =
        callers.into_iter().map(Running::finish).partition(|finished| finished.code() == Some(0));
    // One that was replaced before its command ran has no id to print.
    for loser in refused {
        assert_eq!(loser.code(), Some(125), "{}", loser.err());
        assert_eq!(loser.out(), "");
    }
    let started: Vec<Sandbox> = started
        .iter()
        .map(|finished| finished.out().trim_end().to_owned())
        .map(|id| known(&env, id))
        .collect();
    let living = env.listed_ids(&[]);
    let [survivor] = living.as_slice() else { panic!("{} survivors: {living:?}", living.len()) };
    assert!(started.iter().any(|one| one.id == *survivor), "a sandbox that nobody was told of");
    wait_until("one command runs", || env.running("sleep 1028").len() == 1);
    for loser in started.iter().filter(|one| one.id != *survivor) {
        assert_eq!(loser.await_end()["cause"], "stop");
    }
    env.call(["rm", "-f", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// A sandbox by its id only: it may have been replaced already.
fn known(env: &TestEnv, id: String) -> Sandbox {
    Sandbox { record: env.root().join("sandboxes").join(&id), id, supervisors: Vec::new(), leaf: None }
}
