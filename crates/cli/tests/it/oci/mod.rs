//! `penfold oci` in front of runc, and of programs that take its place.

mod bundle;
pub mod exec;
mod mounts;
mod refused;
mod state;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::bundle::{Engine, TREE, cgroups};
use crate::end::reap::enter;
use crate::end::standing::{await_state_d, frozen, write_to};
use crate::support::{Running, TestEnv, has_debug_assertions, penfold, skip, wait_until};

/// An id that no other test has.
fn id(env: &TestEnv) -> String {
    env.dir().file_name().unwrap().to_str().unwrap().to_owned() + "+_.x"
}

/// Writes a script that stands for the delegate.
fn fake(env: &TestEnv, script: &str) -> PathBuf {
    let path = env.path("work/delegate");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// spec: 30.1
#[test]
fn other_verbs_and_flags_reach_the_delegate_unchanged() {
    let env = TestEnv::new();
    let delegate = fake(&env, "printf '<%s>' \"$@\"; echo; exit 7");
    for words in [
        &["state", "a b"][..],
        &["--version"],
        &["--root", "/x", "--new-flag", "exec", "--cgroup", "x", "c1", "sh", "-c", "delete --help"],
        &["delete", "--new-flag", "c1"],
        &["kill", "c1", "TERM"],
        &["start", "c1"],
        &["features"],
    ] {
        let mut command = env.command(penfold());
        command.arg("oci").args(words).env("PENFOLD_OCI_DELEGATE", &delegate).env("PENFOLD_ROOT", env.root());
        let done = Running::start(&mut command).finish().with_code(7);
        let expected = format!("<{}>", words.join("><"));
        assert_eq!(done.out(), expected + "\n");
    }
    let link = env.path("work/penfold-oci");
    symlink(penfold(), &link).unwrap();
    let mut command = env.command(&link);
    command.arg("--help").env("PENFOLD_OCI_DELEGATE", &delegate);
    let done = Running::start(&mut command).finish().with_code(7);
    assert_eq!(done.out(), "<--help>\n");
    env.assert_nothing_left();
}

/// spec: 30.1
#[test]
fn missing_delegate_is_named() {
    let env = TestEnv::new();
    let mut command = env.command(penfold());
    command.args(["oci", "state", "x"]).env("PENFOLD_OCI_DELEGATE", "/no/such/runc");
    Running::start(&mut command).finish().refused(1, "cannot find the OCI runtime `/no/such/runc`");
}

/// spec: 30.2, 30.4, 30.6
#[test]
fn delete_is_refused_while_a_process_lives_and_succeeds_once_it_is_gone() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let bundle = engine.bundle(TREE, false, |_| ());
    let stray = engine.run_with_stray(&id, &bundle);
    assert_eq!(engine.notes(), 1);
    for _ in 0..2 {
        let begun = Instant::now();
        let done = engine.call(&["delete", &id]).with_code(1);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(done.err().contains(&format!("pid {} (sleep 1001) state S", stray.pid())), "{}", done.err());
        assert!(!stray.has_ended(), "nothing was killed");
        engine.call(&["state", &id]).with_code(0);
    }
    let log = std::fs::read_to_string(engine.log()).unwrap();
    let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["level"], "error");
    assert!(last["msg"].as_str().unwrap().contains(&format!("pid {}", stray.pid())));
    assert!(last["time"].as_str().unwrap().ends_with('Z'));
    let metrics = env.call(["metrics"]).with_code(0).out();
    let counted = metrics.lines().find(|line| line.contains("leaks_found") && line.contains("\"container\""));
    assert!(counted.unwrap().ends_with(" 2"), "{metrics}");
    let events = std::fs::read_to_string(env.root().join("events.jsonl")).unwrap();
    assert_eq!(events.matches("\"refused\"").count(), 2);
    stray.signal(Signal::KILL);
    stray.await_end();
    engine.call(&["delete", &id]).with_code(0);
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
    assert_eq!(engine.notes(), 0);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(engine.call(&["delete", &id]).with_code(1).err().contains("does not exist"));
}

