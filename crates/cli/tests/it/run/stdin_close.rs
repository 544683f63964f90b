//! `--on-stdin-close`: a client that hangs up ends the sandbox, whatever the command does with its input.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

use super::idle::at_rest;
use crate::support::{Process, Running, TestEnv, has_terminals, json, wait_until};

/// A server that never reads, and leaves a daemon. Exits with 7 on SIGTERM.
const DEAF: &str = "trap 'exit 7' TERM; setsid sleep 1000 & echo up; while :; do sleep 1000 & wait $!; done";
/// A server that answers each line, and exits with 3 at the end of its input.
const SERVER: &str = "echo up; while read -r line; do echo got $line; done; exit 3";

/// Starts `penfold run` with a pipe as its standard input.
fn piped(env: &TestEnv, flags: &[&str], script: &str) -> Running {
    let mut command = env.run_command(["--report", "report.json"]);
    command.args(flags).args(["--", "bash", "-c", script]);
    let running = Running::start(command.stdin(Stdio::piped()));
    running.hear("up", 1);
    running
}

fn cause(env: &TestEnv) -> String {
    let report = json(&env.path("work/report.json")).unwrap();
    report["cause"].as_str().unwrap().to_owned()
}

fn sleeps(env: &TestEnv) -> Vec<Process> {
    wait_until("the command and its daemon sleep", || env.running("sleep 1000").len() >= 2);
    env.running("sleep 1000")
}

/// spec: 8.12
#[test]
fn command_that_ignores_its_client_is_stopped_after_half_of_the_grace() {
    let env = TestEnv::new();
    for level in env.levels() {
        let flags = ["--contain", level.word(), "--on-stdin-close", "stop", "--grace", "1s"];
        let mut running = piped(&env, &flags, DEAF);
        let members = sleeps(&env);
        assert!(running.is_alive());
        let begun = Instant::now();
        running.hang_up();
        let finished = running.finish().with_code(7);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(500), "{took:?}");
        assert!(finished.err().contains("ended because its standard input hung up"), "{}", finished.err());
        assert!(members.iter().all(Process::has_ended));
        assert_eq!(cause(&env), "stdin", "{level:?}");
    }
    env.assert_nothing_left();
}

/// spec: 8.12
#[test]
fn command_that_ignores_the_signal_too_is_killed_at_the_end_of_the_grace() {
    let env = TestEnv::new();
    let script = "trap '' TERM; setsid sleep 1000 & echo up; sleep 1000";
    let mut running = piped(&env, &["--on-stdin-close", "stop", "--grace", "1s"], script);
    let members = sleeps(&env);
    let begun = Instant::now();
    running.hang_up();
    running.finish().with_code(137);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(members.iter().all(Process::has_ended));
    assert_eq!(cause(&env), "stdin");
}

/// spec: 8.12
#[test]
fn kill_does_not_wait() {
    let env = TestEnv::new();
    for level in env.levels() {
        let flags = ["--contain", level.word(), "--on-stdin-close", "kill", "--grace", "1h"];
        let mut running = piped(&env, &flags, DEAF);
        let members = sleeps(&env);
        running.hang_up();
        running.finish().with_code(137);
        assert!(members.iter().all(Process::has_ended));
        assert_eq!(cause(&env), "stdin", "{level:?}");
    }
    env.assert_nothing_left();
}

/// The pipe reports the hang-up while it still holds data.
/// spec: 8.12
#[test]
fn command_reads_what_was_left_in_the_pipe_and_ends_by_itself() {
    let env = TestEnv::new();
    let script = format!("read -r _ < go; {SERVER}");
    let flags = ["--on-stdin-close", "stop", "--grace", "1h"];
    rustix::fs::mkfifoat(rustix::fs::CWD, env.path("work/go"), 0o600.into()).unwrap();
    let mut running = piped(&env, &flags, &format!("echo up; {script}"));
    running.say("one\ntwo\n");
    let before = at_rest(&running);
    running.hang_up();
    // penfold notices the hang-up, and then sleeps: a descriptor that has hung up stays ready.
    wait_until("penfold notices", || at_rest(&running) != before);
    assert!(running.is_alive());
    std::fs::write(env.path("work/go"), "go\n").unwrap();
    let finished = running.finish().with_code(3);
    assert_eq!((finished.out(), finished.err()), ("up\nup\ngot one\ngot two\n".to_owned(), String::new()));
    assert_eq!(cause(&env), "exit");
}

