//! Time limits for the end of a sandbox and for answers to clients. These tests run alone.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_testkit::proc::Handle;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt::socket_peercred,
};
use rustix::process::Signal;

use super::foreground::{Foreground, PenfoldProcess, Shape, await_nothing_left};
use super::kill::LISTENER;
use super::killed_by_name::{BROAD, assert_other_names, pkill};
use super::standing::{
    Standing, answers, await_connected, await_said, await_state_d, detach_script, frozen, said, write_to,
};
use crate::support::jail::jailed;
use crate::support::{Level, PATIENCE, Process, TestEnv, Who, has_program, wait_until};

/// What the guarantee allows after a process of penfold was killed.
const PROMPT: Duration = Duration::from_secs(1);

/// Whether a process ends within this time.
fn ends_within(process: &Process, limit: Duration) -> bool {
    Handle::open(process.id()).unwrap().is_none_or(|handle| handle.wait(Some(limit)))
}

/// spec: 4.1
#[test]
fn nothing_is_left_a_second_after_the_launcher_or_a_supervisor_was_killed() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for level in Level::ALL {
        for victim in [PenfoldProcess::Launcher, PenfoldProcess::Standby, PenfoldProcess::Supervisor] {
            let sandbox = Foreground::start(&env, Shape::Trio, level, &[]);
            sandbox.assert_alive();
            let killed = Instant::now();
            sandbox.kill(&[victim]);
            sandbox.await_end();
            await_nothing_left(&env);
            let took = killed.elapsed();
            assert!(took < PROMPT, "{level:?} {victim:?}: {took:?}");
        }
    }
}

/// spec: 4.4
#[test]
fn nothing_is_left_a_second_after_a_broad_kill_by_name() {
    if !has_program(&["pkill", "--version"]) {
        return;
    }
    jailed(|| {
        for (words, level) in BROAD.into_iter().flat_map(|words| Level::ALL.map(|level| (words, level))) {
            let env = TestEnv::new();
            let foreground = Foreground::start(&env, Shape::Pair, level, &[]);
            let detached = Standing::start(&env, &["--contain", level.word()]);
            foreground.assert_alive();
            detached.assert_alive();
            assert_other_names(&foreground.members);
            assert_other_names(&detached.members);
            let killed = Instant::now();
            pkill(&env, words);
            foreground.await_end();
            detached.await_end();
            detached.members.iter().for_each(Process::await_end);
            let took = killed.elapsed();
            detached.assert_gone();
            assert!(took < PROMPT, "{words:?} {level:?}: {took:?}");
        }
    });
}

/// spec: 2.3
#[test]
fn stuck_member_is_reported_at_once_to_the_next_client() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &["--patience", PATIENCE], &write_to(&frozen));
    await_state_d(&sandbox.leader().unwrap());
    answers(&env, &["kill", &sandbox.id], 5, &[]);
    let begun = Instant::now();
    answers(&env, &["kill", "--patience", PATIENCE, &sandbox.id], 5, &[]);
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(1500), "{took:?}");
    drop(frozen);
}

/// spec: 11.1
#[test]
fn stop_gives_the_grace_and_no_more() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.assert_alive();
    let begun = Instant::now();
    answers(&env, &["stop", "-t", "300ms", &sandbox.id], 0, &[&sandbox.id]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < PROMPT, "{took:?}");
    sandbox.assert_gone();
}

/// As on a host whose processors are all taken for more than a second.
/// spec: 11.7
#[test]
fn supervisor_that_takes_its_time_is_waited_for() {
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &["--ttl", "1h"], LISTENER);
    env.await_up(&["lead"]);
    sandbox.stop_supervisors();
    let asked = [
        &["extend", &sandbox.id, "2h"][..],
        &["kill", "-s", "HUP", &sandbox.id],
        &["exec", &sandbox.id, "true"],
    ]
    .map(|words| env.begin(words));
    let given_up = asked.iter().any(|command| ends_within(command.process(), Duration::from_millis(500)));
    assert!(!given_up, "a command did not wait");
    sandbox.continue_supervisors();
    for command in asked {
        command.finish().with_code(0);
    }
    env.await_up(&["lead", "hup"]);
    answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[]);
}

/// The process that listens, as the kernel tells clients.
fn listener(record: &Path) -> Option<i32> {
    let kind = SocketType::SEQPACKET;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(record.join("control.sock")).unwrap()).ok()?;
    Some(socket_peercred(&socket).ok()?.pid.as_raw_pid())
}

/// The supervisor that is left says that it may take longer than anybody but a supervisor is believed. A client that did not
/// believe it would ask the members a second time.
/// spec: 11.2
#[test]
fn supervisor_that_lost_the_other_is_given_the_time_that_it_wants() {
    let env = TestEnv::new();
    let script =
        "trap 'echo $1 >> $UP' TERM; echo lead >> $UP; until [ -e $UP.go ]; do sleep 0.05; done; exit 9";
    let start = |name| {
        let flags = ["--on-supervisor-exit", "keep", "--grace", "90s"];
        env.detach(flags.iter().chain(&["--", "sh", "-c", script, "sh", name]))
    };
    let (asked_before, asked_after) = (start("before"), start("after"));
    await_said(&env, "lead", 2);

    asked_before.stop_supervisors();
    let before = env.begin(["stop", &asked_before.id]);
    await_connected(&before);
    asked_before.supervisors[0].signal(Signal::KILL);

    let [standby, supervisor] = asked_after.supervisors.as_slice() else { panic!("no two supervisors") };
    standby.signal(Signal::KILL);
    standby.await_end();
    wait_until("the supervisor one listens in its own name", || {
        listener(&asked_after.record) == Some(supervisor.pid())
    });
    let after = env.begin(["stop", &asked_after.id]);

    env.await_up(&["before", "after"]);
    let stoppers = [before, after];
    // Longer than a client waits for an answer.
    let given_up = stoppers.iter().any(|stopper| ends_within(stopper.process(), Duration::from_millis(600)));
    assert!(!given_up, "a client did not wait");
    assert_eq!((said(&env, "before"), said(&env, "after")), (1, 1), "a client asked the members itself");
    std::fs::write(env.path("work/up.go"), "").unwrap();
    for (stopper, sandbox) in stoppers.into_iter().zip([&asked_before, &asked_after]) {
        stopper.finish().with_code(0);
        answers(&env, &["wait", &sandbox.id], 9, &["9"]);
    }
}
