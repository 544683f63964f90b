//! What a restart starts from: the launch file in the record.

use std::fs;

use serde_json::json;

use super::restart::inspect;
use super::sandboxes::{await_running, remove};
use crate::support::{Running, Sandbox, TestEnv, wait_until};

/// spec: 8.9.1, 27.1
#[test]
fn the_next_life_is_asked_for_what_the_first_was_and_reads_files_of_variables_again() {
    let env = TestEnv::new();
    let (variables, spec, log) =
        (env.path("work/vars"), env.path("work/spec.json"), env.path("work/log.jsonl"));
    fs::write(&variables, "A=of a file\n").unwrap();
    fs::write(&spec, r#"{"labels":{"of":"the file"},"own":["path=/nonexistent/penfold"]}"#).unwrap();
    fs::write(env.path("config.toml"), format!("log = '{}'\n", log.display())).unwrap();
    let flags = ["-d", "--name", "web", "--env-file", "vars", "-e", "B=of a flag", "--spec", "spec.json"];
    let script = "echo \"$A $B\"; exec sleep 1161";
    let mut command = env.run_command([&flags[..], &["--", "sh", "-c", script]].concat());
    command.env("PENFOLD_CONFIG", env.path("config.toml"));
    let printed = Running::start(&mut command).finish().with_code(0).out();
    let sandbox = Sandbox::printed(&env, &printed);
    await_running(&env, &["sleep 1161"]);
    for path in [&spec, &env.path("config.toml")] {
        fs::remove_file(path).unwrap();
    }
    fs::write(&variables, "A=of another\nB=of another\n").unwrap();
    env.call(["restart", "web"]).with_code(0);
    await_running(&env, &["sleep 1161"]);
    let said = "of a file of a flag\nof another of a flag\n";
    wait_until("the second life has spoken", || env.call(["logs", "web"]).out() == said);
    let seen = inspect(&env, "web");
    assert_eq!((&seen["labels"], &seen["restarts"]), (&json!({"of": "the file"}), &json!(1)));
    let starts = fs::read_to_string(&log).unwrap().lines().filter(|line| line.contains("\"start\"")).count();
    assert_eq!(starts, 2);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 27.9
#[test]
fn a_launch_file_of_an_earlier_version_is_read() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sh", "-c", "exec sleep 1162"]);
    await_running(&env, &["sleep 1162"]);
    let launch = sandbox.record.join("launch");
    let content = fs::read(&launch).unwrap();
    let parts: Vec<&[u8]> = content.split(|&byte| byte == 0).collect();
    let [format, umask, directory, _request, environment @ ..] = parts.as_slice() else { panic!() };
    assert_eq!(format, b"penfold launch 2");
    let words = [
        "run",
        "-d",
        "--without-config",
        "--name=web",
        "--label=of=the words",
        r#"--resources={"own":["path=/nonexistent/penfold"]}"#,
        "--inherit-env=true",
        "--env=A=1",
        "--",
        "sh",
        "-c",
        "echo \"$A ${HOST_ONLY-none}\"; exec sleep 1163",
    ];
    let count = words.len().to_string();
    let mut earlier: Vec<&[u8]> = vec![b"penfold launch 1", umask, directory, count.as_bytes()];
    earlier.extend(words.iter().map(|word| word.as_bytes()));
    earlier.push(b"HOST_ONLY=1");
    earlier.extend(environment);
    fs::write(&launch, earlier.join(&0)).unwrap();
    env.call(["restart", "web"]).with_code(0);
    await_running(&env, &["sleep 1163"]);
    wait_until("the next life has spoken", || env.call(["logs", "web"]).out().ends_with("1 1\n"));
    let seen = inspect(&env, "web");
    assert_eq!((&seen["labels"], &seen["restarts"]), (&json!({"of": "the words"}), &json!(1)));
    assert_eq!(seen["files"]["intent"]["resources"][0]["kind"], "own", "{seen}");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}
