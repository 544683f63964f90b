//! Containers with the pids of the host, and members that were moved out of all their cgroups.

use std::process::Stdio;

use penfold_cgroup::mountinfo;
use rustix::process::Signal;

use super::bundle::{Engine, TREE, cgroups};
use super::id;
use crate::end::reap::enter;
use crate::support::{Process, Running, TestEnv};

/// Moves a process to the top of every hierarchy.
fn move_out(process: &Process) {
    let text = std::fs::read("/proc/self/mountinfo").unwrap();
    for mount in mountinfo::parse_mountinfo(&text).unwrap() {
        if matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2") {
            enter(&mount.mount_point, process.pid());
        }
    }
}

/// Creates and starts a container, as engines do; returns its first process and the stray, which is in none of its cgroups.
fn run(env: &TestEnv, engine: &Engine<'_>, id: &str) -> [Process; 2] {
    let pid_file = env.path("work/pid");
    let mut create = engine.command(&["create", "--pid-file", pid_file.to_str().unwrap(), "--bundle"]);
    create.arg(engine.bundle(TREE, false, |_| ())).arg(id).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(create.status().unwrap().success());
    engine.call(&["start", id]).with_code(0);
    let stray = engine.stray();
    let init = Process::find(std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap()).unwrap();
    move_out(&stray);
    for cgroup in cgroups(id) {
        let inside = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        assert!(!inside.lines().any(|pid| pid == stray.pid().to_string()), "{}", cgroup.display());
    }
    assert!(!init.has_ended() && !stray.has_ended(), "alive");
    [init, stray]
}

/// spec: 30.13
#[test]
fn member_that_was_moved_out_of_every_hierarchy_is_found_by_its_mount_namespace() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    // `delete` after the end of the first process.
    let [init, stray] = run(&env, &engine, &id);
    init.signal(Signal::KILL);
    init.await_end();
    let done = engine.call(&["delete", &id]).with_code(1);
    let named = format!("pid {} (sleep 1001)", stray.pid());
    assert!(done.err().contains(&named) && done.err().contains("mount namespace"), "{}", done.err());
    assert!(!stray.has_ended());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(stray.has_ended());
    // `kill`, and then `delete`.
    let [init, stray] = run(&env, &engine, &id);
    engine.call(&["kill", &id, "KILL"]).with_code(0);
    assert!(init.has_ended() && stray.has_ended());
    engine.call(&["delete", &id]).with_code(0);
    // A container that was started by `run`.
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    let stray = engine.stray();
    move_out(&stray);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended() && stray.has_ended());
    assert_eq!((cgroups(&id), engine.notes()), (Vec::new(), 0));
    env.assert_nothing_left();
}

/// spec: 30.13
#[test]
fn mount_namespace_of_the_host_and_of_another_container_is_left_alone() {
    let env = TestEnv::new();
    let (Some(one), Some(two)) = (Engine::new(&env, "one"), Engine::new(&env, "two")) else { return };
    let id = id(&env);
    let stranger = Running::spawn(env.command("sleep").arg("1006"));
    let path = format!("/{id}-other/two");
    let config = |config: &mut serde_json::Value| config["linux"]["cgroupsPath"] = path.into();
    let other = two.run("two", &two.bundle("sleep 1007", false, config));
    let init = one.run(&id, &one.bundle("exec sleep 1002", false, |_| ()));
    assert!(!init.has_ended(), "alive");
    one.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended() && stranger.is_alive() && !other.has_ended());
    two.call(&["delete", "--force", "two"]).with_code(0);
    drop(stranger);
    for parent in cgroups(&format!("{id}-other")) {
        std::fs::remove_dir(parent).unwrap();
    }
}
