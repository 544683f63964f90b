//! Time limits for answers and actions of supervisors. These tests run alone.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::attach::{seat, shown, type_in};
use super::sandboxes::{await_end_of, await_running, remove};
use crate::support::{ControlClient, Sandbox, TestEnv, has_terminals};

/// The limit of the specification for the end after the death of a supervisor, and for a greeting.
const SECOND: Duration = Duration::from_secs(1);

/// How long the supervisor takes to greet a new client.
#[track_caller]
fn greeting(sandbox: &Sandbox) -> Duration {
    let begun = Instant::now();
    let client = ControlClient::silent(&sandbox.record).unwrap();
    assert!(client.hear().is_some_and(|answer| answer.get("hello").is_some()));
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// spec: 13.5
#[test]
fn supervisor_greets_within_a_second_beside_hundreds_of_silent_clients() {
    let env = TestEnv::new();
    // Room for all of them, and for a few.
    for limit in [1024, 64] {
        let script = format!("ulimit -n {limit}; $PF -d -- sleep 4203");
        let sandbox = Sandbox::printed(&env, &env.script(&script).with_code(0).out());
        let silent = |_| ControlClient::silent(&sandbox.record).unwrap();
        let crowd: Vec<ControlClient> = (0..300).map(silent).collect();
        let took = greeting(&sandbox);
        assert!(took < SECOND, "limit {limit}: {took:?}");
        drop(crowd);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// It takes about a millisecond.
/// spec: 13.5
#[test]
fn keys_are_shown_and_clients_greeted_within_a_tenth_of_a_second() {
    const TENTH: Duration = Duration::from_millis(100);
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let quiet = env.detach(["-t", "--", "cat"]);
    let (_client, stream) = seat(&quiet);
    let key = |number: u32| {
        let begun = Instant::now();
        type_in(&stream, format!("{number}\n").as_bytes());
        // The echo, and the line that `cat` writes.
        shown(&stream, &format!("{number}\r\n{number}\r\n"));
        begun.elapsed()
    };
    let took = median((100..120).map(key).collect());
    assert!(took < TENTH, "keys: {took:?}");
    let busy = env.detach(["-t", "--", "yes"]);
    let took = median((0..20).map(|_| greeting(&busy)).collect());
    assert!(took < TENTH, "greetings beside a program that writes without end: {took:?}");
    remove(&env, &quiet);
    remove(&env, &busy);
    env.assert_nothing_left();
}

/// spec: 12.5
#[test]
fn tree_ends_within_a_second_of_the_death_of_either_supervisor() {
    let env = TestEnv::new();
    for level in env.levels() {
        for killed in [0, 1] {
            let script = "setsid sleep 1018 & (setsid sleep 1019 &); exec sleep 1017";
            let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", script]);
            let members = await_running(&env, &["sleep 1017", "sleep 1018", "sleep 1019"]);
            let begun = Instant::now();
            sandbox.supervisors[killed].signal(Signal::KILL);
            await_end_of(&members);
            let took = begun.elapsed();
            assert!(took < SECOND, "{level:?} {killed}: {took:?}");
            remove(&env, &sandbox);
        }
    }
    env.assert_nothing_left();
}

/// spec: 12.3
#[test]
fn sandbox_ends_on_time_with_its_first_lease_and_with_a_renewed_one() {
    const LEASE: Duration = Duration::from_millis(500);
    let env = TestEnv::new();
    for (first, renewed) in [("500ms", None), ("1h", Some("500ms"))] {
        let mut begun = Instant::now();
        let sandbox = env.detach(["--ttl", first, "--", "sleep", "1009"]);
        let members = env.running("sleep 1009");
        if let Some(time) = renewed {
            begun = Instant::now();
            sandbox.call(&env, &["extend", "ID", time]).with_code(0);
        }
        await_end_of(&members);
        let took = begun.elapsed();
        assert!((LEASE..LEASE + SECOND / 2).contains(&took), "{first} {renewed:?}: {took:?}");
        sandbox.await_end();
        assert_eq!(sandbox.cause().as_deref(), Some("ttl"));
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}
