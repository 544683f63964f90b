//! Both processes that watch each other are stopped by a member: a deadline lets them go on.

use rustix::process::Signal;

use crate::run::launcher::{leader, own_processes};
use crate::support::{Level, Process, Running, TestEnv};

/// Tried one after the other: the processes must be stopped before it is over.
const LIMITS: [&str; 3] = ["1s", "3s", "9s"];

/// At pidns level no member sees them.
fn levels(env: &TestEnv) -> impl Iterator<Item = Level> {
    env.levels().into_iter().filter(|&level| level != Level::Pidns)
}

/// spec: 1.3
#[test]
fn time_limit_ends_a_sandbox_whose_processes_are_stopped() {
    let env = TestEnv::new();
    // The second ignores the polite signal: the grace is not held up either.
    for script in ["echo up; sleep 4421", "trap '' TERM; echo up; sleep 4422"] {
        for level in levels(&env) {
            let was_stopped = LIMITS.iter().any(|limit| {
                let flags = ["--contain", level.word(), "--grace", "100ms", "--timeout", limit];
                let launcher =
                    Running::start(&mut env.run_command(flags.iter().chain(&["sh", "-c", script])));
                launcher.hear("up", 1);
                let leader = leader(launcher.pid());
                own_processes(launcher.pid()).iter().for_each(Process::stop);
                let was_alive = leader.as_ref().is_some_and(|leader| !leader.has_ended());
                leader.iter().for_each(Process::await_end);
                launcher.finish().with_code(124);
                was_alive
            });
            assert!(was_stopped, "{level:?}: the time limit was over too early each time");
            env.assert_nothing_left();
        }
    }
}

/// spec: 1.3
#[test]
fn lease_ends_a_detached_sandbox_whose_supervisors_are_stopped() {
    let env = TestEnv::new();
    for level in levels(&env) {
        let was_stopped = LIMITS.iter().any(|ttl| {
            let flags = ["--contain", level.word(), "--grace", "100ms", "--ttl", ttl, "sleep", "4423"];
            let sandbox = env.detach(flags);
            let leader = sandbox.leader();
            sandbox.stop_supervisors();
            let was_alive = leader.as_ref().is_some_and(|leader| !leader.has_ended());
            leader.iter().for_each(Process::await_end);
            sandbox.await_end();
            sandbox.supervisors.iter().for_each(Process::await_end);
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
            was_alive
        });
        assert!(was_stopped, "{level:?}: the lease was over too early each time");
        env.assert_nothing_left();
    }
}

/// spec: 1.3
#[test]
fn supervisor_does_not_stay_stopped_when_the_launcher_is_killed() {
    let env = TestEnv::new();
    for level in levels(&env) {
        let launcher = Running::start(&mut env.run_command([
            "--contain",
            level.word(),
            "sh",
            "-c",
            "echo up; sleep 4424",
        ]));
        launcher.hear("up", 1);
        let leader = leader(launcher.pid()).unwrap();
        let own = own_processes(launcher.pid());
        own.iter().for_each(Process::stop);
        assert!(!leader.has_ended());
        own[0].signal(Signal::KILL);
        leader.await_end();
        own.iter().skip(1).for_each(Process::await_end);
        launcher.finish();
        env.assert_nothing_left();
    }
}