/// spec: 30.5
#[test]
fn delete_by_force_ends_all_processes_with_and_without_a_pid_namespace() {
    for private_pids in [true, false] {
        for ended in [false, true] {
            let env = TestEnv::new();
            let Some(engine) = Engine::new(&env, "runc") else { return };
            let id = id(&env);
            let bundle = engine.bundle(TREE, private_pids, |_| ());
            let members = if ended && !private_pids {
                vec![engine.run_with_stray(&id, &bundle)]
            } else {
                vec![engine.run(&id, &bundle), engine.stray()]
            };
            engine.call(&["delete", "--force", &id]).with_code(0);
            assert!(members.iter().all(crate::support::Process::has_ended));
            assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
            assert_eq!(engine.notes(), 0);
            engine.call(&["delete", "--force", &id]).with_code(0);
        }
    }
}

/// spec: 30.4
#[test]
fn kill_ends_all_processes_where_the_pid_namespace_is_shared() {
    for words in [&["kill", "--all"][..], &["kill"]] {
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "runc") else { return };
        let id = id(&env);
        let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
        let stray = engine.stray();
        engine.call(&[words, &[&id, "KILL"]].concat()).with_code(0);
        assert!(init.has_ended() && stray.has_ended());
        engine.call(&["delete", &id]).with_code(0);
        assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
    }
}

/// spec: 30.4
#[test]
fn kill_ends_a_first_process_whose_main_thread_has_exited() {
    for private_pids in [true, false] {
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "runc") else { return };
        let id = id(&env);
        let kit = penfold_testkit::binary().unwrap();
        let bundle = engine.bundle("", private_pids, |config| {
            let source = kit.to_str().unwrap();
            let mount = serde_json::json!({
                "destination": "/kit", "type": "bind", "source": source, "options": ["bind", "ro"]
            });
            config["mounts"].as_array_mut().unwrap().push(mount);
            config["process"]["args"] =
                serde_json::json!(["/kit", "hostile", "zombie-main", "--ready", "/ready"]);
        });
        let init = engine.run(&id, &bundle);
        wait_until("the main thread has exited", || {
            bundle.join("rootfs/ready").is_file() && init.state() == Some('Z')
        });
        assert!(!init.has_ended());
        engine.call(&["kill", &id, "KILL"]).with_code(0);
        init.await_end();
        engine.call(&["delete", &id]).with_code(0);
        assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
        assert_eq!(engine.notes(), 0);
    }
}

/// spec: 30.5, 30.7
#[test]
fn frozen_member_is_ended_by_force() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    let stray = engine.stray();
    engine.call(&["pause", &id]).with_code(0);
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended() && stray.has_ended());
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
}

/// spec: 30.4
#[test]
fn report_lets_the_delete_succeed_and_tells_it() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let report = |config: &mut serde_json::Value| {
        config["annotations"] = serde_json::json!({ "dev.penfold.leak": "report" });
    };
    let stray = engine.run_with_stray(&id, &engine.bundle(TREE, false, report));
    engine.call(&["delete", &id]).with_code(0);
    assert!(std::fs::read_to_string(env.root().join("events.jsonl")).unwrap().contains("\"reported\""));
    assert_eq!(engine.notes(), 0);
    // runc kills what it finds in the cgroup of the container, and waits for nothing.
    stray.await_end();
}

/// spec: 30.2
#[test]
fn engines_with_other_roots_do_not_share_an_id() {
    let env = TestEnv::new();
    let (Some(one), Some(two)) = (Engine::new(&env, "one"), Engine::new(&env, "two")) else { return };
    let id = id(&env);
    let with_path = |path: &str| {
        let path = format!("/{id}-{path}/{id}");
        one.bundle(TREE, true, move |config| config["linux"]["cgroupsPath"] = path.into())
    };
    let first = one.run(&id, &with_path("one"));
    let second = two.run(&id, &with_path("two"));
    assert_eq!(one.notes(), 2);
    one.call(&["delete", "--force", &id]).with_code(0);
    assert!(first.has_ended() && !second.has_ended());
    two.call(&["delete", "--force", &id]).with_code(0);
    assert!(second.has_ended());
    for parent in ["one", "two"].iter().flat_map(|name| cgroups(&format!("{id}-{name}"))) {
        std::fs::remove_dir(parent).unwrap();
    }
}

