//! Time limits for the end of `penfold run`, and for wake-ups before. These tests run alone.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::idle::{asleep, at_rest, switches};
use super::launcher::{DEAF, SERVE, await_ready, await_started, own_processes};
use crate::support::{Level, Running, Terminal, TestEnv, wait_until};

/// What an end may take; it takes some milliseconds.
const SOON: Duration = Duration::from_millis(500);

/// Starts a script that prints `ready`.
fn start(env: &TestEnv, level: Level, grace: &str, script: &str) -> Running {
    let words = ["--contain", level.word(), "--grace", grace, "bash", "-c", script];
    let running = Running::start(&mut env.run_command(words));
    await_ready(&running, 1);
    running
}

/// spec: 1.2
#[test]
fn second_term_kills_at_once() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = format!("setsid sh -c 'trap \"\" TERM; sleep 600; :' & trap 'echo asked' TERM; {SERVE}");
        let running = start(&env, level, "10m", &script);
        running.signal(Signal::TERM);
        // Two signals that are pending at once count as one.
        running.hear("asked", 1);
        let begun = Instant::now();
        running.signal(Signal::TERM);
        running.finish().with_code(137);
        assert!(begun.elapsed() < SOON, "{level:?}: {:?}", begun.elapsed());
    }
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn grace_is_given_and_not_exceeded() {
    let grace = Duration::from_millis(300);
    let env = TestEnv::new();
    for level in env.levels() {
        let running = start(&env, level, "300ms", DEAF);
        let begun = Instant::now();
        running.signal(Signal::TERM);
        running.finish().with_code(137);
        let took = begun.elapsed();
        assert!(took >= grace && took < grace + SOON, "{level:?}: {took:?}");
    }
    env.assert_nothing_left();
}

/// spec: 1.3
#[test]
fn time_limit_ends_on_time() {
    let limit = Duration::from_millis(300);
    let env = TestEnv::new();
    for level in env.levels() {
        let begun = Instant::now();
        env.run(["--contain", level.word(), "--timeout", "300ms", "sleep", "600"]).with_code(124);
        let took = begun.elapsed();
        assert!(took >= limit && took < limit + SOON, "{level:?}: {took:?}");
    }
    env.assert_nothing_left();
}

/// spec: 8.5
#[test]
fn nobody_wakes_up_while_nothing_happens() {
    let env = TestEnv::new();
    let all: Vec<Running> = env.levels().into_iter().map(|level| asleep(&env, level)).collect();
    let before: Vec<_> = all.iter().map(at_rest).collect();
    // One second in which nothing happens.
    penfold_testkit::until(Duration::from_secs(1), || all.iter().any(|running| !running.is_alive()));
    let after: Vec<_> = all.iter().map(|running| switches(&own_processes(running.pid()))).collect();
    assert_eq!(before, after);
    for running in all {
        running.signal(Signal::TERM);
        running.finish();
    }
    env.assert_nothing_left();
}

/// spec: 1.2.1
#[test]
fn three_interrupt_keys_within_a_second_kill() {
    let env = TestEnv::new();
    let script = format!("trap 'echo got' INT; trap '' TERM; {SERVE}");
    std::fs::write(env.path("work/script"), script).unwrap();
    for level in env.levels().into_iter().map(Level::word) {
        // A new one each time: the last key may reach the shell, which throws away what is typed then.
        let Some(terminal) = Terminal::open(&env) else { return };
        terminal.line(&format!("$PF --contain {level} bash script; echo code=$?"));
        terminal.shows("ready");
        await_started(std::process::id().try_into().unwrap());
        // On a busy machine three of them may take more than a second: then more of them come.
        let got = || terminal.screen().matches("got").count();
        let over = || terminal.screen().contains("code=137");
        let mut before = 0;
        while !over() {
            assert!(before < 25, "{level}: {}", terminal.screen());
            terminal.press("C-c");
            wait_until("the key is handled", || over() || got() > before);
            before = got();
        }
    }
    env.assert_nothing_left();
}
