//! Paths that are not UTF-8, of processes that penfold did not start too: no document is lost.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Running, TestEnv, is_root, json, wait_until};

/// Makes a directory whose name is not UTF-8; returns it and its text in documents.
fn odd_directory(env: &TestEnv) -> (PathBuf, String) {
    let directory = env.path("work").join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&directory).unwrap();
    (directory, format!("{}/caf\u{fffd}e9", env.path("work").display()))
}

/// spec: 8.19, 21.2
#[test]
fn a_report_has_leaks_in_directories_and_files_of_any_name() {
    let env = TestEnv::new();
    let (directory, text) = odd_directory(&env);
    let report = env.path("work/r.json");
    // The leak tells that it lives.
    let script = "setsid sh -c 'echo $$ >pid; exec sleep 4771 3>held' >&- 2>&- & until [ -s pid ] && read -r name </proc/$(cat pid)/comm && [ \"$name\" = sleep ]; do :; done; kill -0 $(cat pid) && echo lives";
    for verb in ["guard", "guard-each"] {
        let mut command =
            env.penfold([verb, "-t", "0s", "--report", report.to_str().unwrap(), "sh", "-c", script]);
        let done = Running::start(command.current_dir(&directory)).finish().with_code(123);
        assert_eq!(done.out(), "lives\n");
        assert!(!env.is_running("sleep 4771"), "{verb}");
        let report = json(&report).unwrap();
        let leak = &report["leaks"][0];
        assert_eq!(
            (&leak["command"], &leak["directory"]),
            (&"sleep 4771".into(), &text.as_str().into()),
            "{verb}"
        );
        assert!(leak["files"].as_array().unwrap().contains(&format!("{text}/held").into()), "{leak}");
        std::fs::remove_file(directory.join("pid")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 8.19, 27.1
#[test]
fn a_sandbox_lives_in_a_directory_of_any_name() {
    let env = TestEnv::new();
    let (directory, text) = odd_directory(&env);
    let mut command = env.penfold(["run", "-d", "--name", "odd", "--log", "events", "sleep", "4772"]);
    Running::start(command.current_dir(&directory)).finish().with_code(0);
    wait_until("it runs", || env.is_running("sleep 4772"));
    let inspect = || -> Value { env.call(["inspect", "odd"]).with_code(0).json()[0].clone() };
    assert_eq!(inspect()["files"]["intent"]["workspace"], text, "{}", inspect());
    // Sent to the supervisor, and read there.
    let mut exec = env.penfold([
        OsStr::new("exec"),
        OsStr::new("-w"),
        directory.as_os_str(),
        OsStr::new("odd"),
        OsStr::new("pwd"),
    ]);
    assert_eq!(
        Running::start(&mut exec).finish().with_code(0).out,
        [directory.as_os_str().as_bytes(), b"\n"].concat()
    );
    env.call(["restart", "odd"]).with_code(0);
    assert_eq!((&inspect()["restarts"], &inspect()["status"]), (&1.into(), &"running".into()));
    let own = env.call(["exec", "odd", "pwd"]).with_code(0);
    assert_eq!(own.out, [directory.as_os_str().as_bytes(), b"\n"].concat());
    assert!(directory.join("events").try_exists().unwrap());
    env.call(["rm", "-f", "odd"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 8.19, 18.1
#[test]
fn a_workspace_of_any_name_is_made_and_removed() {
    let env = TestEnv::new();
    let (directory, text) = odd_directory(&env);
    let workspace = directory.join("w");
    let flags = ["run", "-d", "--name", "odd", "--workspace"].map(OsStr::new);
    let command = ["sleep", "4773"].map(OsStr::new);
    let words = [&flags[..], &[workspace.as_os_str()], &command].concat();
    env.call(words).with_code(0);
    assert!(workspace.try_exists().unwrap() && env.is_running("sleep 4773"));
    let shown = env.call(["inspect", "odd"]).with_code(0).json()[0].clone();
    assert!(shown["files"]["intent"]["resources"].to_string().contains(&format!("{text}/w")), "{shown}");
    env.call(["stop", "odd"]).with_code(0);
    assert!(!workspace.try_exists().unwrap() && !env.is_running("sleep 4773"));
    env.call(["rm", "odd"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 8.19
#[test]
fn strays_of_others_in_directories_of_any_name_are_listed() {
    let env = TestEnv::new();
    let (directory, text) = odd_directory(&env);
    let stray = super::doctor_foreign::Stray::leave_in(&env, "4774", &directory, &[]);
    let found = super::doctor_foreign::stray(&env, stray.pid()).expect("it is listed");
    assert_eq!(found["directory"], text, "{found}");
    if is_root() {
        let home = env.call([
            OsStr::new("reap"),
            OsStr::new("-n"),
            OsStr::new("--json"),
            OsStr::new("--home"),
            directory.as_os_str(),
        ]);
        assert!(home.json().is_object() || home.json().is_array(), "{}", home.err());
    }
}
