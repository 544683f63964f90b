//! `penfold run` as pid 1 of a pid namespace, as in a container: it reaps, forwards and exits as a good init does.

use rustix::process::Signal;

use super::launcher::{SERVE, await_ready, launcher};
use crate::support::{Running, TestEnv, entries, has_program, is_root, penfold};

const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn usable() -> bool {
    is_root() && has_program(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"])
}

/// Starts `penfold run` with these words as pid 1.
fn init(env: &TestEnv, words: &[&str]) -> Running {
    let mut command = env.command(UNSHARE[0]);
    command.args(&UNSHARE[1..]).arg(penfold()).arg("--root").arg(env.path("root")).arg("run").args(words);
    Running::start(&mut command)
}

/// spec: 8.4, 8.6
#[test]
fn codes_pass_through() {
    if !usable() {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let words = |command: &[&'static str]| {
            ["--contain", level.word()].iter().chain(command).copied().collect::<Vec<_>>()
        };
        init(&env, &words(&["sh", "-c", "exit 7"])).finish().with_code(7);
        init(&env, &words(&["sh", "-c", "kill -TERM $$"])).finish().with_code(143);
        init(&env, &words(&["no-such-command"])).finish().refused(127, "cannot run `no-such-command`");
        init(&env, &words(&["--timeout", "0.2", "sleep", "600"])).finish().with_code(124);
    }
    env.assert_nothing_left();
}

/// spec: 8.4
#[test]
fn orphans_are_reaped_while_the_command_runs() {
    if !usable() {
        return;
    }
    let env = TestEnv::new();
    // Orphans of every kind end; the command goes on when none of them is left, not even as a zombie.
    let script = "
        for i in 1 2 3 4 5; do (setsid sh -c 'exit 3' &); (sh -c 'sleep 0.05 & exit' &); done
        for i in $(seq 500); do
            grep -lE '^[0-9]+ \\((sh|sleep)\\)|\\) Z ' /proc/[0-9]*/stat 2>/dev/null | grep -q . || exit 9
            read -r -t 0.02 <> gate
        done
        cat /proc/[0-9]*/stat; exit 1";
    let script = format!("mkfifo gate; {script}");
    for level in env.levels() {
        init(&env, &["--contain", level.word(), "bash", "-c", &script]).finish().with_code(9);
        std::fs::remove_file(env.path("work/gate")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 8.4
#[test]
fn term_is_forwarded_and_strays_end() {
    if !usable() {
        return;
    }
    let env = TestEnv::new();
    let script = format!("trap 'exit 5' TERM; setsid -f sleep 600; (sleep 600 &); {SERVE}");
    for level in env.levels() {
        let running = init(&env, &["--contain", level.word(), "bash", "-c", &script]);
        await_ready(&running, 1);
        launcher(running.pid()).signal(Signal::TERM);
        running.finish().with_code(5);
    }
    env.assert_nothing_left();
}

/// spec: 1.1
#[test]
fn left_behind_processes_end_and_are_named() {
    if !usable() {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "setsid -f sleep 600; (sleep 600 &); exit 3";
        let finished = init(&env, &["--contain", level.word(), "bash", "-c", script]).finish().with_code(3);
        assert!(finished.err().contains("ended 2 processes"), "{}", finished.err());
    }
    env.assert_nothing_left();
}

/// spec: 4.2
#[test]
fn killed_init_leaves_nothing_after_the_next_command() {
    if !usable() {
        return;
    }
    let env = TestEnv::new();
    let running = init(&env, &["bash", "-c", "setsid -f sleep 600; echo ready; sleep 600; :"]);
    running.hear("ready", 1);
    let records = entries(&env.path("root/sandboxes"));
    assert_eq!(records.len(), 1, "{records:?}");
    launcher(running.pid()).signal(Signal::KILL);
    running.finish();
    // Every process of the namespace is dead with its init; the record and the leaf wait for the next command.
    env.run(["true"]).with_code(0);
    env.assert_nothing_left();
}

#[test]
fn session_and_group_from_outside_of_the_namespace_do_no_harm() {
    if !has_program(&[
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--unshare-pid",
        "true",
    ]) {
        return;
    }
    let env = TestEnv::new();
    let mut command = env.command("bwrap");
    command.args(["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "--bind"]);
    command.arg(env.path("")).arg(env.path("")).arg(penfold()).arg("--root").arg(env.path("root"));
    let running = Running::start(command.args([
        "run",
        "bash",
        "-c",
        "setsid -f sleep 600; sleep 600 & echo ready; while :; do wait; done",
    ]));
    await_ready(&running, 1);
    launcher(running.pid()).signal(Signal::TERM);
    running.finish().with_code(143);
    env.assert_nothing_left();
}
