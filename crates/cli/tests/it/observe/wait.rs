//! `penfold wait`: the code of the command, the same for all who wait, never invented.

use rustix::process::Signal;

use super::output::{has_open, is_waiting};
use crate::support::{Finished, Process, Running, Sandbox, TREE, TestEnv, entries, wait_until};

/// The leader runs until [`go`], then exits with the code that follows.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.05; done; exit";

fn go(env: &TestEnv) {
    std::fs::write(env.path("work/go"), "").unwrap();
}

/// Starts a script in a detached sandbox.
#[track_caller]
fn start(env: &TestEnv, flags: &[&str], script: &str) -> Sandbox {
    env.detach([flags, &["--", "sh", "-c", script]].concat())
}

/// Starts [`TREE`] in a detached sandbox; gives its members, once all run.
#[track_caller]
fn start_tree(env: &TestEnv, flags: &[&str]) -> (Sandbox, Vec<Process>) {
    let sandbox = start(env, flags, TREE);
    env.await_up(&["deaf", "lead"]);
    wait_until("the tree stands", || env.running("sleep 1000").len() == 3);
    let members = sandbox.members(env);
    assert!(members.len() >= 5, "{members:?}");
    (sandbox, members)
}

#[track_caller]
fn assert_alive(members: &[Process]) {
    assert!(!members.iter().any(Process::has_ended), "members have ended");
}

/// Calls, and expects this code and these lines on standard output.
#[track_caller]
fn expect(env: &TestEnv, words: &[&str], code: i32, lines: &[&str]) -> Finished {
    told(env.call(words), code, lines)
}

#[track_caller]
fn told(finished: Finished, code: i32, lines: &[&str]) -> Finished {
    let out = finished.out();
    let printed: Vec<&str> = out.lines().collect();
    assert_eq!((finished.code(), printed.as_slice()), (Some(code), lines), "{}", finished.err());
    finished
}

/// Starts `wait`, and waits until it is connected to the supervisor.
#[track_caller]
fn begin_wait(env: &TestEnv, sandbox: &Sandbox) -> Running {
    let waiter = env.begin(["wait", &sandbox.id]);
    wait_until("it waits", || has_open(&waiter, "socket:") && is_waiting(&waiter));
    waiter
}

/// spec: 11.6
#[test]
fn ten_who_wait_get_the_same_answer() {
    let env = TestEnv::new();
    let sandbox = start(&env, &[], &format!("{UNTIL_GO} 42"));
    let waiters: Vec<_> = (0..10).map(|_| begin_wait(&env, &sandbox)).collect();
    go(&env);
    for waiter in waiters {
        told(waiter.finish(), 42, &["42"]);
    }
    expect(&env, &["wait", &sandbox.id], 42, &["42"]);
}

/// spec: 11.6
#[test]
fn codes_follow_the_table_of_run() {
    let env = TestEnv::new();
    let signalled = start(&env, &[], "kill -KILL $$");
    expect(&env, &["wait", &signalled.id], 137, &["137"]);
    let late = start(&env, &["--timeout", "300ms"], "sleep 1000");
    expect(&env, &["wait", &late.id], 124, &["124"]);
    let (zero, five) = (start(&env, &[], "exit 0"), start(&env, &[], "exit 5"));
    expect(&env, &["wait", &zero.id, &five.id], 5, &["0", "5"]);
}

/// spec: 11.6
#[test]
fn first_code_that_is_not_0_counts() {
    let env = TestEnv::new();
    let [zero, three, five] = ["exit 0", "exit 3", "exit 5"].map(|script| start(&env, &[], script));
    expect(&env, &["wait", &zero.id, &three.id, &five.id], 3, &["0", "3", "5"]);
    expect(&env, &["wait", &five.id, &three.id], 5, &["5", "3"]);
    // An unknown id is reported before the wait begins.
    expect(&env, &["wait", &five.id, "nope"], 125, &["5"]);
}

/// spec: 11.6
#[test]
fn code_of_a_foreground_run_went_to_its_caller() {
    let env = TestEnv::new();
    let script = format!("echo lead >> $UP; {UNTIL_GO} 3");
    let launcher = env.begin(["run", "--name", "fore", "--", "sh", "-c", &script]);
    env.await_up(&["lead"]);
    expect(&env, &["wait", "--timeout", "100ms", "fore"], 124, &[]);
    let waiter = env.begin(["wait", "fore"]);
    let record = entries(&env.path("root/sandboxes")).pop().unwrap();
    let record = record.to_str().unwrap();
    wait_until("it waits", || has_open(&waiter, record) && is_waiting(&waiter));
    go(&env);
    launcher.finish().with_code(3);
    let finished = told(waiter.finish(), 120, &["unknown"]);
    let why = "the sandbox ran in the foreground: only its `penfold run` got the exit code";
    assert!(finished.err().contains(why), "{}", finished.err());
}

