//! SIGKILL to processes of penfold, at any moment and in any combination: every process that must end by the policy is gone.

use std::process::Stdio;
use std::time::Duration;

use penfold_testkit::Bystander;
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

use super::foreground::{
    Foreground, PenfoldProcess, Shape, await_nothing_left, await_unlocked, left, run_command,
};
use crate::support::{Level, Prng, Process, Running, TestEnv, Who, children, wait_until};

/// How many early kills each test tries.
const ROUNDS: u32 = 100;
/// After how many of them nothing may be left once another command has run.
const SWEPT: u32 = 10;
/// The moments at which a kill may come, in microseconds after the shell starts that becomes penfold.
const EARLY: u64 = 5000;

/// Starts sandboxes and kills one process of each a moment later.
fn early_kills(level: Level, kill: impl Fn(&Running)) {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    let (mut prng, seed) = Prng::fresh();
    println!("seed {seed}");
    let mut bystander = Bystander::spawn().unwrap();
    for round in 0..ROUNDS {
        let mut command = run_command(&env, Shape::Pair, level, &[], "setsid sleep 60 & sleep 60");
        let launcher = Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let handle = Handle::open(launcher.process().id()).unwrap().unwrap();
        // The random moment of the kill, or the end of the launcher if that comes first.
        handle.wait(Some(Duration::from_micros(prng.below(EARLY))));
        kill(&launcher);
        wait_until(&format!("all have ended in round {round}"), || env.processes().is_empty());
        launcher.finish();
        // A launcher that dies before its supervisor is born leaves an empty leaf and a record, for the next command.
        if round % SWEPT == SWEPT - 1 && !left(&env).is_empty() {
            next_command(&env);
            wait_until(&format!("nothing is left of round {round}"), || left(&env).is_empty());
        }
    }
    bystander.assert_alive();
    await_nothing_left(&env);
}

/// Ends what no supervisor is left for.
#[track_caller]
fn next_command(env: &TestEnv) {
    await_unlocked(env);
    env.run(["--contain", "subreaper", "true"]).with_code(0);
}

fn kill_launcher(launcher: &Running) {
    launcher.signal(Signal::KILL);
}

fn kill_supervisor(launcher: &Running) {
    let mut supervisor = None;
    wait_until("the supervisor is born, or the launcher has ended", || {
        supervisor = children(launcher.pid()).first().copied();
        supervisor.is_some() || !launcher.is_alive()
    });
    if let Some(supervisor) = supervisor.and_then(Process::find) {
        supervisor.signal(Signal::KILL);
    }
}

macro_rules! early {
    ($($name:ident $level:ident $kill:ident)*) => {
        $(#[test] fn $name() { early_kills(Level::$level, $kill); })*
    };
}

early! {
    // spec: 4.1
    hundred_early_kills_of_the_launcher_leave_nothing_at_cgroup_level Cgroup kill_launcher
    // spec: 4.1
    hundred_early_kills_of_the_launcher_leave_nothing_at_pidns_level Pidns kill_launcher
    // spec: 4.1
    hundred_early_kills_of_the_launcher_leave_nothing_at_subreaper_level Subreaper kill_launcher
    // spec: 4.1
    hundred_early_kills_of_the_supervisor_leave_nothing_at_cgroup_level Cgroup kill_supervisor
    // spec: 4.1
    hundred_early_kills_of_the_supervisor_leave_nothing_at_pidns_level Pidns kill_supervisor
    // spec: 4.1
    hundred_early_kills_of_the_supervisor_leave_nothing_at_subreaper_level Subreaper kill_supervisor
}

/// Every set of processes of penfold but all of them: one that is left ends the sandbox.
/// spec: 4.1
#[test]
fn any_of_ours_that_is_left_ends_the_sandbox() {
    use PenfoldProcess::{Launcher, Standby, Supervisor};
    let pairs: [&[PenfoldProcess]; 2] = [&[Launcher], &[Supervisor]];
    let trios: [&[PenfoldProcess]; 6] = [
        &[Launcher],
        &[Standby],
        &[Supervisor],
        &[Launcher, Standby],
        &[Launcher, Supervisor],
        &[Standby, Supervisor],
    ];
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for (shape, sets) in [(Shape::Pair, pairs.as_slice()), (Shape::Trio, trios.as_slice())] {
        for level in Level::ALL {
            for set in sets {
                println!("{shape:?} {level:?} {set:?}");
                let sandbox = Foreground::start(&env, shape, level, &[]);
                sandbox.assert_alive();
                sandbox.kill(set);
                sandbox.await_end();
                await_nothing_left(&env);
            }
        }
    }
}

/// All processes of penfold in the same instant: the next command cleans up.
/// spec: 4.2
#[test]
fn next_command_ends_what_all_of_ours_left() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            println!("{shape:?} {level:?}");
            let sandbox = Foreground::start(&env, shape, level, &[]);
            sandbox.assert_alive();
            sandbox.kill_all();
            assert!(!left(&env).is_empty(), "the record is gone before the members are");
            next_command(&env);
            sandbox.await_end();
            await_nothing_left(&env);
        }
    }
}