/// spec: 8.12
#[test]
fn data_wakes_nobody_and_stays_with_the_command() {
    let env = TestEnv::new();
    let script = "echo up; read -r _ < go; read -r line; echo got $line; exec sleep 1000";
    rustix::fs::mkfifoat(rustix::fs::CWD, env.path("work/go"), 0o600.into()).unwrap();
    let mut running = piped(&env, &["--on-stdin-close", "stop", "--grace", "0"], script);
    let before = at_rest(&running);
    running.say("one\n");
    assert_eq!(before, at_rest(&running));
    std::fs::write(env.path("work/go"), "go\n").unwrap();
    running.hear("got one", 1);
    running.hang_up();
    running.finish();
    assert_eq!(cause(&env), "stdin");
}

/// spec: 8.12
#[test]
fn pipe_hangs_up_with_its_last_writer() {
    let env = TestEnv::new();
    let (read, write) = std::io::pipe().unwrap();
    let mut other = write.try_clone().unwrap();
    let mut command = env.run_command(["--on-stdin-close", "kill", "bash", "-c", SERVER]);
    let running = Running::start(command.stdin(read));
    // The command holds a copy of the reading end.
    drop(command);
    running.hear("up", 1);
    drop(write);
    other.write_all(b"one\n").unwrap();
    running.hear("got one", 1);
    assert!(running.is_alive());
    drop(other);
    // The end of the input and the kill race: the command may exit before.
    assert!(matches!(running.finish().code(), Some(3 | 137)));
}

/// Node gives its children sockets.
/// spec: 8.12
#[test]
fn socket_hangs_up_when_its_peer_is_closed_or_shut_down() {
    let env = TestEnv::new();
    for shuts_down in [true, false] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let flags = ["--report", "report.json", "--on-stdin-close", "stop", "--grace", "200ms"];
        let mut command = env.run_command(flags);
        command.args(["--", "bash", "-c", DEAF]).stdin(OwnedFd::from(theirs));
        let running = Running::start(&mut command);
        drop(command);
        let members = sleeps(&env);
        (&ours).write_all(b"one\n").unwrap();
        assert!(running.is_alive());
        if shuts_down {
            ours.shutdown(Shutdown::Write).unwrap();
        } else {
            drop(ours);
        }
        running.finish().with_code(7);
        assert!(members.iter().all(Process::has_ended));
        assert_eq!(cause(&env), "stdin", "{shuts_down}");
    }
}

/// Not the controlling terminal of the test, so that no SIGHUP comes with the hang-up.
/// spec: 8.12
#[test]
fn terminal_hangs_up_with_its_master_side() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    unlockpt(&master).unwrap();
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    let flags = ["--report", "report.json", "--on-stdin-close", "stop", "--grace", "200ms"];
    let mut command = env.run_command(flags);
    command.args(["--", "bash", "-c", DEAF]).stdin(slave);
    let running = Running::start(&mut command);
    drop(command);
    let members = sleeps(&env);
    assert!(running.is_alive());
    drop(master);
    running.finish().with_code(7);
    assert!(members.iter().all(Process::has_ended));
    assert_eq!(cause(&env), "stdin");
}

/// spec: 8.12
#[test]
fn client_that_has_gone_before_the_start_ends_the_command_too() {
    let env = TestEnv::new();
    for (action, codes) in [("stop", [7, 143]), ("kill", [137, 137])] {
        let (read, write) = std::io::pipe().unwrap();
        drop(write);
        let mut command = env.run_command(["--on-stdin-close", action, "--grace", "1s", "bash", "-c", DEAF]);
        let code = Running::start(command.stdin(read)).finish().code().unwrap();
        assert!(codes.contains(&code), "{action}: {code}");
    }
    env.assert_nothing_left();
}

/// spec: 8.12
#[test]
fn signal_after_the_hang_up_stops_at_once() {
    let env = TestEnv::new();
    let mut running = piped(&env, &["--on-stdin-close", "stop", "--grace", "1h"], DEAF);
    let before = at_rest(&running);
    running.hang_up();
    wait_until("penfold notices", || at_rest(&running) != before);
    running.signal(Signal::TERM);
    running.finish().with_code(7);
    assert_eq!(cause(&env), "stop");
}

/// spec: 8.12
#[test]
fn input_that_cannot_hang_up_is_refused() {
    let env = TestEnv::new();
    let words = ["--on-stdin-close", "stop", "echo", "ran"];
    let with = |stdin: Stdio| Running::start(env.run_command(words).stdin(stdin)).finish();
    with(Stdio::null()).refused(125, "it is a device such as `/dev/null`, which never hangs up");
    std::fs::write(env.path("work/file"), "one\n").unwrap();
    let file = std::fs::File::open(env.path("work/file")).unwrap();
    with(file.into()).refused(125, "it is a file, which never hangs up");
    let closed = env.script("$PF --on-stdin-close stop echo ran <&-");
    closed.refused(125, "cannot watch the standard input for `--on-stdin-close`");
    let detached = env.run(["-d", "--on-stdin-close", "stop", "echo", "ran"]);
    detached.refused(125, "`--detach` cannot be used together with `--on-stdin-close`");
}
