//! Stops of many recorded execs at once.

use std::time::{Duration, Instant};

use penfold_control::execs::{self, ExecEnd, ExecError, ExecStart, ExecStatus};
use penfold_state::ExitStatus;
use penfold_teardown::Cause;
use rustix::process::Signal;

use super::{LONG, as_user, sandbox_at, start, view, wait};
use crate::detached::sandboxes::{all_live, await_end_of, await_running, everywhere, remove};
use crate::support::{Level, Process, Sandbox, TestEnv, wait_until};

/// Stops execs with SIGTERM and their own grace.
fn stop_all(
    env: &TestEnv,
    sandbox: &Sandbox,
    numbers: &[u32],
    patience: Duration,
) -> Vec<Result<ExecEnd, ExecError>> {
    as_user(env, sandbox, |files| {
        execs::stop_all(files, numbers, Some(Signal::TERM.as_raw()), None, patience)
    })
}

/// Starts a command that ignores SIGTERM, and runs `then` when it comes.
fn deaf(env: &TestEnv, sandbox: &Sandbox, then: &str, grace: Duration) -> (u32, Process) {
    let ready = env.path("work/ready");
    let script = format!("trap '{then}' TERM; : > ready; while :; do sleep 0.05; done");
    let start = ExecStart { grace, ..ExecStart::new(["bash", "-c", &script]) };
    let number = as_user(env, sandbox, |files| execs::start_exec(files, start)).unwrap().number;
    wait_until("the handler is set", || ready.try_exists().unwrap());
    std::fs::remove_file(&ready).unwrap();
    let process = Process::find(view(env, sandbox, number).leader_pid.unwrap()).unwrap();
    assert!(!process.has_ended());
    (number, process)
}

/// spec: 13.10
#[test]
fn each_has_its_own_end_in_the_order_of_the_numbers() {
    everywhere(|env, level| {
        let case = format!("{:?} {level:?}", env.who);
        let sandbox = sandbox_at(env, level);
        let over = start(env, &sandbox, &["sh", "-c", "exit 3"]).number;
        wait(env, &sandbox, over);
        start(env, &sandbox, &["sleep", "4002"]);
        let meek = start(env, &sandbox, &["sleep", "4105"]).number;
        let (polite, _) = deaf(env, &sandbox, "exit 7", LONG);
        let (killed, _) = deaf(env, &sandbox, "", Duration::from_millis(100));
        let others = await_running(env, &["sleep 4001", "sleep 4002"]);
        let members = await_running(env, &["sleep 4105"]);
        let missing = 4000;
        let results = stop_all(env, &sandbox, &[killed, missing, over, meek, polite], LONG);
        assert!(members.iter().all(Process::has_ended), "{case}");
        let [killed_end, missing_end, over_end, meek_end, polite_end] = &results[..] else {
            panic!("{case} {results:?}")
        };
        assert!(
            matches!(missing_end, Err(ExecError::NotFound { number, .. }) if *number == missing),
            "{case} {missing_end:?}"
        );
        for (result, number, exit, cause) in [
            (killed_end, killed, ExitStatus::Signal(9), Cause::Stop),
            (over_end, over, ExitStatus::Code(3), Cause::Exit),
            (meek_end, meek, ExitStatus::Signal(15), Cause::Stop),
            (polite_end, polite, ExitStatus::Code(7), Cause::Stop),
        ] {
            let end = result.as_ref().unwrap();
            assert_eq!((end.number, end.exit, end.cause), (number, Some(exit), Some(cause)), "{case}");
            assert!(end.report.as_ref().is_some_and(|report| report.findings.verified), "{case} {end:?}");
            assert_eq!(view(env, &sandbox, number).status, ExecStatus::Ended, "{case}");
        }
        assert!(all_live(&others), "{case}");
        remove(env, &sandbox);
    });
}

