//! `penfold rm`: forgets what has ended, and nothing else.

use super::standing::{Standing, answers, ended, hold_lock, listed};
use crate::support::{Sandbox, TestEnv};

#[track_caller]
fn assert_forgotten(sandbox: &Sandbox) {
    assert!(!sandbox.record.try_exists().unwrap(), "the record is left");
}

#[test]
fn record_of_what_is_over_goes_with_its_log() {
    let env = TestEnv::new();
    let sandbox = ended(&env, &["--name", "web"], "echo hello");
    answers(&env, &["rm", "web"], 0, &[&sandbox.id]);
    assert_forgotten(&sandbox);
    assert!(listed(&env, &["-a"]).is_empty());
    answers(&env, &["rm", "web"], 3, &[]);
}

#[test]
fn what_runs_is_refused_and_ended_first_by_force() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let refused = answers(&env, &["rm", &sandbox.id], 2, &[]).err();
    assert!(refused.contains(&format!("penfold rm -f {}", sandbox.id)), "{refused}");
    sandbox.assert_alive();
    answers(&env, &["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert_forgotten(&sandbox);
}

#[test]
fn orphan_is_refused_and_ended_first_by_force() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    assert_eq!(sandbox.status(&env).as_deref(), Some("orphaned"));
    answers(&env, &["rm", &sandbox.id], 2, &[]);
    sandbox.assert_alive();
    answers(&env, &["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert_forgotten(&sandbox);
}

#[test]
fn contents_that_a_command_put_there_go_and_what_they_point_at_stays() {
    let env = TestEnv::new();
    let sandbox = ended(&env, &[], "true");
    let precious = env.path("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, sandbox.record.join("link")).unwrap();
    std::fs::create_dir_all(sandbox.record.join("a/b/c")).unwrap();
    answers(&env, &["rm", &sandbox.id], 0, &[&sandbox.id]);
    assert_forgotten(&sandbox);
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious");
}

#[test]
fn two_that_forget_at_once_both_succeed() {
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1000"]);
    let all = [0; 3].map(|_| env.begin(["rm", "-f", &sandbox.id]));
    for one in all {
        let done = one.finish();
        // The last one may find nothing of this id any more.
        assert!(matches!(done.code(), Some(0 | 3)), "{}", done.err());
    }
    sandbox.assert_gone(&[]);
    assert_forgotten(&sandbox);
}

/// A lock holder without children is another command that is cleaning up.
#[test]
fn who_puts_the_record_away_is_waited_for_and_woken() {
    let env = TestEnv::new();
    let scripts = ["exec sleep 0.7", "kill -STOP $$"];
    let sandboxes = scripts.map(|_| ended(&env, &[], "true"));
    let [slow, stopped] = &sandboxes;
    let others = [hold_lock(slow, scripts[0]), hold_lock(stopped, scripts[1])];
    let remove = [slow, stopped].map(|sandbox| env.begin(["rm", "-f", &sandbox.id]));
    for (remove, sandbox) in remove.into_iter().zip(&sandboxes) {
        assert_eq!(remove.finish().with_code(0).out(), format!("{}\n", sandbox.id));
        assert_forgotten(sandbox);
    }
    for other in others {
        other.finish().with_code(0);
    }
}
