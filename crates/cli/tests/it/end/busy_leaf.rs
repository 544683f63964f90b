//! The kernel refuses to remove a leaf that looks empty: penfold reports that, and goes on until the leaf is gone.

use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags};

use super::standing::await_verified;
use crate::observe::metrics;
use crate::support::{PATIENCE, Sandbox, TestEnv, is_root, skip, wait_until};

fn detached(env: &TestEnv) -> (Sandbox, PathBuf) {
    let words =
        ["--contain", "cgroup", "--patience", PATIENCE, "--", "sh", "-c", "sleep 1000 & exec sleep 1000"];
    let sandbox = env.detach(words);
    let leaf = sandbox.leaf.clone().unwrap();
    assert!(leaf.is_dir());
    wait_until("both run", || env.running("sleep 1000").len() == 2);
    (sandbox, leaf)
}

/// A mount on a cgroup inside.
struct Held(PathBuf);

impl Held {
    fn on(path: PathBuf) -> Held {
        std::fs::create_dir(&path).unwrap();
        rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), None).unwrap();
        Held(path)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::empty());
    }
}

/// spec: 7.3
#[test]
fn a_leaf_that_cannot_be_removed_is_reported_and_gone_once_it_is_let_go() {
    if !is_root() {
        return skip("only root may mount");
    }
    let env = TestEnv::new();
    let (sandbox, leaf) = detached(&env);
    let held = Held::on(leaf.join("held"));
    let done = env.call(["kill", "--patience", PATIENCE, &sandbox.id]).with_code(5);
    assert!(done.err().contains(&format!("not gone: cgroup {}", leaf.display())), "{}", done.err());
    assert!(env.running("sleep 1000").is_empty());
    assert_eq!(sandbox.status(&env).as_deref(), Some("unkillable"));
    drop(held);
    await_verified(&sandbox);
    assert!(!leaf.try_exists().unwrap());
    let report = sandbox.file("report.json").unwrap();
    let busy = &report["busy"];
    assert_eq!(busy["path"], leaf.to_str().unwrap(), "{report}");
    assert_eq!(busy["errno"], 16);
    assert!(busy["tries"].as_u64().unwrap() > 1 && busy["took_us"].as_u64().unwrap() > 100_000, "{busy}");
    let words = ["events", "--no-follow", "--since", "1h", "--filter", "event=rmdir-busy", "--json"];
    let events = env.call(words).with_code(0).out();
    let events: Vec<&str> = events.lines().collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains(leaf.to_str().unwrap()) && events[0].contains("\"errno\":16"), "{events:?}");
    // The answer of `kill` counts, and not the later end too.
    wait_until("it is counted", || metrics::ended(&env, "detached", "kill") == metrics::of(0, 1));
    assert_eq!(metrics::number(&env, "penfold_rmdir_busy_total"), "1");
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// Processes from outside keep entering the leaf while it is removed.
/// spec: 7.3
#[test]
fn processes_that_keep_entering_are_killed_until_the_leaf_is_gone() {
    if !is_root() {
        return skip("only root may enter the leaf of another");
    }
    let env = TestEnv::new();
    let (sandbox, leaf) = detached(&env);
    let script = format!(
        "for i in $(seq 300); do [ -d {leaf} ] || break; sh -c 'echo $$ > {leaf}/cgroup.procs && exec sleep 1001' & done \
         2>/dev/null; wait",
        leaf = leaf.display()
    );
    let entering = env.shell(&script);
    wait_until("one has entered", || !env.running("sleep 1001").is_empty());
    let done = env.call(["kill", "--patience", PATIENCE, &sandbox.id]);
    assert!([Some(0), Some(5)].contains(&done.code()), "{}", done.err());
    await_verified(&sandbox);
    assert!(!leaf.try_exists().unwrap());
    entering.finish();
    assert!(env.running("sleep 1001").is_empty() && env.running("sleep 1000").is_empty());
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}