/// spec: 13.10
#[test]
fn one_that_does_not_end_neither_delays_nor_fails_the_others() {
    everywhere(|env, level| {
        let case = format!("{:?} {level:?}", env.who);
        let sandbox = sandbox_at(env, level);
        let meek = |seconds| start(env, &sandbox, &["sleep", seconds]).number;
        let (stuck, process) = deaf(env, &sandbox, "", LONG * 10);
        for place in 0..3 {
            let mut numbers = vec![meek("4105"), meek("4106")];
            numbers.insert(place, stuck);
            let members = await_running(env, &["sleep 4105", "sleep 4106"]);
            let patience = Duration::from_millis(500);
            let begun = Instant::now();
            std::thread::scope(|scope| {
                let all = scope.spawn(|| stop_all(env, &sandbox, &numbers, patience));
                await_end_of(&members);
                for (number, result) in numbers.iter().zip(all.join().unwrap()) {
                    if *number == stuck {
                        assert!(matches!(result, Err(ExecError::Unverified { .. })), "{case} {result:?}");
                    } else {
                        assert_eq!(result.unwrap().exit, Some(ExitStatus::Signal(15)), "{case}");
                    }
                }
            });
            assert!(begun.elapsed() >= patience, "{case} {:?}", begun.elapsed());
            assert!(!process.has_ended(), "{case}");
        }
        remove(env, &sandbox);
    });
}

/// spec: 13.10
#[test]
fn more_execs_than_fit_into_a_socket_are_stopped_at_once() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let numbers: Vec<u32> =
        (0..150).map(|_| start(&env, &sandbox, &["sleep", "4105"]).number).rev().collect();
    let members: Vec<Process> = numbers
        .iter()
        .map(|number| Process::find(view(&env, &sandbox, *number).leader_pid.unwrap()).unwrap())
        .collect();
    assert!(all_live(&members));
    let results = stop_all(&env, &sandbox, &numbers, LONG);
    assert!(members.iter().all(Process::has_ended));
    let ended: Vec<u32> = results.iter().map(|result| result.as_ref().unwrap().number).collect();
    assert_eq!(ended, numbers);
    assert!(
        results.iter().flatten().all(|end| end.exit == Some(ExitStatus::Signal(15)) && end.report.is_some())
    );
    assert_eq!(as_user(&env, &sandbox, |files| execs::stop_all(files, &[], None, None, LONG)).len(), 0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.10
#[test]
fn a_supervisor_that_dies_meanwhile_fails_no_stop() {
    everywhere(|env, level| {
        if level == Level::Pidns {
            // The namespace ends with its supervisor, so it refuses `keep`.
            return;
        }
        let case = format!("{:?} {level:?}", env.who);
        let words = ["--on-supervisor-exit", "keep", "--contain", level.word(), "--", "sleep", "4001"];
        let sandbox = env.detach(words);
        let script = "while ! test -e go; do sleep 0.05; done; exit 6";
        let (one, _) = deaf(env, &sandbox, script, LONG);
        let (other, _) = deaf(env, &sandbox, "", Duration::from_secs(1));
        let meek = start(env, &sandbox, &["sleep", "4105"]).number;
        std::thread::scope(|scope| {
            let all = scope.spawn(|| stop_all(env, &sandbox, &[one, other, meek], LONG));
            // Only then has the supervisor answered the last request.
            wait_until("the last one has ended", || view(env, &sandbox, meek).status == ExecStatus::Ended);
            let supervisor = &sandbox.supervisors[1];
            assert!(!supervisor.has_ended(), "{case}");
            supervisor.signal(Signal::KILL);
            supervisor.await_end();
            std::fs::write(env.path("work/go"), "").unwrap();
            let ends: Vec<ExecEnd> = all.join().unwrap().into_iter().map(Result::unwrap).collect();
            let exits: Vec<Option<ExitStatus>> = ends.iter().map(|end| end.exit).collect();
            let expected = [ExitStatus::Code(6), ExitStatus::Signal(9), ExitStatus::Signal(15)];
            assert_eq!(exits, expected.map(Some), "{case}");
        });
        std::fs::remove_file(env.path("work/go")).unwrap();
        remove(env, &sandbox);
    });
}
