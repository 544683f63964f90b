//! Only one sandbox may have a thing, and what a sandbox owns needs a record.

use std::fs;

use rustix::process::Signal;

use super::can_make;
use crate::state::crash::can_crash;
use crate::support::{Running, TestEnv, kill_at_once, wait_until};

/// Before a recovery releases what only its name shows to be the orphan's.
pub const RELEASING: &str = "releasing";

/// Neither has made it yet, so that only the claim tells them apart.
/// spec: 18.4
#[test]
fn of_two_sandboxes_only_one_may_name_a_thing() {
    let env = TestEnv::new();
    let path = env.path("work/mine");
    let own = format!("--own=path={}", path.display());
    let first = env.detach([
        own.as_str(),
        "--",
        "sh",
        "-c",
        "until [ -e go ]; do sleep 0.05; done; touch mine; exec sleep 1000",
    ]);
    let refused = env.run([own.as_str(), "touch", "ran"]);
    assert!(refused.err().contains(&format!("belongs to sandbox {}", first.id)), "{}", refused.err());
    refused.refused(125, "belongs to sandbox");
    // Another thing is free.
    env.run([&format!("--own=path={}/other", env.path("work").display()), "true"]).with_code(0);
    fs::write(env.path("work/go"), "").unwrap();
    wait_until("it is made", || path.try_exists().unwrap());
    first.call(&env, &["kill", "ID"]).with_code(0);
    assert!(!path.try_exists().unwrap() && !env.path("work/ran").try_exists().unwrap());
    // It is free again.
    env.run([own.as_str(), "touch", "mine"]).with_code(0);
    assert!(!path.try_exists().unwrap());
    first.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// The orphan never made it; a later sandbox has.
/// spec: 18.4
#[test]
fn the_recovery_of_an_orphan_leaves_the_things_of_a_later_sandbox_alone() {
    let env = TestEnv::new();
    let path = env.path("work/mine");
    let own = format!("--own=path={}", path.display());
    let orphan = env.detach([own.as_str(), "--", "sleep", "1000"]);
    kill_at_once(&orphan.supervisors.iter().collect::<Vec<_>>());
    let later = env.detach([own.as_str(), "--", "sh", "-c", "touch mine; exec sleep 1001"]);
    wait_until("it is made", || path.try_exists().unwrap());
    orphan.call(&env, &["kill", "ID"]).with_code(0);
    assert!(env.running("sleep 1000").is_empty(), "the orphan is gone");
    assert!(path.try_exists().unwrap(), "it is removed");
    assert!(later.leader().is_some(), "the later sandbox has ended");
    later.call(&env, &["kill", "ID"]).with_code(0);
    assert!(!path.try_exists().unwrap());
    for sandbox in [&orphan, &later] {
        sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// The recovery has found that nobody else has it, and stands before it removes it.
/// spec: 18.4
#[test]
fn what_a_sandbox_makes_while_an_orphan_is_recovered_is_left_alone() {
    if !can_crash() {
        return;
    }
    let env = TestEnv::new();
    let path = env.path("work/mine");
    let own = format!("--own=path={}", path.display());
    let orphan = env.detach([own.as_str(), "--", "sleep", "1000"]);
    kill_at_once(&orphan.supervisors.iter().collect::<Vec<_>>());
    let words = ["kill", orphan.id.as_str()];
    let recovery = Running::start(env.penfold(words).env("PENFOLD_STOP_AT", RELEASING));
    wait_until("the recovery stands", || recovery.process().state() == Some('T'));
    assert!(env.running("sleep 1000").is_empty(), "the orphan is gone");
    let later = env.detach([own.as_str(), "--", "sh", "-c", "touch mine; exec sleep 1001"]);
    wait_until("it is made", || path.try_exists().unwrap());
    recovery.signal(Signal::CONT);
    recovery.finish().with_code(0);
    assert!(path.try_exists().unwrap(), "it is removed");
    later.call(&env, &["kill", "ID"]).with_code(0);
    assert!(!path.try_exists().unwrap());
    for sandbox in [&orphan, &later] {
        sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// The first stands between its claim and what it makes, so that a look finds everything free.
/// spec: 18.3
#[test]
fn of_two_sandboxes_that_start_at_once_only_one_gets_an_address_or_a_mount_point() {
    if !can_crash() || !can_make() {
        return;
    }
    let env = TestEnv::new();
    fs::create_dir(env.path("work/point")).unwrap();
    let mount = format!("--mount=type=tmpfs,target={}", env.path("work/point").display());
    let (address, gateway) = ("--address=10.99.0.2/30", "--gateway=10.99.0.1");
    for words in [&["--netns", address, gateway][..], &[mount.as_str()]] {
        let all = [words, &["sleep", "1000"]].concat();
        let first = Running::start(env.run_command(&all).env("PENFOLD_STOP_AT", "recorded"));
        wait_until("penfold stands", || first.process().state() == Some('T'));
        let other = [words, &["touch", "ran"]].concat();
        env.run(&other).refused(125, "belongs to sandbox");
        first.signal(Signal::CONT);
        wait_until("the command runs", || !env.running("sleep 1000").is_empty());
        first.signal(Signal::TERM);
        first.finish();
        assert!(!env.path("work/ran").try_exists().unwrap());
        env.run(&other).with_code(0);
        fs::remove_file(env.path("work/ran")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 18.1
#[test]
fn resources_without_a_record_are_refused() {
    let env = TestEnv::new();
    fs::write(env.path("work/root"), "").unwrap();
    let root = env.path("work/root").display().to_string();
    let space = env.path("work/space");
    let run = |words: &[&str]| {
        let mut command = env.command(crate::support::penfold());
        command.args(["--root", &root, "run"]).args(words).args(["touch", "../ran"]);
        Running::start(&mut command).finish()
    };
    // Without resources, the sandbox runs without a record.
    run(&["-w", "."]).with_code(0);
    fs::remove_file(env.path("ran")).unwrap();
    run(&["--workspace", space.to_str().unwrap()]).refused(125, "its resources need a record");
    assert!(!space.try_exists().unwrap() && !env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 18.1
#[test]
fn a_workspace_that_the_command_has_moved_goes_too() {
    let env = TestEnv::new();
    let (space, moved) = (env.path("work/space"), env.path("work/moved"));
    for script in ["touch file; mv ../space ../moved", "mv ../space ../moved; kill -9 $$"] {
        let done = env.run(["--workspace", space.to_str().unwrap(), "--", "sh", "-c", script]);
        assert!([Some(0), Some(137)].contains(&done.code()), "{}", done.err());
        assert!(!space.try_exists().unwrap() && !moved.try_exists().unwrap(), "{}", done.err());
    }
    // The other process of the sandbox holds it, too.
    let script = "touch file; mv ../space ../moved; exec sleep 1000";
    let sandbox = env.detach(["--workspace", space.to_str().unwrap(), "--", "sh", "-c", script]);
    wait_until("it is moved", || moved.try_exists().unwrap());
    sandbox.supervisors.last().unwrap().signal(Signal::KILL);
    sandbox.await_end();
    assert!(!space.try_exists().unwrap() && !moved.try_exists().unwrap());
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// The mount hides the workspace, and its files are another's.
/// spec: 18.5
#[test]
fn a_mount_on_the_workspace_goes_and_what_is_mounted_stays() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let (space, precious) = (env.path("work/space"), env.path("work/precious"));
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    let script = "touch mine; mount --bind ../precious . && [ -e ../space/file ]";
    env.run(["--workspace", space.to_str().unwrap(), "--", "sh", "-c", script]).with_code(0);
    assert!(!space.try_exists().unwrap() && precious.join("file").try_exists().unwrap());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("work/space"));
    env.assert_nothing_left();
}

/// spec: 18.2, 18.8
#[test]
fn resources_come_by_http_and_from_a_client_too() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let server = crate::serve::Server::start(&env, &["--api", "native"]);
    let space = env.path("work/space").display().to_string();
    let body = serde_json::json!({
        "command": ["sleep", "1000"], "inherit_env": true,
        "network": {}, "sockets": {}, "workspace": { "path": space }, "own": [format!("path={space}-own")],
    });
    let id = crate::serve::native::create(&server, &body)["id"].as_str().unwrap().to_owned();
    let found = super::traces(&env, &id);
    for part in ["/run/netns/penfold-", "work/space", "sockets/"] {
        assert!(found.iter().any(|trace| trace.contains(part)), "no {part} in {found:#?}");
    }
    let unknown = serde_json::json!({ "command": ["true"], "network": { "adress": "10.7.0.2/30" } });
    let reply = crate::serve::native::post(&server, "/v1/sandboxes", &unknown);
    assert!((400..500).contains(&reply.status), "{reply:?}");
    crate::serve::native::post(&server, &format!("/v1/sandboxes/{id}/kill"), &serde_json::json!({}))
        .with(200);
    super::assert_none_there(&env, &id);
    crate::serve::native::delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    let words =
        ["run", "--netns", "--sockets", "sh", "-c", "[ -d $PENFOLD_SOCKETS ] && grep -c : /proc/net/dev"];
    let host = server.host();
    let done = env.call(["--host", host.as_str()].iter().chain(&words)).with_code(0);
    assert_eq!(done.out(), "1\n", "only the loopback device: {}", done.err());
    drop(server);
    env.assert_nothing_left();
}
