//! `penfold adopt`: strays under a handle, and who is never taken in.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support_d::{Started, USER, Yard, code, handle, has_ended, json, output, said, skip, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A tree of three whose parent is gone; gives its root.
fn leave(yard: &Yard, seconds: u32) -> Pid {
    leave_by(yard.command("bash"), yard, seconds)
}

fn leave_by(mut shell: Command, yard: &Yard, seconds: u32) -> Pid {
    // HUP makes it leave a daemon behind, and says so.
    let script = format!(
        "trap '(setsid sleep {seconds}9 &); echo hup >> {}' HUP; sleep {seconds} & setsid sleep {seconds} & wait; wait",
        yard.path("said").display()
    );
    shell.arg("-c").arg(format!("(setsid bash -c \"$SCRIPT\" root{seconds} &)")).env("SCRIPT", script);
    assert!(
        shell
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    );
    until("the tree stands", || yard.find(&format!("sleep {seconds}")).len() == 2);
    root_of(yard, seconds)
}

fn root_of(yard: &Yard, seconds: u32) -> Pid {
    let roots: Vec<Pid> = yard
        .marked()
        .into_iter()
        .filter(|(_, _, line)| {
            line.trim_end().ends_with(&format!("root{seconds}")) && line.starts_with("bash -c trap")
        })
        .map(|(pid, _, _)| pid)
        .collect();
    assert_eq!(roots.len(), 1, "{:?}", yard.marked());
    roots[0]
}

fn number(pid: Pid) -> String {
    pid.as_raw_pid().to_string()
}

fn adopt(yard: &Yard, pid: Pid, words: &[&str]) -> String {
    let done = output(yard.penfold(["adopt"]).args(words).arg(number(pid)));
    assert_eq!(code(&done), 0, "{}", said(&done));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn record(yard: &Yard, id: &str) -> PathBuf {
    yard.path("root").join("sandboxes").join(id)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_default()).unwrap_or_default()
}

/// Waits for the end; gives the report.
fn ended(record: &Path) -> Value {
    until("it has ended", || record.join("report.json").try_exists().unwrap());
    let report = read(&record.join("report.json"));
    assert_eq!((&report["exit"], &report["verified"]), (&Value::Null, &Value::Bool(true)), "{report}");
    assert_eq!(read(&record.join("exit.json"))["exit"], Value::Null, "no code is invented");
    report
}

fn supervisors(record: &Path) -> Vec<Pid> {
    let state = read(&record.join("state.json"));
    let pids = state["supervisors"].as_array().unwrap().iter();
    pids.filter_map(|one| Pid::from_raw(i32::try_from(one["pid"].as_i64()?).ok()?)).collect()
}

fn leftovers(yard: &Yard, id: &str) -> Vec<Value> {
    let found = json(&output(&mut yard.penfold(["doctor", "--json"])));
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak["id"] == id).cloned().collect()
}

