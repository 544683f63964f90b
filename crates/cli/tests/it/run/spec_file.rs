//! `run --spec FILE`: flags from a file.

use std::fs;

use crate::support::{Running, TestEnv};

/// spec: 8.9
#[test]
fn a_file_gives_the_flags_and_the_command_line_takes_precedence() {
    let env = TestEnv::new();
    let file = env.path("work/box.toml");
    fs::write(
        &file,
        "command = ['sh', '-c', 'echo \"$A\" \"${SECRET-none}\"; exit 7']\ngrace_ms = 20\nlabels = { a = 'b' }\n[env]\nA = '1 2'\n",
    )
    .unwrap();
    let run = |words: &[&str]| {
        let mut command = env.run_command(["--spec", file.to_str().unwrap()].iter().chain(words));
        Running::start(command.env("SECRET", "s")).finish()
    };
    let done = run(&[]);
    assert_eq!((done.code(), done.out().as_str()), (Some(7), "1 2 s\n"), "{}", done.err());
    assert_eq!(run(&["-e", "A=3"]).out(), "3 s\n");
    assert_eq!(run(&["--", "echo", "--spec"]).out(), "--spec\n");
    let report = env.path("work/report.json");
    run(&["-l", "c=d", "--report", report.to_str().unwrap(), "true"]).with_code(0);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["labels"], serde_json::json!({ "a": "b", "c": "d" }));
    // An option with a value that may be left out.
    let sockets = run(&["--sockets", "--", "sh", "-c", "[ -d \"$PENFOLD_SOCKETS\" ] && echo there"]);
    assert_eq!(sockets.out(), "there\n", "{}", sockets.err());
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("inherit_env = false\n{text}")).unwrap();
    assert_eq!(run(&[]).out(), "1 2 none\n");
    fs::write(&file, r#"{ "command": ["echo", "json"] }"#).unwrap();
    assert_eq!(run(&[]).out(), "json\n");
    env.assert_nothing_left();
}

/// spec: 8.9.1
#[test]
fn a_file_asks_for_all_that_flags_ask_for() {
    let env = TestEnv::new();
    let file = env.path("work/box.toml");
    let run = |text: &str, words: &[&str]| {
        fs::write(&file, text).unwrap();
        let mut command = env.run_command(["--spec", file.to_str().unwrap()].iter().chain(words));
        Running::start(command.env("KEY", "of the caller")).finish()
    };
    // A variable that a flag copies from the caller is one that was given.
    let bare = "inherit_env = false\ncommand = ['sh', '-c', 'echo \"$KEY\"']\n";
    assert_eq!(
        (run(bare, &[]).out(), run(bare, &["-e", "KEY"]).out()),
        ("\n".into(), "of the caller\n".into())
    );
    run("unit = 'user'\ncontain = 'subreaper'\ncommand = ['true']\n", &[])
        .refused(125, "cannot give the sandbox a scope");
    run("user = 'no-such-user'\ncommand = ['true']\n", &[]).refused(125, "there is no user `no-such-user`");
    let own = fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string();
    let private =
        run("ipc = 'private'\ncommand = ['readlink', '/proc/self/ns/ipc']\n", &[]).with_code(0).out();
    assert!(private.starts_with("ipc:") && private.trim() != own, "{private}");
    let log = env.path("work/events.jsonl");
    let text = format!(
        "event_log = '{}'\ncommand = ['sh', '-c', 'setsid sleep 1000 & until grep -qs sleep /proc/$!/comm; do sleep 0.01; done']\n",
        log.display()
    );
    run(&text, &[]).with_code(0);
    let events = fs::read_to_string(&log).unwrap();
    assert!(events.contains("sleep 1000"), "{events}");
    // What a flag says counts, and what only one of the two says stays.
    let done = run(
        "grace_ms = 1\ncontain = 'cgroup'\ncommand = ['sleep', '1000']\n",
        &["--contain", "subreaper", "--pids", "9"],
    );
    done.refused(125, "`--pids` cannot be used together with `--contain subreaper`");
    env.assert_nothing_left();
}

/// spec: 8.9
#[test]
fn an_unknown_key_and_a_wrong_value_start_nothing() {
    let env = TestEnv::new();
    let file = env.path("work/box.toml");
    let name = file.to_str().unwrap();
    for (text, why) in [
        ("command = ['touch', 'ran']\ntimout_ms = 1\n", "line 2: unknown field `timout_ms`"),
        ("command = ['touch', 'ran']\n\ngrace_ms = 'x'\n", "line 3: invalid type"),
        ("command = ['touch', 'ran']\nname = '../x'\n", "invalid value for `--name`"),
        ("grace_ms = 1\n", "has no `command`"),
        ("command = [", "line 1"),
        ("{ \"command\": [\"touch\", \"ran\"], \"x\": 1 }", "unknown field `x`"),
    ] {
        fs::write(&file, text).unwrap();
        let done = env.run(["--spec", name]);
        assert!(done.err().contains(why), "{text}: {}", done.err());
        let named = done.err().contains("box.toml`");
        assert!(named, "{text}: {}", done.err());
        done.refused(125, why);
    }
    env.run(["--spec", "no-such-file", "touch", "ran"])
        .refused(125, "cannot read the description `no-such-file`");
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}
