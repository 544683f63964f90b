//! `penfold run` with a command that cannot start: one sentence, the documented exit code, no remains.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::support::{Running, Sandbox, TestEnv, descendants, has_program, is_root, penfold, wait_until};

/// How often each is tried: the answer once depended on which of two descriptors was read first.
const TIMES: usize = 10;

fn executable(path: &Path, text: &[u8]) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[track_caller]
fn refused(words: &[&str], code: i32, sentence: &str) {
    let env = TestEnv::new();
    for level in env.levels() {
        for _ in 0..TIMES {
            let contain = ["--contain", level.word()];
            env.run(contain.iter().chain(words)).refused(code, sentence);
        }
    }
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn missing_command_is_127() {
    refused(&["no-such-command"], 127, "cannot run `no-such-command`: not found in PATH");
    refused(&["/no/such/command"], 127, "cannot run `/no/such/command`");
    refused(&["--", "--help"], 127, "cannot run `--help`");
}

#[test]
fn empty_command_is_127() {
    refused(&[""], 127, "cannot run ``");
}

#[test]
fn file_without_permission_is_126() {
    refused(&["/etc/passwd"], 126, "cannot run `/etc/passwd`: Permission denied");
}

/// spec: 8.2
#[test]
fn directory_as_command_is_126() {
    refused(&["/etc"], 126, "cannot run `/etc`");
}

#[test]
fn working_directory_that_cannot_be_entered_is_125() {
    refused(&["-w", "/no/such/dir", "true"], 125, "cannot enter the working directory `/no/such/dir`");
    refused(&["-w", "/etc/passwd", "true"], 125, "cannot enter the working directory `/etc/passwd`");
}

#[test]
fn script_whose_interpreter_is_missing_is_127() {
    let env = TestEnv::new();
    executable(&env.path("work/script"), b"#!/no/such/interpreter\n");
    env.run(["./script"])
        .refused(127, "cannot run `./script`: the file exists, but its interpreter does not");
    env.assert_nothing_left();
}

#[test]
fn script_without_interpreter_is_run_by_the_shell() {
    let env = TestEnv::new();
    executable(&env.path("work/script"), b"echo \"$0 $*\"; exit 4\n");
    let finished = env.run(["./script", "a b", "c"]).with_code(4);
    assert_eq!(finished.out(), "./script a b c\n");
    env.assert_nothing_left();
}

#[test]
fn command_is_looked_up_in_the_path_that_it_is_given() {
    let env = TestEnv::new();
    executable(&env.path("work/own-command"), b"#!/bin/sh\nexit 6\n");
    let path = format!("PATH={}", env.path("work").display());
    env.run(["-e", &path, "own-command"]).with_code(6);
    env.run(["-e", "PATH=/nowhere", "true"]).refused(127, "not found in PATH");
}

#[test]
fn relative_command_is_looked_up_in_the_working_directory() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("work/sub")).unwrap();
    executable(&env.path("work/sub/here"), b"#!/bin/sh\npwd\n");
    let finished = env.run(["-w", "sub", "./here"]).with_code(0);
    assert_eq!(Path::new(finished.out().trim_end()), env.path("work/sub").as_path());
    env.run(["-w", "sub", "sub/here"]).refused(127, "cannot run `sub/here`");
}

#[test]
fn environment_too_large_for_the_command_is_126() {
    let env = TestEnv::new();
    // The stack limit bounds arguments and environment together. A script's line of interpreter makes them larger, so
    // just below our own limit there is a size that only penfold itself can be started with.
    let line = format!("#!/bin/sh -{}\n", "e".repeat(200));
    executable(&env.path("work/script"), line.as_bytes());
    let fits = |size: usize| {
        let mut command = env.run_command(["./script"]);
        command.env_clear();
        for part in 0..size / 100_000 {
            command.env(format!("V{part}"), "y".repeat(99_990));
        }
        command.env("W", "y".repeat(size % 100_000));
        command.output().ok()
    };
    let (mut low, mut high) = (0, 8_000_000);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if fits(middle).is_some() { low = middle } else { high = middle }
    }
    let output = fits(low).unwrap();
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot run `./script`: Argument list too long")
    );
}