/// spec: 30.7
#[test]
fn delegate_that_hangs_is_killed_within_five_seconds() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let init = engine.run(&id, &engine.bundle(TREE, true, |_| ()));
    let delegate = fake(&env, "setsid sleep 1003 & sleep 1003");
    for words in [["kill", &id, "KILL"], ["delete", "--force", &id]] {
        let begun = Instant::now();
        let mut command = engine.command(&words);
        command.env("PENFOLD_OCI_DELEGATE", &delegate);
        let done = Running::start(&mut command).finish();
        assert!(begun.elapsed() < Duration::from_secs(5), "{words:?}");
        done.refused(1, "was killed");
        assert!(!env.is_running("sleep 1003"), "{words:?}");
    }
    assert!(init.has_ended());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
}

/// A process in state D, in every cgroup of a running container whose other processes have been killed.
fn stuck_in(env: &TestEnv, id: &str, blocked: &penfold_testkit::FrozenFs) -> Running {
    let stuck = Running::spawn(env.command("sh").args(["-c", &write_to(blocked)]).process_group(0));
    await_state_d(stuck.process());
    for cgroup in cgroups(id) {
        enter(&cgroup, stuck.pid());
    }
    stuck
}

/// spec: 30.4, 30.5, 30.7
#[test]
fn delete_names_a_member_in_state_d_until_it_is_gone() {
    let Some(blocked) = frozen() else { return };
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    let stuck = stuck_in(&env, &id, &blocked);
    for words in [&["kill", &id, "KILL"][..], &["delete", &id], &["delete", "--force", &id]] {
        let begun = Instant::now();
        let done = engine.call(words).with_code(1);
        assert!(begun.elapsed() < Duration::from_secs(5), "{words:?}");
        let named = format!("pid {} (sh -c 'echo text", stuck.pid());
        assert!(done.err().contains(&named) && done.err().contains("state D in "), "{}", done.err());
        // The note, and a mark after a refused `delete`.
        assert!(init.has_ended() && stuck.is_alive() && (1..=2).contains(&engine.notes()));
    }
    drop(blocked);
    stuck.process().await_end();
    engine.call(&["delete", &id]).with_code(0);
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
    assert_eq!(engine.notes(), 0);
}

/// spec: 30.4
#[test]
fn with_report_a_member_in_state_d_blocks_neither_kill_nor_delete() {
    let Some(blocked) = frozen() else { return };
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let report = |config: &mut serde_json::Value| {
        config["annotations"] = serde_json::json!({ "dev.penfold.leak": "report" });
    };
    let init = engine.run(&id, &engine.bundle(TREE, false, report));
    let stuck = stuck_in(&env, &id, &blocked);
    engine.call(&["kill", &id, "KILL"]).with_code(0);
    assert!(init.has_ended() && stuck.is_alive());
    engine.call(&["delete", &id]).with_code(0);
    assert!(engine.notes() == 0 && stuck.is_alive());
    let told = std::fs::read_to_string(env.root().join("events.jsonl")).unwrap();
    assert!(told.contains("\"reported\"") && !told.contains("\"refused\""), "{told}");
    drop(blocked);
    stuck.process().await_end();
    for cgroup in cgroups(&id) {
        std::fs::remove_dir(cgroup).unwrap();
    }
}

/// spec: 30.3, 30.4
#[test]
fn member_that_was_moved_out_of_one_hierarchy_is_found_by_the_others() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let stray = engine.run_with_stray(&id, &engine.bundle(TREE, false, |_| ()));
    let all = cgroups(&id);
    let Some(pids) = all.iter().find(|dir| dir.starts_with("/sys/fs/cgroup/pids")) else {
        return skip("there is no v1 hierarchy of pids");
    };
    enter(std::path::Path::new("/sys/fs/cgroup/pids"), stray.pid());
    assert_eq!(std::fs::read_to_string(pids.join("cgroup.procs")).unwrap(), "");
    let done = engine.call(&["delete", &id]).with_code(1);
    assert!(done.err().contains(&format!("pid {} (sleep 1001)", stray.pid())), "{}", done.err());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(stray.has_ended());
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
}

