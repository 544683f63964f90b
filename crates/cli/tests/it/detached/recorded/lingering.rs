//! Recorded execs that leave what they have started to their sandbox.

use penfold_control::execs::{self, ExecStart, ExecStatus};
use penfold_state::ExitStatus;
use penfold_teardown::Cause;
use rustix::process::Signal;

use super::{LONG, as_user, kill, output, sandbox_at, view, wait};
use crate::detached::sandboxes::{all_live, await_running, everywhere, none_lives, remove};
use crate::support::{Process, Sandbox, TestEnv, wait_until};

const LEFT: [&str; 3] = ["sleep 4101", "sleep 4102", "sleep 4103"];

/// Starts a command that leaves three processes and ends with 7. Returns once its end is known.
#[track_caller]
fn start(env: &TestEnv, sandbox: &Sandbox) -> (u32, Vec<Process>) {
    let script = "setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & echo left; exit 7";
    let start = ExecStart { lingers: true, timeout: Some(LONG), ..ExecStart::new(["bash", "-c", script]) };
    let number = as_user(env, sandbox, |files| execs::start_exec(files, start)).unwrap().number;
    let exit = || as_user(env, sandbox, |files| execs::exec_exit(files, number)).unwrap();
    wait_until("its end is known", || exit().is_some());
    assert_eq!(exit().unwrap().exit, Some(ExitStatus::Code(7)));
    let left = await_running(env, &LEFT);
    let seen = view(env, sandbox, number);
    assert_eq!((seen.status, seen.exit), (ExecStatus::Running, Some(ExitStatus::Code(7))));
    (number, left)
}

/// spec: 13.9.3
#[test]
fn what_is_left_goes_on_until_it_is_killed_or_stopped() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        for stops in [false, true] {
            let (number, left) = start(env, &sandbox);
            let case = format!("{:?} {level:?} {stops}", env.who);
            assert!(all_live(&left), "{case}");
            let end = if stops {
                as_user(env, &sandbox, |files| execs::stop_exec(files, number, None, None, LONG)).unwrap()
            } else {
                kill(env, &sandbox, number)
            };
            assert!(none_lives(&left) && end.remaining.is_empty(), "{case}");
            let seen = view(env, &sandbox, number);
            let expected = (ExecStatus::Ended, Some(ExitStatus::Code(7)), Some(Cause::Exit));
            assert_eq!((seen.status, seen.exit, seen.cause), expected, "{case}");
            assert_eq!(output(env, &sandbox, number), (b"left\n".to_vec(), Vec::new()), "{case}");
        }
        remove(env, &sandbox);
    });
}

/// spec: 13.9.3
#[test]
fn an_exec_is_over_with_the_last_of_what_it_has_left() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let (number, left) = start(env, &sandbox);
        let has_ended = || as_user(env, &sandbox, |files| execs::has_ended(files, number));
        for process in &left {
            assert!(!has_ended(), "{level:?}");
            process.signal(Signal::KILL);
            process.await_end();
        }
        wait(env, &sandbox, number);
        assert!(has_ended());
        remove(env, &sandbox);
    });
}

/// spec: 13.9.3
#[test]
fn what_is_left_ends_with_its_sandbox() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let (_, left) = start(env, &sandbox);
        assert!(all_live(&left), "{level:?}");
        remove(env, &sandbox);
        assert!(none_lives(&left), "{level:?}");
    });
}
