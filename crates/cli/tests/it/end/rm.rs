//! `penfold rm`: forgets what is over and nothing else.

use crate::support_control::{Fold, holder};
use crate::support_d::{has_ended, said, until};

#[test]
fn record_of_what_is_over_goes_with_its_log() {
    let fold = Fold::new();
    let sandbox = fold.start(&["--name", "web"], "echo hello");
    until("it is over", || fold.status(&sandbox.id) == "exited");
    fold.expect(&["rm", "web"], 0, &[&sandbox.id]);
    assert!(!sandbox.record.try_exists().unwrap());
    fold.expect_none_listed(&["-a"]);
    fold.expect(&["rm", "web"], 3, &[]);
}

#[test]
fn what_runs_is_refused_and_ended_first_by_force() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let done = fold.expect(&["rm", &sandbox.id], 2, &[]);
    assert!(said(&done).contains(&format!("penfold rm -f {}", sandbox.id)), "{}", said(&done));
    sandbox.assert_alive();
    fold.expect(&["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert!(!sandbox.record.try_exists().unwrap());
}

#[test]
fn orphan_is_refused_and_ended_first_by_force() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.kill_supervisors();
    until("nobody looks after it", || fold.status(&sandbox.id) == "orphaned");
    fold.expect(&["rm", &sandbox.id], 2, &[]);
    sandbox.assert_alive();
    fold.expect(&["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert!(!sandbox.record.try_exists().unwrap());
}

#[test]
fn contents_that_a_command_put_there_go_and_what_they_point_at_stays() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "true");
    until("it is over", || fold.status(&sandbox.id) == "exited");
    let precious = fold.yard.path("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, sandbox.record.join("link")).unwrap();
    std::fs::create_dir_all(sandbox.record.join("a/b/c")).unwrap();
    fold.expect(&["rm", &sandbox.id], 0, &[&sandbox.id]);
    assert!(!sandbox.record.try_exists().unwrap());
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious");
}

#[test]
fn two_that_forget_at_once_both_succeed() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    let both: Vec<_> = (0..3).map(|_| fold.begin(&["rm", "-f", &sandbox.id])).collect();
    for one in both {
        let done = one.wait_with_output().unwrap();
        // Who comes last may find nothing of this name any more.
        assert!(matches!(done.status.code(), Some(0 | 3)), "{}", said(&done));
    }
    sandbox.assert_gone();
    assert!(!sandbox.record.try_exists().unwrap());
}

#[test]
fn who_puts_the_record_away_is_waited_for_and_woken() {
    for script in ["exec sleep 3", "kill -STOP $$"] {
        let fold = Fold::new();
        let sandbox = fold.start(&[], "true");
        until("it is over", || fold.status(&sandbox.id) == "exited");
        let supervisors = || sandbox.supervisors.iter().all(|(_, handle)| has_ended(handle));
        until("its supervisors are gone", supervisors);
        let mut other = holder(&sandbox, script);
        fold.expect(&["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
        assert!(other.child.wait().unwrap().success(), "it was killed");
        assert!(!sandbox.record.try_exists().unwrap());
    }
}
