//! `penfold gc` and `penfold doctor` on what belongs to another state root or another user.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support_d::{Directory, Started, Yard, code, fresh_id, handle, jailed, json, output, said, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Starts a detached sandbox below another root that is to outlive its supervisors, and kills both at once; gives the id.
fn keep(yard: &Yard, root: &Path, contain: &str, seconds: &str) -> String {
    let mut command = yard.command(env!("CARGO_BIN_EXE_penfold"));
    command.arg("--root").arg(root).args(["run", "-d", "--on-supervisor-exit", "keep", "--scratch"]);
    let script = format!("cd /; setsid sleep {seconds} & exec sleep {seconds}");
    let done = output(command.args(["--contain", contain, "--", "sh", "-c", &script]));
    assert_eq!(code(&done), 0, "{}", said(&done));
    let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
    until("the members run", || alive(yard, seconds) == 2);
    let text = std::fs::read(root.join("sandboxes").join(&id).join("state.json")).unwrap();
    let of: Value = serde_json::from_slice(&text).unwrap();
    let pids = of["supervisors"].as_array().unwrap().iter();
    let ours: Vec<Pid> = pids
        .map(|one| Pid::from_raw(i32::try_from(one["pid"].as_i64().unwrap()).unwrap()).unwrap())
        .collect();
    assert_eq!(ours.len(), 2);
    crate::support_d::kill_at_once(&ours);
    assert_eq!(alive(yard, seconds), 2);
    id
}

fn alive(yard: &Yard, seconds: &str) -> usize {
    yard.find(&format!("sleep {seconds}")).len()
}

fn of<'a>(found: &'a Value, id: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak["id"] == id).collect()
}

fn doctor(yard: &Yard) -> Value {
    json(&output(&mut yard.penfold(["doctor", "--json"])))
}

fn scratch(yard: &Yard, id: &str) -> PathBuf {
    yard.path("tmp").join(format!("penfold-{id}"))
}

#[test]
fn what_another_state_root_keeps_is_neither_shown_nor_ended() {
    jailed(|| {
        let yard = Yard::new();
        let root = yard.path("another");
        let id = keep(&yard, &root, "cgroup", "3501");
        assert!(scratch(&yard, &id).is_dir());
        let found = doctor(&yard);
        assert!(of(&found, &id).is_empty(), "{found}");
        let dry = output(&mut yard.penfold(["gc", "-n", "--older-than", "0", "--json"]));
        assert!(of(&json(&dry), &id).is_empty(), "{}", json(&dry));
        let all = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--json"]));
        assert!(of(&json(&all), &id).is_empty() && code(&all) == 0, "{}", json(&all));
        let named = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", &id]));
        assert_eq!(code(&named), 3, "{}", said(&named));
        assert_eq!(alive(&yard, "3501"), 2);
        assert!(scratch(&yard, &id).is_dir());

        let mut there = yard.command(env!("CARGO_BIN_EXE_penfold"));
        let done = output(there.arg("--root").arg(&root).args(["gc", &id]));
        assert_eq!(code(&done), 0, "{}", said(&done));
        assert_eq!(alive(&yard, "3501"), 0);
    });
}

#[test]
fn what_may_belong_to_another_state_root_is_ended_only_by_its_id() {
    jailed(|| {
        for (contain, seconds) in [("subreaper", "3511"), ("cgroup", "3512")] {
            let yard = Yard::new();
            let root = yard.path("another");
            let id = keep(&yard, &root, contain, seconds);
            if contain == "cgroup" {
                // The label names a record that is not there.
                std::fs::rename(&root, yard.path("moved")).unwrap();
            }
            let found = doctor(&yard);
            let leaks = of(&found, &id);
            assert!(leaks.iter().any(|leak| leak["kind"] == "processes"), "{found}");
            assert!(leaks.iter().any(|leak| leak["kind"] == "directory"), "{found}");
            assert_eq!(leaks.iter().any(|leak| leak["kind"] == "cgroup"), contain == "cgroup", "{found}");
            let text = output(&mut yard.penfold(["doctor"]));
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            assert!(text.contains("perhaps one below another state root"), "{text}");
            assert!(text.contains(&format!("gc --older-than 0 {id}")), "{text}");

            let kept = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--json"]));
            let found = json(&kept);
            assert_eq!(code(&kept), 0, "{found}");
            assert!(of(&found, &id).iter().all(|leak| leak["outcome"] == "kept"), "{found}");
            assert!(of(&found, &id)[0]["reason"].as_str().unwrap().contains(&format!("gc {id}")), "{found}");
            assert_eq!(alive(&yard, seconds), 2, "{contain}");
            assert!(scratch(&yard, &id).is_dir());

            let done = output(&mut yard.penfold(["gc", "--older-than", "0", &id]));
            assert_eq!(code(&done), 0, "{}", said(&done));
            assert_eq!(alive(&yard, seconds), 0, "{contain}");
            assert!(!scratch(&yard, &id).try_exists().unwrap());
            assert!(of(&doctor(&yard), &id).is_empty());
        }
    });
}

/// An orphan of an ordinary user that carries a marker.
fn stray(yard: &Yard, id: &str, seconds: &str) -> Pid {
    let mut command = yard.command("sh");
    command.args(["-c", &format!("sleep {seconds} & :")]).env("PENFOLD_SANDBOX", id);
    command
        .uid(crate::support_d::USER)
        .gid(crate::support_d::USER)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Started::of(&mut command).child.wait().unwrap();
    until("it runs", || alive(yard, seconds) == 1);
    yard.find(&format!("sleep {seconds}"))[0]
}

#[test]
fn orphans_of_another_user_are_left_to_that_user() {
    jailed(|| {
        let yard = Yard::new();
        let (bare, leafed) = (fresh_id(), fresh_id());
        stray(&yard, &bare, "3521");
        let member = stray(&yard, &leafed, "3522");
        let place = penfold_cgroup::Place::find_here().unwrap();
        let leaf = Directory::make(place.path().join(format!("penfold-{leafed}"))).unwrap();
        std::os::unix::fs::chown(leaf.path(), Some(crate::support_d::USER), Some(crate::support_d::USER))
            .unwrap();
        std::fs::write(leaf.path().join("cgroup.procs"), member.as_raw_pid().to_string()).unwrap();

        let found = doctor(&yard);
        assert!(of(&found, &bare).is_empty() && of(&found, &leafed).is_empty(), "{found}");
        let done = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--json"]));
        assert!(
            of(&json(&done), &bare).is_empty() && of(&json(&done), &leafed).is_empty(),
            "{}",
            json(&done)
        );
        for id in [&bare, &leafed] {
            assert_eq!(code(&output(&mut yard.penfold(["gc", "-f", "--older-than", "0", id]))), 3);
        }
        assert_eq!((alive(&yard, "3521"), alive(&yard, "3522")), (1, 1));
        let member = handle(member);
        rustix::process::pidfd_send_signal(&member, Signal::KILL).unwrap();
        until("its leaf is empty", || std::fs::read(leaf.path().join("cgroup.procs")).unwrap().is_empty());
    });
}