/// spec: 11.6
#[test]
fn time_limit_ends_the_wait_and_nothing_else() {
    let env = TestEnv::new();
    let sandbox = start(&env, &[], "sleep 1000");
    expect(&env, &["wait", "--timeout", "100ms", &sandbox.id], 124, &[]);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
}

/// spec: 11.6
#[test]
fn first_of_several_is_named() {
    let env = TestEnv::new();
    let (slow, quick) = (start(&env, &[], "sleep 1000"), start(&env, &[], "exit 6"));
    expect(&env, &["wait", "--any", &slow.id, &quick.id], 6, &[&format!("{} 6", quick.id)]);
}

/// spec: 11.6
#[test]
fn code_of_a_sandbox_that_is_removed_at_its_end_is_told() {
    let env = TestEnv::new();
    let sandbox = start(&env, &["--rm"], &format!("{UNTIL_GO} 8"));
    let waiter = begin_wait(&env, &sandbox);
    go(&env);
    told(waiter.finish(), 8, &["8"]);
    assert!(!sandbox.record.try_exists().unwrap());
}

/// spec: 11.6
#[test]
fn end_that_nobody_saw_is_unknown() {
    for flags in [&[][..], &["--on-supervisor-exit", "keep"], &["--contain", "subreaper"]] {
        let env = TestEnv::new();
        let (sandbox, members) = start_tree(&env, flags);
        let waiter = begin_wait(&env, &sandbox);
        sandbox.kill_supervisors();
        // A `wait` that begins now sees the same as one that saw the supervisors die.
        expect(&env, &["wait", "--timeout", "100ms", &sandbox.id], 124, &[]);
        assert!(waiter.is_alive(), "{flags:?}: members live");
        assert_alive(&members);
        for member in &members {
            member.signal(Signal::KILL);
        }
        let finished = told(waiter.finish(), 120, &["unknown"]);
        let said = finished.err();
        assert!(said.contains(&sandbox.id) && said.contains("no supervisor saw"), "{said}");
        assert!(members.iter().all(Process::has_ended), "{flags:?}: answered before the end");
    }
}

/// spec: 11.6
#[test]
fn sandbox_that_nobody_looks_after_is_waited_for_by_no_busy_loop() {
    let env = TestEnv::new();
    let (sandbox, _) = start_tree(&env, &["--on-supervisor-exit", "keep"]);
    sandbox.kill_supervisors();
    let waiter = env.begin(["wait", "--timeout", "500ms", &sandbox.id]);
    waiter.process().await_end();
    // Nobody has reaped it: /proc still shows what it used.
    let ticks = processor_ticks(waiter.pid());
    waiter.finish().with_code(124);
    assert!(ticks < 15, "{ticks} ticks of a hundredth of a second in half a second");
}

fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let numbers = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
    numbers.map(|number| number.parse::<u64>().unwrap()).sum()
}

/// spec: 11.6
#[test]
#[expect(clippy::disallowed_methods, reason = "the record is to be lost")]
fn record_that_is_gone_does_not_end_the_wait() {
    let env = TestEnv::new();
    let (sandbox, members) = start_tree(&env, &[]);
    let waiter = begin_wait(&env, &sandbox);
    std::fs::remove_dir_all(&sandbox.record).unwrap();
    expect(&env, &["wait", "--timeout", "100ms", &sandbox.id], 124, &[]);
    assert_alive(&members);
    assert!(waiter.is_alive());
    expect(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    let finished = waiter.finish();
    assert!(matches!(finished.code(), Some(125 | 137)), "{}", finished.err());
}

/// spec: 11.6
#[test]
fn who_waits_for_what_another_forgets_is_told_so() {
    let env = TestEnv::new();
    let sandbox = start(&env, &[], "sleep 1000");
    let waiter = begin_wait(&env, &sandbox);
    waiter.process().stop();
    sandbox.kill_supervisors();
    expect(&env, &["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    waiter.signal(Signal::CONT);
    let finished = told(waiter.finish(), 125, &[]);
    let said = finished.err();
    assert!(said.contains(&format!("no sandbox is called `{}` any more", sandbox.id)), "{said}");
}

/// spec: 11.6
#[test]
fn supervisor_that_takes_the_place_of_another_is_waited_for() {
    let env = TestEnv::new();
    let sandbox = start(&env, &["--on-supervisor-exit", "keep"], &format!("{UNTIL_GO} 4"));
    let waiter = begin_wait(&env, &sandbox);
    let inner = &sandbox.supervisors[1];
    inner.signal(Signal::KILL);
    inner.await_end();
    go(&env);
    told(waiter.finish(), 4, &["4"]);
}
