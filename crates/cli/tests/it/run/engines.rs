//! Clients of container engines: what they start is no member, and penfold says so. A stand-in takes the place of an engine.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Finished, Running, TestEnv, json};

/// What is said.
const LINE: &str = "`docker` ran: containers of an engine are not followed, and may still run";

/// Makes a client in a directory of its own, and returns the PATH that leads to it.
fn client(env: &TestEnv, script: &str) -> String {
    let directory = env.path("work/bin");
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("docker");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", directory.display(), "/usr/local/bin:/usr/bin:/bin")
}

fn call(env: &TestEnv, path: &str, words: &[&str]) -> Finished {
    Running::start(env.penfold(words).env("PATH", path)).finish()
}

/// spec: 21.9
#[test]
fn a_client_of_an_engine_among_the_members_is_named() {
    let env = TestEnv::new();
    // `guard` only looks now and then.
    let path = client(&env, "sleep 0.$1; exit 0");
    for level in ["auto", "subreaper"] {
        let contain = ["--contain", level];
        for (command, quick) in [
            (&["docker", "04"][..], &["docker", "04"][..]),
            (&["sh", "-c", "docker 3; exit 0"], &["sh", "-c", "docker 04; exit 0"]),
        ] {
            let words = [&["guard", "--report", "r.json"], &contain[..], &["--"], command].concat();
            let done = call(&env, &path, &words).with_code(0);
            assert!(done.err().contains("no process is left") && done.err().contains(LINE), "{}", done.err());
            assert_eq!(
                json(&env.path("work/r.json")).unwrap()["engine_clients"],
                serde_json::json!(["docker"])
            );
            let words = [&["run", "--fail-on-leak"], &contain[..], &["--"], quick].concat();
            let done = call(&env, &path, &words).with_code(0);
            assert!(done.err().ends_with(&format!("{LINE}\n")), "{level} {quick:?}: {}", done.err());
            // Nobody asks.
            let done = call(&env, &path, &[&["run"], &contain[..], &["--"], quick].concat()).with_code(0);
            assert_eq!(done.err(), "");
        }
    }
    env.assert_nothing_left();
}

/// spec: 21.9
#[test]
fn a_client_of_an_engine_that_a_time_limit_ends_is_named() {
    let env = TestEnv::new();
    let path = client(&env, "sleep 1000");
    for command in [&["docker", "run", "x"][..], &["sh", "-c", "docker run x; exit 0"]] {
        let words = [&["run", "--timeout", "200ms", "--"], command].concat();
        let done = call(&env, &path, &words).with_code(124);
        assert!(done.err().contains(LINE), "{command:?}: {}", done.err());
    }
    env.assert_nothing_left();
}

/// spec: 21.9
#[test]
fn a_client_of_others_is_not_named() {
    let env = TestEnv::new();
    let path = client(&env, "exit 0");
    let script = "until [ -e go ]; do sleep 0.05; done; echo docker; exit 0";
    let running =
        Running::start(env.penfold(["run", "--fail-on-leak", "--", "sh", "-c", script]).env("PATH", &path));
    let file = env.path("work/bin/docker");
    for _ in 0..20 {
        assert!(std::process::Command::new(&file).status().unwrap().success());
    }
    std::fs::write(env.path("work/go"), "").unwrap();
    let done = running.finish().with_code(0);
    assert!(!done.err().contains("containers of an engine"), "{}", done.err());
    env.assert_nothing_left();
}