#[test]
fn a_stray_gets_a_handle_and_is_killed_by_it() {
    let yard = Yard::new();
    let mut bystander = Started::of(yard.command("sleep").arg("3609"));
    let root = leave(&yard, 3601);
    let id = adopt(&yard, root, &["--name", "web", "-l", "team=a", "--ttl", "1h"]);
    let state = read(&record(&yard, &id).join("state.json"));
    assert_eq!(state["leader"]["pid"], root.as_raw_pid(), "{state}");
    assert!(state["expires_at_ms"].is_u64(), "{state}");
    let intent = read(&record(&yard, &id).join("intent.json"));
    assert_eq!(intent["name"], "web", "{intent}");
    if state["level"] == "cgroup" {
        for pid in [root].into_iter().chain(yard.find("sleep 3601")) {
            let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", number(pid))).unwrap();
            assert!(groups.contains(&format!("penfold-{id}")), "{groups}");
        }
    }
    assert!(leftovers(&yard, &id).is_empty(), "what is looked after is no leak");
    let strays = json(&output(&mut yard.penfold(["doctor", "--foreign", "--json"])));
    let strays = strays["foreign"]["strays"].as_array().unwrap().clone();
    assert!(strays.iter().all(|stray| stray["pid"] != root.as_raw_pid()), "nor a stray: {strays:?}");
    assert_eq!(code(&output(&mut yard.penfold(["kill", "-s", "HUP", "web"]))), 0);
    until("the signal has arrived", || yard.path("said").try_exists().unwrap());

    let done = output(&mut yard.penfold(["kill", "web"]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(yard.find("sleep 3601").is_empty() && yard.find("bash -c trap").is_empty());
    assert_eq!(ended(&record(&yard, &id))["cause"], "kill");
    assert!(leftovers(&yard, &id).is_empty() && bystander.is_alive());
    let events = std::fs::read_to_string(yard.path("root").join("events.jsonl")).unwrap();
    for kind in ["adopted", "stop", "exit"] {
        assert!(events.contains(&format!("\"kind\":\"{kind}\"")), "{kind}: {events}");
    }
}

#[test]
fn it_ends_with_its_root_and_takes_along_what_was_forked_since() {
    let yard = Yard::new();
    let root = leave(&yard, 3611);
    let id = adopt(&yard, root, &[]);
    if read(&record(&yard, &id).join("state.json"))["level"] == "cgroup" {
        crate::support_d::signal(root, Signal::HUP);
        until("it has left a daemon", || yard.find("sleep 36119").len() == 1);
    } else {
        skip("no cgroup2 to write to: what is forked later and loses its parent is out of reach");
    }
    crate::support_d::signal(root, Signal::KILL);
    assert_eq!(ended(&record(&yard, &id))["cause"], "exit");
    assert!(yard.find("sleep 3611").is_empty(), "what it left goes with it");
}

#[test]
fn lease_and_stop_end_it() {
    let yard = Yard::new();
    let root = leave(&yard, 3621);
    let id = adopt(&yard, root, &["--ttl", "200ms"]);
    assert_eq!(ended(&record(&yard, &id))["cause"], "ttl");
    let other = leave(&yard, 3622);
    let id = adopt(&yard, other, &[]);
    let done = output(&mut yard.penfold(["stop", &id]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert_eq!(ended(&record(&yard, &id))["cause"], "stop");
    assert!(yard.find("sleep 362").is_empty());
}

#[test]
fn death_of_a_supervisor_ends_it_and_of_both_leaves_it_to_gc() {
    let yard = Yard::new();
    for which in [0, 1] {
        let root = leave(&yard, 3631 + which);
        let id = adopt(&yard, root, &[]);
        let ours = supervisors(&record(&yard, &id));
        assert_eq!(ours.len(), 2);
        crate::support_d::signal(ours[usize::try_from(which).unwrap()], Signal::KILL);
        assert_eq!(ended(&record(&yard, &id))["cause"], "supervisor", "{which}");
        assert!(yard.find(&format!("sleep {}", 3631 + which)).is_empty(), "{which}");
    }
    let root = leave(&yard, 3633);
    let id = adopt(&yard, root, &[]);
    if read(&record(&yard, &id).join("state.json"))["level"] != "cgroup" {
        return skip("no cgroup2 to write to: without its supervisors nothing of it is known");
    }
    let handles: Vec<_> = supervisors(&record(&yard, &id)).into_iter().map(handle).collect();
    for pidfd in &handles {
        rustix::process::pidfd_send_signal(pidfd, Signal::STOP).unwrap();
    }
    for pidfd in handles.iter().rev() {
        rustix::process::pidfd_send_signal(pidfd, Signal::KILL).unwrap();
    }
    until("both are dead", || handles.iter().all(has_ended));
    let done = output(&mut yard.penfold(["gc", &id]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(yard.find("sleep 3633").is_empty());
}

#[test]
fn a_tree_that_cannot_be_moved_is_held_by_descent() {
    let yard = Yard::new();
    let root_dir = yard.path("users");
    std::fs::create_dir(&root_dir).unwrap();
    let mut penfold = match yard.penfold_as_user(&["--root"]) {
        Ok(command) => command,
        Err(reason) => return skip(reason),
    };
    std::os::unix::fs::chown(&root_dir, Some(USER), Some(USER)).unwrap();
    let mut shell = yard.command("bash");
    shell.uid(USER).gid(USER);
    let root = leave_by(shell, &yard, 3641);
    let done = output(penfold.arg(&root_dir).arg("adopt").arg(number(root)));
    assert_eq!(code(&done), 0, "{}", said(&done));
    let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
    let record = root_dir.join("sandboxes").join(&id);
    assert_eq!(read(&record.join("state.json"))["level"], "tree");
    let mut again = yard.command(yard.path("penfold"));
    again.uid(USER).gid(USER).arg("--root").arg(&root_dir).arg("adopt").arg(number(root));
    let again = output(&mut again);
    assert_eq!(code(&again), 2, "it has a handle: {}", said(&again));
    crate::support_d::signal(root, Signal::KILL);
    assert_eq!(ended(&record)["level"], "tree");
    assert!(yard.find("sleep 3641").is_empty());
}

#[test]
fn who_is_never_taken_in_is_refused_and_left_alone() {
    let yard = Yard::new();
    let refused = |pid: &str, expected: i32| {
        let done = output(&mut yard.penfold(["adopt", pid]));
        assert_eq!(code(&done), expected, "{pid}: {}", said(&done));
        assert!(done.stdout.is_empty());
    };
    refused("1", 2);
    refused(&std::process::id().to_string(), 2);
    refused("0", 2);
    refused("x", 2);
    let mut gone = Started::of(&mut yard.command("true"));
    let number_of_gone = number(gone.pid());
    gone.child.wait().unwrap();
    refused(&number_of_gone, 3);
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused("2", 2);
    }
    let done = output(&mut yard.penfold(["run", "-d", "--", "sleep", "3651"]));
    let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
    until("it runs", || yard.find("sleep 3651").len() == 1);
    refused(&number(yard.find("sleep 3651")[0]), 2);
    for supervisor in supervisors(&record(&yard, &id)) {
        refused(&number(supervisor), 2);
    }
    let root = leave(&yard, 3652);
    adopt(&yard, root, &["--name", "one"]);
    refused(&number(root), 2);
    refused(&number(yard.find("sleep 3652")[0]), 2);
    let other = leave(&yard, 3653);
    let taken = output(&mut yard.penfold(["adopt", "--name", "one", &number(other)]));
    assert!(code(&taken) == 1 && said(&taken).contains("is taken"), "{}", said(&taken));
    assert!(!has_ended(&handle(other)), "it is left as it was");
    assert_eq!((yard.find("sleep 3651").len(), yard.find("sleep 3653").len()), (1, 2));
    if let Ok(mut command) = yard.penfold_as_user(&["adopt", &number(other)]) {
        let done = output(&mut command);
        assert_eq!(code(&done), 7, "{}", said(&done));
    }
}
