//! `penfold wait`: the code of the command, the same for all who wait, never invented.

use crate::support_control::Fold;
use crate::support_d::{code, said, until};
use rustix::event::Timespec;
use rustix::process::{Pid, Signal};

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
    let late = fold.start(&["--timeout", "3s"], "sleep 1000");
    fold.expect(&["wait", &late.id], 124, &["124"]);
    let (zero, five) = (fold.start(&[], "exit 0"), fold.start(&[], "exit 5"));
    fold.expect(&["wait", &zero.id, &five.id], 5, &["0", "5"]);
}

#[test]
fn first_code_that_is_not_0_counts() {
    let fold = Fold::new();
    let (zero, three, five) =
        (fold.start(&[], "exit 0"), fold.start(&[], "exit 3"), fold.start(&[], "exit 5"));
    fold.expect(&["wait", &zero.id, &three.id, &five.id], 3, &["0", "3", "5"]);
    fold.expect(&["wait", &five.id, &three.id], 5, &["5", "3"]);
    // What means no sandbox is told before there is anything to wait for.
    fold.expect(&["wait", &five.id, "nope"], 125, &["5"]);
}

#[test]
fn code_of_a_foreground_run_went_to_its_caller() {
    let fold = Fold::new();
    let script = "echo lead >> $UP; until [ -e \"$UP.go\" ]; do sleep 0.02; done; exit 3";
    let mut command = fold.yard.penfold(["run", "--name", "fore", "--", "sh", "-c", script]);
    let front = command.env("UP", fold.yard.path("up")).spawn().unwrap();
    fold.yard.await_up(&["lead"]);
    fold.expect(&["wait", "--timeout", "100ms", "fore"], 124, &[]);
    let mut waiter = fold.begin(&["wait", "fore"]);
    let record =
        std::fs::read_dir(fold.yard.path("root/sandboxes")).unwrap().flatten().next().unwrap().path();
    until("it waits", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", waiter.id())).unwrap();
        fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == record))
            && rests(waiter.id())
    });
    assert!(waiter.try_wait().unwrap().is_none());
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    assert_eq!(front.wait_with_output().unwrap().status.code(), Some(3));
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (120, &b"unknown\n"[..]), "{}", said(&done));
    let why = "it ran in the foreground: its code went to who called `penfold run`";
    assert!(said(&done).contains(why), "{}", said(&done));
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
    until("it waits", || is_connected(waiter.id()) && rests(waiter.id()));
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (8, &b"8\n"[..]), "{}", said(&done));
    assert!(!sandbox.record.try_exists().unwrap());
}

/// Whether it waits for an event, and does nothing.
fn rests(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|place| place.contains("poll"))
}

fn is_connected(pid: u32) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut links = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.any(|to| to.to_string_lossy().starts_with("socket:"))
}

#[test]
fn end_that_nobody_saw_is_unknown() {
    for flags in [&[][..], &["--on-supervisor-exit", "keep"], &["--contain", "subreaper"]] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(flags);
        let mut waiter = fold.begin(&["wait", &sandbox.id]);
        sandbox.kill_supervisors();
        // Who begins to wait now sees the same as who has seen the supervisors die.
        fold.expect(&["wait", "--timeout", "300ms", &sandbox.id], 124, &[]);
        assert!(waiter.try_wait().unwrap().is_none(), "{flags:?}: something of it lives");
        sandbox.assert_alive();
        for member in &sandbox.members {
            let _ = rustix::process::pidfd_send_signal(member, Signal::KILL);
        }
        let done = waiter.wait_with_output().unwrap();
        assert_eq!((code(&done), done.stdout.as_slice()), (120, &b"unknown\n"[..]), "{}", said(&done));
        assert!(said(&done).contains(&sandbox.id) && said(&done).contains("nobody"), "{}", said(&done));
        assert!(sandbox.members.iter().all(crate::support_d::has_ended), "{flags:?}: said before its end");
    }
}

#[test]
fn sandbox_that_nobody_looks_after_is_waited_for_by_no_busy_loop() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&["--on-supervisor-exit", "keep"]);
    sandbox.kill_supervisors();
    let waiter = fold.begin(&["wait", "--timeout", "2s", &sandbox.id]);
    let pid = Pid::from_raw(i32::try_from(waiter.id()).unwrap()).unwrap();
    let (handle, mut ticks) = (crate::support_d::handle(pid), 0);
    while !crate::support_d::has_ended(&handle) {
        ticks = processor_ticks(pid).unwrap_or(ticks);
        let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
    }
    assert_eq!(code(&waiter.wait_with_output().unwrap()), 124);
    assert!(ticks < 50, "{ticks} ticks of a hundredth of a second in two seconds");
}

fn processor_ticks(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let numbers = stat.rsplit(") ").next()?.split(' ').skip(11).take(2);
    Some(numbers.filter_map(|number| number.parse::<u64>().ok()).sum())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the record is to be lost")]
fn record_that_is_gone_does_not_end_the_wait() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let waiter = fold.begin(&["wait", &sandbox.id]);
    until("it waits", || is_connected(waiter.id()));
    std::fs::remove_dir_all(&sandbox.record).unwrap();
    fold.expect(&["wait", "--timeout", "300ms", &sandbox.id], 124, &[]);
    sandbox.assert_alive();
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    let done = waiter.wait_with_output().unwrap();
    assert!([125, 137].contains(&code(&done)), "{}", said(&done));
}

#[test]
fn who_waits_for_what_another_forgets_is_told_so() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 1000");
    let waiter = fold.begin(&["wait", &sandbox.id]);
    let pid = Pid::from_raw(i32::try_from(waiter.id()).unwrap()).unwrap();
    until("it waits", || is_connected(waiter.id()));
    let handle = crate::support_d::handle(pid);
    rustix::process::pidfd_send_signal(&handle, Signal::STOP).unwrap();
    until("it is stopped", || crate::support_d::state(pid) == Some('T'));
    sandbox.kill_supervisors();
    fold.expect(&["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    rustix::process::pidfd_send_signal(&handle, Signal::CONT).unwrap();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (125, &b""[..]), "{}", said(&done));
    assert!(
        said(&done).contains(&format!("no sandbox is called `{}` any more", sandbox.id)),
        "{}",
        said(&done)
    );
}

#[test]
fn supervisor_that_takes_the_place_of_another_is_waited_for() {
    let fold = Fold::new();
    let script = "until [ -e \"$UP.go\" ]; do sleep 0.02; done; exit 4";
    let sandbox = fold.start(&["--on-supervisor-exit", "keep"], script);
    let waiter = fold.begin(&["wait", &sandbox.id]);
    let inner = &sandbox.supervisors[1].1;
    rustix::process::pidfd_send_signal(inner, Signal::KILL).unwrap();
    until("it is dead", || crate::support_d::has_ended(inner));
    std::fs::write(fold.yard.path("up.go"), "").unwrap();
    let done = waiter.wait_with_output().unwrap();
    assert_eq!((code(&done), done.stdout.as_slice()), (4, &b"4\n"[..]), "{}", said(&done));
}