#[test]
fn report_that_cannot_be_written_is_125_before_the_start() {
    let env = TestEnv::new();
    let touch = ["sh", "-c", "echo ran"];
    for file in ["/no/such/dir/report", "/etc"] {
        env.run(["--report", file].iter().chain(&touch)).refused(125, &format!("the report to `{file}`"));
    }
    env.assert_nothing_left();
}

#[test]
fn scratch_that_cannot_be_made_is_125() {
    let env = TestEnv::new();
    let command = &mut env.run_command(["--scratch", "sh", "-c", "echo ran"]);
    let finished = Running::start(command.env("TMPDIR", "/no/such/dir")).finish();
    finished.refused(125, "scratch directory `/no/such/dir/");
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn flags_about_the_exit_code_are_refused_with_detach() {
    let env = TestEnv::new();
    for flag in ["--preserve-status", "--fail-on-leak"] {
        let finished = env.run(["-d", flag, "touch", "ran"]);
        assert!(finished.err().contains("\nhint: "), "{}", finished.err());
        finished.refused(
            125,
            &format!("`{flag}` cannot be used together with `--detach`, which does not wait for the end"),
        );
    }
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn usage_errors_are_125() {
    let env = TestEnv::new();
    env.run(["--bogus", "true"]).refused(125, "unknown option or argument `--bogus`");
    env.run(["--timeout", "soon", "true"]).refused(125, "`soon` is not a duration");
    env.run(["--signal", "NOPE", "true"]).refused(125, "`NOPE`");
    env.assert_nothing_left();
}

/// The scheduling policy of a process as in `/proc/PID/stat`: 0 is the usual one, 5 is `SCHED_IDLE`.
fn policy(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Field 41; the third is the first after the name.
    stat.rsplit(") ").next().unwrap().split(' ').nth(41 - 3).unwrap().to_owned()
}

/// spec: limits 19
#[test]
fn our_processes_leave_the_idle_policy_and_commands_keep_it() {
    if !is_root() || !has_program(&["chrt", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let mut command = env.command("chrt");
        command.args(["--idle", "0"]).arg(penfold()).arg("--root").arg(env.root());
        let launcher = Running::start(command.args(["run", "--contain", level.word(), "sleep", "4411"]));
        wait_until("the command runs", || env.is_running("sleep 4411"));
        let leader = env.running("sleep 4411")[0].pid();
        let ours: Vec<i32> = descendants(launcher.pid()).into_iter().filter(|&pid| pid != leader).collect();
        assert!(!ours.is_empty());
        wait_until("ours have the usual policy", || {
            policy(launcher.pid()) == "0" && ours.iter().all(|&pid| policy(pid) == "0")
        });
        assert_eq!(policy(leader), "5", "{level:?}");
        launcher.signal(Signal::TERM);
        launcher.finish();

        let mut command = env.command("chrt");
        command.args(["--idle", "0"]).arg(penfold()).arg("--root").arg(env.root());
        let detached = command.args(["run", "-d", "--contain", level.word(), "sleep", "4412"]);
        let sandbox = Sandbox::printed(&env, &Running::start(detached).finish().with_code(0).out());
        for supervisor in &sandbox.supervisors {
            wait_until("a supervisor has the usual policy", || policy(supervisor.pid()) == "0");
        }
        let exec = Running::start(&mut env.penfold(["exec", &sandbox.id, "sleep", "4413"]));
        wait_until("both run", || env.is_running("sleep 4412") && env.is_running("sleep 4413"));
        for command in ["sleep 4412", "sleep 4413"] {
            assert_eq!(policy(env.running(command)[0].pid()), "5", "{level:?}: {command}");
        }
        sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
        exec.finish();
    }
    env.assert_nothing_left();
}
