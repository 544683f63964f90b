//! `penfold adopt`: strays become sandboxes; penfold refuses some processes.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::sandboxes::await_running;
use crate::support::{Finished, Process, Running, Sandbox, TestEnv, USER, Who, is_root, skip, wait_until};

/// A tree of three whose parent is gone; gives its root and the other two.
#[track_caller]
fn leave(env: &TestEnv, seconds: u32) -> (Process, Vec<Process>) {
    leave_by(env.command("bash"), env, seconds)
}

#[track_caller]
fn leave_by(mut shell: Command, env: &TestEnv, seconds: u32) -> (Process, Vec<Process>) {
    // HUP makes the root leave a daemon.
    let script = format!(
        "trap '(setsid sleep {seconds}9 &); echo hup >> $UP' HUP; sleep {seconds} & setsid sleep {seconds} & wait; wait"
    );
    shell.arg("-c").arg(format!("(setsid bash -c \"$SCRIPT\" root{seconds} &)")).env("SCRIPT", script);
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    Running::spawn(&mut shell).finish().with_code(0);
    let sleep = format!("sleep {seconds}");
    wait_until("the tree stands", || env.running(&sleep).len() == 2);
    let mut roots = env.find("bash -c trap");
    roots.retain(|process| process.command_line().trim_end().ends_with(&format!("root{seconds}")));
    let [root] = roots.try_into().expect("one root");
    (root, env.running(&sleep))
}

#[track_caller]
fn adopt(env: &TestEnv, process: &Process, flags: &[&str]) -> Sandbox {
    let pid = process.pid().to_string();
    let printed = env.call([&["adopt"], flags, &[pid.as_str()]].concat()).with_code(0).out();
    Sandbox::printed(env, &printed)
}

/// Waits for the end; gives the cause. No code is invented, and all processes have ended.
#[track_caller]
fn cause(sandbox: &Sandbox, members: &[&Process]) -> String {
    let report = sandbox.await_end();
    assert_eq!((&report["exit"], &report["verified"]), (&Value::Null, &Value::Bool(true)), "{report}");
    assert_eq!(sandbox.file("exit.json").unwrap()["exit"], Value::Null);
    assert!(members.iter().all(|process| process.has_ended()), "members are alive: {report}");
    sandbox.assert_gone(&[]);
    report["cause"].as_str().unwrap().to_owned()
}

fn is_in_a_leaf(sandbox: &Sandbox) -> bool {
    sandbox.file("state.json").unwrap()["level"] == "cgroup"
}

/// The pids that `doctor --foreign` lists as strays.
fn foreign_strays(env: &TestEnv) -> Vec<i64> {
    let found = env.call(["doctor", "--foreign", "--json"]).json();
    let strays = found["foreign"]["strays"].as_array().unwrap();
    strays.iter().filter_map(|stray| stray["pid"].as_i64()).collect()
}

/// Whether `doctor` lists anything of a sandbox as a leak.
fn is_leak(env: &TestEnv, sandbox: &Sandbox) -> bool {
    let found = env.call(["doctor", "--json"]).json();
    found["leaks"].as_array().unwrap().iter().any(|leak| leak["id"] == sandbox.id.as_str())
}

/// spec: 5.12
#[test]
fn a_stray_gets_a_handle_and_is_killed_by_it() {
    let env = TestEnv::new();
    // `doctor` takes the children of a process of this name, which the kernel gives to this test, for orphans.
    std::fs::write("/proc/self/comm", "tini").unwrap();
    let bystander = Running::start(env.command("sleep").arg("3609"));
    let (root, others) = leave(&env, 3601);
    // To an ordinary user, `doctor` lists no process with an ancestor that this user may not look at.
    let is_root = is_root();
    assert!(foreign_strays(&env).contains(&root.pid().into()) || !is_root);
    let sandbox = adopt(&env, &root, &["--name", "web", "-l", "team=a", "--ttl", "1h"]);
    let state = sandbox.file("state.json").unwrap();
    assert_eq!(state["leader"]["pid"], root.pid(), "{state}");
    assert!(state["expires_at_ms"].is_u64(), "{state}");
    let intent = sandbox.file("intent.json").unwrap();
    assert_eq!(intent["name"], "web", "{intent}");
    let members: Vec<&Process> = others.iter().chain([&root]).collect();
    let in_leaf = is_in_a_leaf(&sandbox);
    if in_leaf {
        for process in &members {
            let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid())).unwrap();
            assert!(groups.contains(&format!("penfold-{}", sandbox.id)), "{groups}");
        }
    }
    assert!(!is_leak(&env, &sandbox), "it has supervisors");
    assert!(!foreign_strays(&env).contains(&root.pid().into()), "it has a handle");
    env.call(["kill", "-s", "HUP", "web"]).with_code(0);
    env.await_up(&["hup"]);

    env.call(["kill", "web"]).with_code(0);
    // Without a leaf, an orphan that is forked later is not found.
    assert!(!in_leaf || env.find("sleep 3601").is_empty(), "the daemon is alive");
    assert_eq!(cause(&sandbox, &members), "kill");
    assert!(!is_leak(&env, &sandbox) && bystander.is_alive());
    let events = std::fs::read_to_string(env.path("root/events.jsonl")).unwrap();
    for kind in ["adopted", "stop", "exit"] {
        assert!(events.contains(&format!("\"kind\":\"{kind}\"")), "{kind}: {events}");
    }
}

