//! A process is killed at each step of a creation, and another releases what it left.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_resource::{PlannedResource, ResourceOwner, ResourcePresence};

use crate::support::{Holder, Sandbox, as_root, attempt, has};

fn arguments() -> (ResourceOwner, Vec<PlannedResource>) {
    let mut words = std::env::args().skip(2);
    let owner = ResourceOwner { id: words.next().unwrap(), boot: words.next().unwrap() };
    (owner, serde_json::from_str(&words.next().unwrap()).unwrap())
}

/// A program that is killed: makes what its arguments describe.
pub fn create() {
    let (owner, planned) = arguments();
    for planned in planned {
        planned.create(&owner).unwrap();
    }
}

/// A program that is killed or stopped: releases what its arguments describe, and prints the errors.
#[expect(clippy::print_stdout, reason = "the test reads this")]
pub fn release() {
    let (owner, planned) = arguments();
    for planned in planned.iter().rev() {
        if let Err(error) = planned.release(&owner, Instant::now() + Duration::from_secs(1)) {
            println!("{error}");
        }
    }
}

/// Starts one of the programs above on the resources of a sandbox.
fn command(program: &str, sandbox: &Sandbox) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let written = serde_json::to_string(&sandbox.planned).unwrap();
    command.args([program, &sandbox.owner.id, &sandbox.owner.boot, &written]).stdin(Stdio::null());
    command
}

const REQUEST: &str = r#"{"workspace":{"path":"DIR/w"},"sockets":{},
    "network":{"address":"ADDRESS","tap":{}},
    "mounts":[{"type":"overlay","lower":["DIR/lower"],"target":"DIR/w"},
        {"type":"bind","source":"DIR/lower","target":"DIR/b"},{"type":"tmpfs","target":"DIR/t"}]}"#;

#[test]
fn a_creation_that_is_killed_at_any_step_is_released() {
    as_root(|| {
        for point in [
            "directory-made",
            "directory-marked",
            "directory-named",
            "netns-made",
            "netns-numbered",
            "netns-file-made",
            "veth-made",
            "veth-marked",
            "veth-moved",
            "veth-up",
            "tap-made",
            "tap-kept",
            "mount-bound",
            "mount-made",
            "",
        ] {
            let mut sandbox = Sandbox::new();
            std::fs::create_dir(sandbox.path("lower")).unwrap();
            let address = format!("fd00:{:x}::2/64", std::process::id() & 0xffff);
            sandbox.planned = sandbox.try_plan(&REQUEST.replace("ADDRESS", &address)).unwrap();
            let status =
                command("create-resources", &sandbox).env("PENFOLD_CRASH_AT", point).status().unwrap();
            assert_eq!(status.signal().unwrap_or(0), if point.is_empty() { 0 } else { 9 }, "{point}");
            sandbox.release_all();
            let mut left: Vec<_> = std::fs::read_dir(sandbox.dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            left.sort();
            left.retain(|name| name != "short");
            assert_eq!(left, ["lower"], "{point}");
            assert!(!attempt(&["ip", "link", "show"]).0.contains(&sandbox.owner.id), "{point}");
            assert!(!attempt(&["ip", "netns", "list"]).0.contains(&sandbox.owner.id), "{point}");
        }
    });
}

#[test]
fn a_failed_creation_leaves_nothing() {
    as_root(|| {
        // Somebody has taken the name of the inner end.
        let sandbox = Sandbox::plan(r#"{"network":{"address":"10.213.7.2/30"}}"#);
        sandbox.planned[0].create(&sandbox.owner).unwrap();
        let name = sandbox.netns();
        let (_, made) = attempt(&["ip", "-n", &name, "link", "add", "eth0", "type", "veth"]);
        assert!(made);
        sandbox.planned[1].create(&sandbox.owner).unwrap_err();
        assert_eq!(sandbox.planned[1].probe(&sandbox.owner).unwrap(), ResourcePresence::Absent);
        let until = Instant::now() + Duration::from_secs(10);
        sandbox.planned[0].release(&sandbox.owner, until).unwrap();
    });
}

#[test]
fn a_release_that_is_killed_at_any_step_is_repeated() {
    as_root(|| {
        for point in
            ["directory-found", "directory-cleared", "netns-unnamed", "mount-unmounted", "link-deleted"]
        {
            let mut sandbox = Sandbox::new();
            std::fs::create_dir(sandbox.path("lower")).unwrap();
            let address = format!("fd01:{:x}::2/64", std::process::id() & 0xffff);
            sandbox.planned = sandbox.try_plan(&REQUEST.replace("ADDRESS", &address)).unwrap();
            sandbox.create();
            std::fs::write(sandbox.path("w/made"), "").unwrap();
            let status =
                command("release-resources", &sandbox).env("PENFOLD_CRASH_AT", point).status().unwrap();
            assert_eq!(status.signal(), Some(9), "{point}");
            sandbox.release_all();
            assert!(!attempt(&["ip", "link", "show"]).0.contains(&sandbox.owner.id), "{point}");
            assert!(!attempt(&["ip", "netns", "list"]).0.contains(&sandbox.owner.id), "{point}");
        }
    });
}

#[test]
fn a_releaser_in_another_network_namespace_sees_as_much() {
    as_root(|| {
        if !has("unshare") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"address":"fd02::2/64","tap":{}}}"#);
        sandbox.create();
        let holder = Holder::shell(&format!("exec 7</run/netns/{}", sandbox.netns()));
        let inner = command("release-resources", &sandbox);
        let mut outer = Command::new("unshare");
        outer.arg("-n").arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
        let output = String::from_utf8(outer.output().unwrap().stdout).unwrap();
        assert!(output.contains(&format!("(pid {})", holder.pid())), "{output}");
        drop(holder);
        let output = String::from_utf8(outer.output().unwrap().stdout).unwrap();
        assert_eq!(output, "");
        for planned in &sandbox.planned {
            assert_eq!(planned.probe(&sandbox.owner).unwrap(), ResourcePresence::Absent, "{planned:?}");
        }
    });
}

#[test]
fn a_directory_that_is_swapped_for_a_link_while_it_is_removed_goes_and_the_link_is_not_followed() {
    let sandbox = Sandbox::plan(r#"{"workspace":{"path":"DIR/w"}}"#);
    sandbox.create();
    let (w, moved, precious) = (sandbox.path("w"), sandbox.path("moved"), sandbox.path("precious"));
    std::fs::write(w.join("file"), "x").unwrap();
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "x").unwrap();
    let mut child = command("release-resources", &sandbox)
        .env("PENFOLD_STOP_AT", "directory-found")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    penfold_testkit::wait_until("the release stops", || {
        std::fs::read_to_string(&stat).unwrap().rsplit(") ").next().unwrap().starts_with('T')
    });
    std::fs::rename(&w, &moved).unwrap();
    std::os::unix::fs::symlink(&precious, &w).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::CONT).unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    assert!(output.contains("something else has taken the place"), "{output}");
    assert!(!moved.try_exists().unwrap());
    assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
}