/// The same with `gc`, which says so.
/// spec: 4.2
#[test]
fn gc_ends_what_all_of_ours_left() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for level in Level::ALL {
        println!("{level:?}");
        let sandbox = Foreground::start(&env, Shape::Pair, level, &[]);
        sandbox.assert_alive();
        sandbox.kill_all();
        await_unlocked(&env);
        env.call(["gc", "-f"]).with_code(0);
        // What `gc` reports is observed. An init of ours has let go of its lock and its leaf a moment before its end.
        let mut alive = sandbox.members.iter().filter(|member| !member.has_ended());
        assert!(
            alive.all(|member| member.command_line().starts_with("pf-supervisor")),
            "{:?}",
            sandbox.members
        );
        sandbox.await_end();
        await_nothing_left(&env);
    }
}

/// A daemon that has a session of its own, and nobody is left who was its parent: this test, which was above the sandbox
/// when it started and takes in orphans, is what tells it from a process with a copy of the marker.
/// spec: 4.2
#[test]
fn next_command_ends_a_daemon_that_who_started_the_sandbox_took_in() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    let sandbox = Foreground::start(&env, Shape::Pair, Level::Subreaper, &[]);
    sandbox.assert_alive();
    sandbox.kill_all();
    let all = proc::all();
    let leads =
        |member: &&Process| all.iter().any(|stat| stat.id == member.id() && stat.group == stat.id.pid);
    let (daemons, others): (Vec<_>, Vec<_>) = sandbox.members.iter().partition(leads);
    for member in others {
        member.signal(Signal::KILL);
        member.await_end();
    }
    assert!(!daemons.is_empty() && daemons.iter().all(|daemon| !daemon.has_ended()));
    next_command(&env);
    sandbox.await_end();
    await_nothing_left(&env);
}

/// A launcher that is stopped is no help; with a standby none is needed, without one it acts once it goes on.
/// spec: 4.3
#[test]
fn stopped_launcher_and_killed_supervisor_leave_nothing() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            println!("{shape:?} {level:?}");
            let sandbox = Foreground::start(&env, shape, level, &[]);
            sandbox.assert_alive();
            sandbox.signal(PenfoldProcess::Launcher, Signal::STOP);
            sandbox.kill(&[PenfoldProcess::Supervisor]);
            if shape == Shape::Trio {
                sandbox.members.iter().for_each(Process::await_end);
            }
            sandbox.signal(PenfoldProcess::Launcher, Signal::CONT);
            sandbox.await_end();
            await_nothing_left(&env);
        }
    }
}

/// spec: 1.4
#[test]
fn death_of_the_owner_ends_the_sandbox() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            for policy in ["kill", "stop"] {
                println!("{shape:?} {level:?} {policy}");
                let sandbox = Foreground::start_owned(&env, shape, level, &["--on-owner-exit", policy]);
                sandbox.assert_alive();
                sandbox.run.signal(Signal::KILL);
                sandbox.await_end();
                await_nothing_left(&env);
            }
        }
    }
}

/// spec: 1.4
#[test]
fn sandbox_that_is_kept_outlives_its_owner_and_ends_with_its_leader() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    let flags = ["--on-owner-exit", "keep"];
    let sandbox = Foreground::start_owned(&env, Shape::Pair, Level::Cgroup, &flags);
    sandbox.run.signal(Signal::KILL);
    sandbox.run.process().await_end();
    // The launcher hears of the death of its owner before it passes this signal on.
    sandbox.signal(PenfoldProcess::Launcher, Signal::USR1);
    env.await_up(&["usr1"]);
    sandbox.assert_alive();
    sandbox.leader().signal(Signal::KILL);
    sandbox.await_end();
    await_nothing_left(&env);
}
