//! `penfold-sh`: for programs that can be given a single program as their shell.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Finished, Process, Running, TestEnv, fresh_id, has_program, penfold, wait_until};

/// A link to penfold with the name `penfold-sh`, with the state root of this test.
fn shell(env: &TestEnv) -> Command {
    let link = env.path("penfold-sh");
    if !link.try_exists().unwrap() {
        symlink(penfold(), &link).unwrap();
    }
    let mut command = env.command(link);
    // The name takes no flags: the state root comes from the surroundings.
    command.env("XDG_RUNTIME_DIR", env.root()).env_remove("SHELL");
    command
}

fn sh(env: &TestEnv, words: &[&str]) -> Finished {
    Running::start(shell(env).args(words)).finish()
}

/// spec: 8.13
#[test]
fn text_runs_with_the_code_and_the_streams_of_the_shell() {
    let env = TestEnv::new();
    let cases: [(&[&str], &str, i32); 8] = [
        (&["echo a; echo 'b  c'; exit 3"], "a\nb  c\n", 3),
        (&["echo", "a", "&&", "exit", "4"], "a\n", 4),
        (&[""], "", 0),
        (&["-c", "echo $0-$1", "x", "y"], "x-y\n", 0),
        (&["-ec", "false; echo no"], "", 1),
        (&["kill -9 $$"], "", 137),
        (&["echo -- --help"], "-- --help\n", 0),
        (&["no-such-program-here 2>/dev/null"], "", 127),
    ];
    for (words, out, code) in cases {
        let finished = sh(&env, words).with_code(code);
        assert_eq!(finished.out(), out, "{words:?}");
    }
    let mut echo = shell(&env);
    let mut echo = Running::start(echo.arg("read -r line; echo got $line >&2").stdin(Stdio::piped()));
    echo.say("one\n");
    assert_eq!(echo.finish().with_code(0).err(), "got one\n");
    env.assert_nothing_left();
}

/// spec: 8.13
#[test]
fn all_that_a_text_starts_ends_with_the_shell() {
    let env = TestEnv::new();
    let text = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); echo up; read -r _; exit 5";
    let mut running = Running::start(shell(&env).arg(text).stdin(Stdio::piped()));
    running.hear("up", 1);
    wait_until("three sleeps", || env.running("sleep 1000").len() == 3);
    let sleeps = env.running("sleep 1000");
    running.say("\n");
    let finished = running.finish().with_code(5);
    assert!(finished.err().contains("ended 3 processes"), "{}", finished.err());
    assert!(sleeps.iter().all(Process::has_ended));
    env.assert_nothing_left();
}

/// spec: 8.13
#[test]
fn signals_and_the_death_of_the_caller_end_the_sandbox() {
    let env = TestEnv::new();
    for signal in [Signal::TERM, Signal::KILL] {
        let running = Running::start(shell(&env).arg("setsid sleep 1000 & echo up; sleep 1000"));
        running.hear("up", 1);
        wait_until("two sleeps", || env.running("sleep 1000").len() == 2);
        let sleeps = env.running("sleep 1000");
        running.signal(signal);
        let code = running.finish().code();
        assert_eq!(code, Some(128 + signal.as_raw()));
        wait_until("the sleeps are gone", || sleeps.iter().all(Process::has_ended));
    }
}

/// spec: 8.13
#[test]
fn shell_is_the_caller_s_if_it_understands_the_text() {
    if !has_program(&["bash", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let text = "echo ${BASH_VERSION:+bash}";
    let with = |variables: &[(&str, &str)]| {
        let finished = Running::start(shell(&env).arg(text).envs(variables.iter().copied())).finish();
        finished.with_code(0).out()
    };
    assert_eq!(with(&[("SHELL", "/bin/bash")]), "bash\n");
    assert_eq!(with(&[("SHELL", "/usr/bin/fish"), ("PENFOLD_SHELL", "bash")]), "bash\n");
    let sh = with(&[("PENFOLD_SHELL", "sh")]);
    for other in ["/usr/bin/fish", "/usr/bin/python3", ""] {
        assert_eq!(with(&[("SHELL", other)]), sh, "{other}");
    }
    let mut missing = shell(&env);
    let missing = Running::start(missing.arg(text).env("PENFOLD_SHELL", "/no/such/shell")).finish();
    missing.refused(127, "/no/such/shell");
}

/// spec: 8.13
#[test]
fn verb_takes_the_flags_of_penfold_before_the_text() {
    let env = TestEnv::new();
    let left = env.call(["sh", "-q", "sleep 1000 & exit 3"]).with_code(3);
    assert_eq!(left.err(), "");
    assert_eq!(env.call(["sh", "--", "-c", "echo $0", "x"]).with_code(0).out(), "x\n");
    env.call(["sh"]).refused(125, "TEXT");
    for word in ["--help", "-h"] {
        assert!(sh(&env, &[word]).with_code(0).out().contains("Usage: penfold sh"), "{word}");
    }
    env.assert_nothing_left();
}

/// spec: 8.13
#[test]
fn penfold_is_not_its_own_shell() {
    let env = TestEnv::new();
    shell(&env);
    let link = env.path("penfold-sh");
    for own in [link.as_path(), penfold()] {
        // If it were, the outer sandbox would end them all.
        let mut command = env.run_command(["--timeout", "3s", link.to_str().unwrap(), "echo hi"]);
        command.env("PENFOLD_SHELL", own).env("XDG_RUNTIME_DIR", env.root()).env_remove("SHELL");
        assert_eq!(Running::start(&mut command).finish().with_code(0).out(), "hi\n");
    }
    env.assert_nothing_left();
}

/// spec: 8.13
#[test]
fn jobs_of_a_session_live_until_the_sandbox_around_the_caller_ends() {
    let env = TestEnv::new();
    shell(&env);
    let agent =
        format!("{} 'sleep 1000 & exit 3'; echo called $?; read -r _", env.path("penfold-sh").display());
    for scope in ["session", "call"] {
        let mut command = env.run_command(["--", "sh", "-c", &agent]);
        command.env("PENFOLD_SH_SCOPE", scope).env("XDG_RUNTIME_DIR", env.root()).env_remove("SHELL");
        let mut session = Running::start(command.stdin(Stdio::piped()));
        session.hear("called 3", 1);
        if scope == "session" {
            wait_until("the job lives on", || env.is_running("sleep 1000"));
        }
        let jobs = env.running("sleep 1000");
        assert_eq!(jobs.len(), usize::from(scope == "session"), "{scope}");
        session.say("\n");
        let told = session.finish().with_code(0).err();
        assert!(told.contains("ended 1 process"), "{told}");
        assert!(jobs.iter().all(Process::has_ended));
    }
    env.assert_nothing_left();
}

/// spec: 8.13
#[test]
fn a_marker_without_its_sandbox_is_no_session() {
    let env = TestEnv::new();
    let mut command = shell(&env);
    command.env("PENFOLD_SH_SCOPE", "session").env("PENFOLD_SANDBOX", fresh_id());
    let finished = Running::start(command.arg("sleep 1000 & exit 3")).finish().with_code(3);
    assert!(finished.err().contains("no session") && finished.err().contains("ended 1 process"));
    assert!(!env.is_running("sleep 1000"));
    let words = ["sh", "-q", "--scope", "session", "sleep 1000 & exit 3"];
    assert_eq!(env.call(words).with_code(3).err(), "");
    let mut odd = shell(&env);
    Running::start(odd.arg("true").env("PENFOLD_SH_SCOPE", "agent"))
        .finish()
        .refused(125, "PENFOLD_SH_SCOPE");
    env.assert_nothing_left();
}
