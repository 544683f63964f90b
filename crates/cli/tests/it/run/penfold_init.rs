//! penfold-init, the small build for images: what it lacks it says, and all else is as in the whole penfold.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Finished, Running, Sandbox, TestEnv, penfold, skip, wait_until};

/// The most bytes of the program.
const LARGEST: usize = 6_000_000;

/// The program, if there is one.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("PENFOLD_INIT_BIN").map(PathBuf::from);
    if named.is_none() {
        skip("penfold-init is not built: `just penfold-init` builds it, PENFOLD_INIT_BIN names it");
    }
    named
}

/// Runs a program of penfold with these words to its end.
#[track_caller]
fn call(env: &TestEnv, program: &std::path::Path, words: &[&str]) -> Finished {
    Running::start(&mut command(env, program, words)).finish()
}

fn command(env: &TestEnv, program: &std::path::Path, words: &[&str]) -> Command {
    let mut command = env.command(program);
    command.arg("--root").arg(env.root()).args(words);
    command
}

/// The verbs that the help of a program lists.
fn listed(env: &TestEnv, program: &std::path::Path) -> Vec<String> {
    let help = call(env, program, &["help", "all"]).with_code(0).out();
    let commands = help.split("\nCommands:\n").nth(1).and_then(|text| text.split("\n\n").next()).unwrap();
    // A description that is wrapped goes on further to the right.
    let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    assert!(verbs.contains(&"run".to_owned()), "{help}");
    verbs
}

/// spec: 35.1, 35.2
#[test]
fn a_verb_of_the_whole_is_there_or_its_absence_is_said() {
    let Some(program) = program() else { return };
    let env = TestEnv::new();
    let (whole, small) = (listed(&env, penfold()), listed(&env, &program));
    assert!(small.iter().all(|verb| whole.contains(verb)), "{small:?}");
    let lacking: Vec<&String> = whole.iter().filter(|verb| !small.contains(verb)).collect();
    assert_eq!(lacking, ["top", "serve", "agent", "mcp", "completions", "man"]);
    for verb in lacking {
        let sentence = format!("`{verb}` is not in penfold-init; the whole penfold has it: ");
        for words in [&[verb.as_str()][..], &[verb, "--help"], &["-q", verb, "x"], &["help", verb]] {
            call(&env, &program, words).refused(2, &sentence);
        }
    }
    call(&env, &program, &["serv"]).refused(2, "unknown command `serv`");
    for verb in &small {
        call(&env, &program, &[verb.as_str(), "--help"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 35.1
#[test]
fn each_of_both_ends_the_sandboxes_of_the_other_whatever_its_name() {
    let Some(program) = program() else { return };
    let env = TestEnv::new();
    let renamed = env.path("work/penfold");
    std::fs::copy(&program, &renamed).unwrap();
    for (starts, ends) in [(program.as_path(), penfold()), (penfold(), &renamed), (&renamed, &program)] {
        let script = "setsid sleep 1081 & (setsid sleep 1082 &) ; exec sleep 1083";
        let words = ["run", "-d", "--name", "web", "--", "sh", "-c", script];
        let started = call(&env, starts, &words).with_code(0);
        assert_eq!(started.err(), "");
        let sandbox = Sandbox::printed(&env, &started.out());
        wait_until("all members run", || {
            ["sleep 1081", "sleep 1082", "sleep 1083"].iter().all(|command| env.is_running(command))
        });
        for verb in ["pause", "unpause", "status", "tree", "inspect"] {
            call(&env, ends, &[verb, "web"]).with_code(0);
        }
        call(&env, ends, &["exec", "web", "sh", "-c", "exit 3"]).with_code(3);
        call(&env, ends, &["stop", "web"]).with_code(0);
        assert!(sandbox.has_ended() && env.find("sleep 108").is_empty());
        call(&env, starts, &["wait", &sandbox.id]).with_code(143);
        let report = call(&env, starts, &["report", "--json", &sandbox.id]).with_code(0).json();
        assert_eq!(report[0]["verified"], true, "{report}");
        call(&env, starts, &["rm", &sandbox.id]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 35.1
#[test]
fn what_a_command_leaves_is_ended_and_verified() {
    let Some(program) = program() else { return };
    let env = TestEnv::new();
    for level in env.levels() {
        let script = format!(
            "mkfifo {0}; exec 9<>{0};
            setsid sh -c 'echo up > {0}; exec sleep 1084' & (setsid sh -c 'echo up > {0}; exec sleep 1085' &)
            read _ <&9; read _ <&9; exit 3",
            level.word()
        );
        let words = ["run", "--contain", level.word(), "--report", "-", "--", "sh", "-c", &script];
        let report = call(&env, &program, &words).with_code(3).json();
        let ended = report["ended"].as_array().unwrap();
        assert!(report["verified"] == true && ended.len() == 2, "{report}");
        assert!(env.find("sleep 108").is_empty(), "{report}");
    }
    // Under another name in the process table, as an init has it.
    let mut first = command(&env, &program, &["run", "--", "sh", "-c", "exit 7"]);
    Running::start(first.arg0("init")).finish().with_code(7);
    env.assert_nothing_left();
}

/// spec: 35.3
#[test]
fn what_speaks_dbus_or_http_is_refused_before_anything_starts() {
    let Some(program) = program() else { return };
    let env = TestEnv::new();
    let words = ["run", "--contain", "cgroup", "--unit", "user", "--", "sh", "-c", "echo started >> $UP"];
    let sentence = "no scope from the user's manager: penfold-init speaks no D-Bus; the whole penfold does";
    call(&env, &program, &words).refused(125, sentence);
    let server = format!("unix:{}", env.path("work/socket").display());
    let words = ["--host", &server, "run", "--", "sh", "-c", "echo started >> $UP"];
    call(&env, &program, &words).refused(125, "penfold-init speaks no HTTP; the whole penfold does");
    assert!(!env.path("work/up").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 35.4
#[test]
fn the_program_is_small_and_static() {
    let Some(program) = program() else { return };
    let bytes = std::fs::read(&program).unwrap();
    assert!(bytes.len() <= LARGEST, "{} bytes", bytes.len());
    // The path of a loader is the contents of the segment PT_INTERP, elf(5).
    assert!(!bytes.windows(6).any(|part| part == b"/ld-li"), "it names a loader");
}