/// spec: 30.10
#[test]
fn containers_that_their_engine_has_lost_are_leaks() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let bundle = engine.bundle(TREE, false, |_| ());
    let members = [engine.run(&id, &bundle), engine.stray()];
    let doctor = || {
        let mut leaks = env.call(["doctor", "--json"]).json()["leaks"].as_array().cloned().unwrap();
        // Leaks of other tests are found, too.
        let own: Vec<_> = env.processes().iter().map(crate::support::Process::pid).collect();
        let has_own = |leak: &serde_json::Value| {
            leak["processes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|one| own.contains(&one["pid"].as_i64().unwrap_or(0).try_into().unwrap()))
        };
        leaks.retain(|leak| leak["kind"] == "container" || has_own(leak));
        leaks
    };
    let listed = || env.call(["ps", "--containers", "--json"]).with_code(0).json()[0].clone();
    let seen = listed();
    assert_eq!((&seen["id"], &seen["status"]), (&id.clone().into(), &"running".into()), "{seen}");
    assert_eq!(env.call(["ps", "--containers", "-q"]).out(), format!("{id}\n"));
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new(), "it is no sandbox");
    // A container that the delegate knows is none, and gc leaves it alone.
    assert_eq!(doctor(), Vec::<serde_json::Value>::new());
    env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
    // Nor is one that another mount namespace shows differently.
    let tmpfs = env.command("unshare");
    let script = format!("mount -t tmpfs none {} && \"$@\"", engine.root.display());
    let gc = env.penfold(["gc", "-f", "--older-than", "0"]);
    let mut elsewhere = tmpfs;
    elsewhere.args(["-m", "sh", "-c", &script, "sh"]).arg(gc.get_program()).args(gc.get_args());
    Running::start(&mut elsewhere).finish().with_code(0);
    assert!(members.iter().all(|member| !member.has_ended()) && engine.notes() == 1);
    // Nor is one whose engine cannot be seen from here.
    let hidden = env.path("work/hidden");
    std::fs::rename(&engine.root, &hidden).unwrap();
    assert_eq!(doctor(), Vec::<serde_json::Value>::new());
    env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
    assert!(members.iter().all(|member| !member.has_ended()) && engine.notes() == 1);
    std::fs::rename(&hidden, &engine.root).unwrap();
    // The engine's state is lost.
    std::fs::remove_file(engine.root.join(&id).join("state.json")).unwrap();
    std::fs::remove_dir(engine.root.join(&id)).unwrap();
    assert_eq!(listed()["status"], "lost");
    let leaks = doctor();
    assert_eq!((&leaks[0]["kind"], &leaks[0]["id"]), (&"container".into(), &id.clone().into()), "{leaks:?}");
    let pids: Vec<_> =
        leaks[0]["processes"].as_array().unwrap().iter().map(|one| one["pid"].clone()).collect();
    assert!(members.iter().all(|member| pids.contains(&member.pid().into())), "{leaks:?}");
    env.call(["gc", "-f"]).with_code(0);
    assert!(members.iter().all(|member| !member.has_ended()), "it is young");
    env.call(["gc", "-f", "--older-than", "0", &id]).with_code(0);
    assert!(members.iter().all(crate::support::Process::has_ended));
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
    assert_eq!(engine.notes(), 0);
    env.assert_nothing_left();
}

#[test]
fn test_that_fails_leaves_no_container() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let members = [engine.run(&id, &engine.bundle(TREE, false, |_| ())), engine.stray()];
    let all = cgroups(&id);
    assert!(!all.is_empty() && members.iter().all(|member| !member.has_ended()));
    for state in all.iter().map(|dir| dir.join("freezer.state")).filter(|file| file.is_file()) {
        std::fs::write(state, "FROZEN").unwrap();
    }
    drop(env);
    assert!(members.iter().all(crate::support::Process::has_ended));
    assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
}

