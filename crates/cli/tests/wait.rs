//! `penfold wait`: the code of the command, the same for all who wait, never invented.

mod support_control;
mod support_d;

use rustix::process::Signal;
use support_control::Fold;
use support_d::{code, said, until};

#[test]
fn ten_who_wait_get_the_same_answer() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "until [ -e \"$UP.go\" ]; do sleep 0.02; done; exit 42");
    let waiters: Vec<_> = (0..10).map(|_| fold.begin(&["wait", &sandbox.id])).collect();
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    for waiter in waiters {
        let done = waiter.wait_with_output().unwrap();
        assert_eq!((code(&done), done.stdout.as_slice()), (42, &b"42\n"[..]), "{}", said(&done));
    }
    fold.expect(&["wait", &sandbox.id], 42, &["42"]);
}

#[test]
fn codes_follow_the_table_of_run() {
    let fold = Fold::new();
    let signalled = fold.start(&[], "kill -KILL $$");
    fold.expect(&["wait", &signalled.id], 137, &["137"]);
    let late = fold.start(&["--timeout", "100ms"], "sleep 1000");
    fold.expect(&["wait", &late.id], 124, &["124"]);
    let (zero, five) = (fold.start(&[], "exit 0"), fold.start(&[], "exit 5"));
    fold.expect(&["wait", &zero.id, &five.id], 5, &["0", "5"]);
}

#[test]
fn time_limit_ends_the_wait_and_nothing_else() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    fold.expect(&["wait", "--timeout", "200ms", &sandbox.id], 124, &[]);
    assert_eq!(fold.status(&sandbox.id), "running");
}

#[test]
fn first_of_several_is_named() {
    let fold = Fold::new();
    let (slow, quick) = (fold.start(&[], "sleep 1000"), fold.start(&[], "exit 6"));
    fold.expect(&["wait", "--any", &slow.id, &quick.id], 6, &[&format!("{} 6", quick.id)]);
}

#[test]
fn code_of_a_sandbox_that_is_removed_at_its_end_is_told() {
    let fold = Fold::new();
    let sandbox = fold.start(&["--rm"], "until [ -e \"$UP.go\" ]; do sleep 0.02; done; exit 8");
    let waiter = fold.begin(&["wait", &sandbox.id]);
    until("it waits", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", waiter.id())).unwrap();
        fds.flatten().any(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        })
    });
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (8, &b"8\n"[..]), "{}", said(&done));
    assert!(!sandbox.record.try_exists().unwrap());
}

#[test]
fn end_that_nobody_saw_is_unknown() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    let waiter = fold.begin(&["wait", &sandbox.id]);
    sandbox.kill_supervisors();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (120, &b"unknown\n"[..]), "{}", said(&done));
    assert!(said(&done).contains(&sandbox.id));
}

#[test]
fn supervisor_that_takes_the_place_of_another_is_waited_for() {
    let fold = Fold::new();
    let script = "until [ -e \"$UP.go\" ]; do sleep 0.02; done; exit 4";
    let sandbox = fold.start(&["--on-supervisor-exit", "keep"], script);
    let waiter = fold.begin(&["wait", &sandbox.id]);
    let inner = &sandbox.supervisors[1].1;
    rustix::process::pidfd_send_signal(inner, Signal::KILL).unwrap();
    until("it is dead", || support_d::has_ended(inner));
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (4, &b"4\n"[..]), "{}", said(&done));
}
