//! Containers whose `delete` was refused: Docker and Podman forget them, and penfold ends them later.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::bundle::{Engine, TREE, cgroups};
use super::{id, stuck_in};
use crate::end::standing::frozen;
use crate::support::{Running, TestEnv, wait_until};

/// The time that Docker gives its runtime is 2 s.
const SHORT: Duration = Duration::from_millis(1500);

/// spec: 30.7
#[test]
fn docker_and_podman_are_answered_in_their_time() {
    for name in ["moby", "podman"] {
        let Some(blocked) = frozen() else { return };
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, name) else { return };
        let id = id(&env);
        let manager = if name == "podman" { "libpod" } else { "" };
        let bundle = engine.bundle(TREE, false, |config| {
            config["annotations"] = serde_json::json!({ "io.container.manager": manager });
        });
        let init = engine.run(&id, &bundle);
        let stuck = stuck_in(&env, &id, &blocked);
        // A test that fails thaws before it waits for the process.
        let blocked = blocked;
        for words in [&["kill", &id, "KILL"][..], &["delete", &id], &["delete", "--force", &id]] {
            let begun = Instant::now();
            engine.call(words).refused(1, "state D");
            assert!(begun.elapsed() < SHORT, "{name}: {words:?} took {:?}", begun.elapsed());
        }
        assert!(init.has_ended() && stuck.is_alive());
        drop(blocked);
        stuck.process().await_end();
        engine.call(&["delete", &id]).with_code(0);
        assert_eq!((cgroups(&id), engine.notes()), (Vec::<PathBuf>::new(), 0));
    }
}

/// A process that looks like the shim of a container with this id and bundle.
fn shim(env: &TestEnv, id: &str, bundle: &Path) -> Running {
    let program = env.path("work/containerd-shim-runc-v2");
    if !program.is_file() {
        std::fs::copy("/bin/bash", &program).unwrap();
    }
    let mut command = env.command(&program);
    command.args(["-c", "while :; do sleep 0.05; done", "-id", id]).current_dir(bundle).process_group(0);
    let shim = Running::spawn(&mut command);
    wait_until("the shim runs", || shim.process().command_line().contains("-id"));
    shim
}

/// spec: 30.14
#[test]
fn container_whose_delete_was_refused_is_a_leak_until_gc_watch_or_the_next_call_has_ended_it() {
    for by in ["gc", "watch", "call"] {
        let Some(blocked) = frozen() else { return };
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "moby") else { return };
        let id = id(&env);
        let bundle = engine.bundle(TREE, false, |_| ());
        let _init = engine.run(&id, &bundle);
        let stuck = stuck_in(&env, &id, &blocked);
        // A test that fails thaws before it waits for the process.
        let blocked = blocked;
        let shims = [shim(&env, &id, &bundle), shim(&env, "other", &bundle)];
        engine.call(&["delete", "--force", &id]).refused(1, "state D");
        // The engine has forgotten it: it does not call any more.
        let listed = || env.call(["ps", "--containers", "--json"]).with_code(0).json()[0].clone();
        assert_eq!(listed()["status"], "deleting");
        let leaks = env.call(["doctor", "--json"]).json()["leaks"].as_array().cloned().unwrap();
        let leak = leaks.iter().find(|leak| leak["kind"] == "container").expect("doctor names it");
        assert_eq!((&leak["id"], &leak["processes"][0]["pid"]), (&id.clone().into(), &stuck.pid().into()));
        let gc = ["gc", "-f", "--older-than", "0", "--kind", "container"];
        if by == "gc" {
            let done = env.call(gc.into_iter().chain(["--patience", "100ms"])).with_code(5);
            let said = done.out() + &done.err();
            assert!(said.contains(&stuck.pid().to_string()), "{said}");
        }
        let watch = (by == "watch").then(|| Running::spawn(&mut env.penfold(["watch"])));
        assert!(stuck.is_alive() && shims.iter().all(Running::is_alive) && engine.notes() == 2, "{by}");
        drop(blocked);
        stuck.process().await_end();
        match by {
            "gc" => drop(env.call(gc).with_code(0)),
            "call" => drop(engine.call(&["delete", "--force", "another"]).with_code(0)),
            _ => (),
        }
        wait_until("it is gone", || engine.notes() == 0);
        engine.call(&["state", &id]).with_code(1);
        assert_eq!(cgroups(&id), Vec::<PathBuf>::new(), "{by}");
        assert!(!shims[0].is_alive() && shims[1].is_alive(), "{by}");
        if let Some(watch) = watch {
            watch.process().signal(Signal::TERM);
            watch.finish().with_code(0);
        }
        drop(shims);
        env.assert_nothing_left();
    }
}

/// spec: 30.14
#[test]
fn container_that_runs_is_not_ended_since_a_delete_was_refused() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "moby") else { return };
    let id = id(&env);
    let init = engine.run(&id, &engine.bundle(TREE, false, |_| ()));
    engine.call(&["delete", &id]).with_code(1);
    assert_eq!(engine.notes(), 1, "no mark");
    env.call(["gc", "-f", "--older-than", "0", "--kind", "container"]).with_code(0);
    assert!(!init.has_ended());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended());
}
