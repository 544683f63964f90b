//! A process is killed at each step of a creation, and another releases what it left.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_resource::{Owner, Planned, Presence};

use crate::support::{Sandbox, as_root, attempt};

/// The program that is killed: makes what its arguments describe.
pub fn create() {
    let mut words = std::env::args().skip(2);
    let owner = Owner { id: words.next().unwrap(), boot: words.next().unwrap() };
    let planned: Vec<Planned> = serde_json::from_str(&words.next().unwrap()).unwrap();
    for planned in planned {
        planned.create(&owner).unwrap();
    }
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
            let written = serde_json::to_string(&sandbox.planned).unwrap();
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["create-resources", &sandbox.owner.id, &sandbox.owner.boot, &written])
                .env("PENFOLD_CRASH_AT", point)
                .stdin(Stdio::null())
                .status()
                .unwrap();
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
        assert_eq!(sandbox.planned[1].probe(&sandbox.owner).unwrap(), Presence::Absent);
        let until = Instant::now() + Duration::from_secs(10);
        sandbox.planned[0].release(&sandbox.owner, until).unwrap();
    });
}