/// spec: 5.12
#[test]
fn it_ends_with_its_root_and_takes_along_what_was_forked_since() {
    let env = TestEnv::new();
    let (root, mut members) = leave(&env, 3611);
    let sandbox = adopt(&env, &root, &[]);
    if is_in_a_leaf(&sandbox) {
        root.signal(Signal::HUP);
        members.extend(await_running(&env, &["sleep 36119"]));
    } else {
        skip("no cgroup2 to write to: an orphan that is forked later is not found");
    }
    root.signal(Signal::KILL);
    assert_eq!(cause(&sandbox, &members.iter().collect::<Vec<_>>()), "exit");
}

/// spec: 5.12
#[test]
fn lease_and_stop_end_it() {
    let env = TestEnv::new();
    let (root, members) = leave(&env, 3621);
    let sandbox = adopt(&env, &root, &["--ttl", "200ms"]);
    let members: Vec<&Process> = members.iter().chain([&root]).collect();
    assert_eq!(cause(&sandbox, &members), "ttl");
    let (root, members) = leave(&env, 3622);
    let sandbox = adopt(&env, &root, &[]);
    let members: Vec<&Process> = members.iter().chain([&root]).collect();
    sandbox.call(&env, &["stop", "ID"]).with_code(0);
    assert_eq!(cause(&sandbox, &members), "stop");
}

/// spec: 5.12
#[test]
fn death_of_a_supervisor_ends_it_and_of_both_leaves_it_to_gc() {
    let env = TestEnv::new();
    for (killed, seconds) in [(0, 3631), (1, 3632)] {
        let (root, members) = leave(&env, seconds);
        let sandbox = adopt(&env, &root, &[]);
        let members: Vec<&Process> = members.iter().chain([&root]).collect();
        assert_eq!(sandbox.supervisors.len(), 2);
        sandbox.supervisors[killed].signal(Signal::KILL);
        assert_eq!(cause(&sandbox, &members), "supervisor", "{killed}");
    }
    let (root, members) = leave(&env, 3633);
    let sandbox = adopt(&env, &root, &[]);
    if !is_in_a_leaf(&sandbox) {
        return skip("no cgroup2 to write to: nothing but its supervisors knows it");
    }
    sandbox.kill_supervisors();
    assert!(!members.iter().any(Process::has_ended));
    sandbox.call(&env, &["gc", "ID"]).with_code(0);
    assert!(members.iter().chain([&root]).all(Process::has_ended));
}

/// spec: 14.3
#[test]
fn forged_end_is_replaced_after_a_takeover() {
    let env = TestEnv::new();
    let (root, members) = leave(&env, 3634);
    let sandbox = adopt(&env, &root, &[]);
    let forged = r#"{"schema":1,"exit":{"code":0},"cause":"exit","at_ms":1}"#;
    std::fs::write(sandbox.record.join("exit.json"), forged).unwrap();
    sandbox.supervisors[1].signal(Signal::KILL);
    let members: Vec<&Process> = members.iter().chain([&root]).collect();
    assert_eq!(cause(&sandbox, &members), "supervisor");
    let missing = sandbox.file("report.json").unwrap()["missing"].to_string();
    assert!(missing.contains("exit.json"), "{missing}");
}

/// spec: 5.12
#[test]
fn a_tree_that_cannot_be_moved_is_held_by_descent() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let mut shell = env.command("bash");
    shell.uid(USER).gid(USER);
    let (root, members) = leave_by(shell, &env, 3641);
    let sandbox = adopt(&env, &root, &[]);
    assert_eq!(sandbox.file("state.json").unwrap()["level"], "tree");
    // It has a handle already.
    env.call(["adopt", &root.pid().to_string()]).with_code(2);
    root.signal(Signal::KILL);
    assert_eq!(cause(&sandbox, &members.iter().collect::<Vec<_>>()), "exit");
    assert_eq!(sandbox.file("report.json").unwrap()["level"], "tree");
}

/// spec: 5.12
#[test]
fn process_that_may_not_be_adopted_is_refused_and_left_alone() {
    let env = TestEnv::new();
    let ask = |pid: &str| env.call(["adopt", pid]);
    let refused = |pid: i32| refusal(ask(&pid.to_string()), 2);
    for number in ["1", "0", "x"] {
        refusal(ask(number), 2);
    }
    refused(std::process::id().try_into().unwrap());
    let gone = Running::start(&mut env.command("true"));
    let number = gone.pid().to_string();
    gone.finish();
    refusal(ask(&number), 3);
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(2);
    }
    let sandbox = env.detach(["--", "sleep", "3651"]);
    let members = await_running(&env, &["sleep 3651"]);
    for process in members.iter().chain(&sandbox.supervisors) {
        refused(process.pid());
    }
    let (root, others) = leave(&env, 3652);
    let adopted = adopt(&env, &root, &["--name", "one"]);
    refused(root.pid());
    if is_in_a_leaf(&adopted) {
        for process in &others {
            refused(process.pid());
        }
    } else {
        skip("no cgroup2 to write to: nothing but its root shows that a tree was adopted");
    }
    let (other, others) = leave(&env, 3653);
    let number = other.pid().to_string();
    let error = refusal(env.call(["adopt", "--name", "one", &number]), 1);
    assert!(error.contains("is taken"), "{error}");
    if is_root()
        && let Some(foreign) = TestEnv::of(Who::Plain)
    {
        refusal(foreign.call(["adopt", &number]), 7);
    }
    let mut untouched = members.iter().chain(&others).chain([&other]);
    assert!(untouched.all(|process| !process.has_ended()));
}

/// Checks the code, and that no id is printed; gives the error.
#[track_caller]
fn refusal(finished: Finished, code: i32) -> String {
    let finished = finished.with_code(code);
    assert_eq!(finished.out(), "");
    finished.err()
}