/// spec: 30.2, 30.10
#[test]
fn stale_note_of_another_engine_costs_a_container_with_the_same_id_nothing() {
    let env = TestEnv::new();
    let (Some(one), Some(two)) = (Engine::new(&env, "one"), Engine::new(&env, "two")) else { return };
    let id = id(&env);
    std::fs::create_dir(&one.root).unwrap();
    let bundle = one.bundle(TREE, false, |config| config["process"]["cwd"] = "no directory".into());
    let mut create = one.command(&["create", "--bundle"]);
    assert_ne!(Running::start(create.arg(bundle).arg(&id)).finish().code(), Some(0));
    assert_eq!(one.notes(), 1, "it stays after a failed create");
    let init = two.run(&id, &two.bundle(TREE, false, |_| ()));
    env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
    assert!(!init.has_ended() && two.notes() == 2);
    two.call(&["delete", "--force", &id]).with_code(0);
    env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
    assert!(init.has_ended() && one.notes() == 0);
    env.assert_nothing_left();
}

/// spec: 30.3
#[test]
fn cgroup_of_the_host_with_the_name_of_the_container_is_left_alone() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let host = PathBuf::from("/sys/fs/cgroup/pids").join(&id);
    if !host.parent().unwrap().join("cgroup.procs").is_file() {
        return skip("there is no v1 hierarchy of pids");
    }
    std::fs::create_dir(&host).unwrap();
    let stranger = Running::spawn(env.command("sleep").arg("1005"));
    enter(&host, stranger.pid());
    let path = format!("/{id}-engine/{id}");
    let init =
        engine.run(&id, &engine.bundle(TREE, false, |config| config["linux"]["cgroupsPath"] = path.into()));
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended() && stranger.is_alive());
    drop(stranger);
    std::fs::remove_dir(host).unwrap();
    for parent in cgroups(&format!("{id}-engine")) {
        std::fs::remove_dir(parent).unwrap();
    }
}

/// spec: 30.1
#[test]
fn help_of_a_command_inside_is_for_the_command() {
    let env = TestEnv::new();
    let delegate = fake(&env, "printf '<%s>' \"$@\"; echo");
    let mut command = env.command(penfold());
    command.args(["oci", "exec", "c1", "df", "-h"]).env("PENFOLD_OCI_DELEGATE", &delegate);
    command.env("PENFOLD_ROOT", env.root());
    assert_eq!(Running::start(&mut command).finish().with_code(0).out(), "<exec><c1><df><-h>\n");
}

/// The crash points of an OCI runtime.
pub const POINTS: [&str; 8] = [
    "oci-create",
    "oci-noted",
    "oci-kill",
    "oci-killed",
    "oci-delete",
    "oci-looked",
    "oci-delegated",
    "oci-verified",
];

/// spec: 30.8
#[test]
fn penfold_that_is_killed_leaves_a_container_that_the_next_delete_ends() {
    if !has_debug_assertions() {
        return skip("the binary has no crash points");
    }
    for point in POINTS {
        let words: &[&str] = match point {
            "oci-create" | "oci-noted" => &["create"],
            "oci-kill" | "oci-killed" => &["kill"],
            _ => &["delete", "--force"],
        };
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "runc") else { return };
        let id = id(&env);
        let bundle = engine.bundle(TREE, false, |_| ());
        let mut command = engine.command(words);
        if words[0] == "create" {
            command.arg("--bundle").arg(&bundle).arg(&id);
        } else {
            let init = engine.run(&id, &bundle);
            assert!(!init.has_ended() && !engine.stray().has_ended(), "alive");
            command.arg(&id);
            if words[0] == "kill" {
                command.arg("KILL");
            }
        }
        command.env("PENFOLD_CRASH_AT", point);
        assert_eq!(Running::start(&mut command).finish().signal(), Some(9), "{point}");
        engine.call(&["delete", "--force", &id]).with_code(0);
        assert!(!env.is_running("sleep 1001") && !env.is_running("sleep 1002"), "{point}");
        assert_eq!(cgroups(&id), Vec::<PathBuf>::new(), "{point}");
        assert_eq!(engine.notes(), 0, "{point}");
    }
}
