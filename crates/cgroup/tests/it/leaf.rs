//! One leaf on the real kernel.

use penfold_testkit::wait_until;
use std::io;
use std::time::{Duration, Instant};

use crate::support::{Cleanup, gone, members, name, notified, place, state};
use penfold_cgroup::{CgroupError, Leaf, LeafPlace};
use penfold_process::ProcFs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// spec: 1.5
#[test]
fn kill_ends_setsid_grandchild_and_spares_the_neighbour() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    let neighbour = Leaf::create(&place, &name()).expect("another leaf");
    let mut neighbours = Cleanup::of(&neighbour);
    let bystander = neighbours.spawn("", "exec sleep 1000");
    members(&neighbour, 1);

    // The process whose parent exits is started first: it counts as a fourth only while the others live.
    cleanup.spawn("", "(sleep 1000 &) ; setsid sleep 1000 & sleep 1000 & wait");
    let pids = members(&leaf, 4);
    assert!(leaf.populated().expect("events"));
    let mut proc = ProcFs::open().expect("/proc");
    for pid in &pids {
        let text = proc.cgroups(*pid).expect("cgroup").expect("alive");
        assert!(leaf.holds(&text), "{} does not hold {}", leaf.cgroup(), text.escape_ascii());
        assert!(!neighbour.holds(&text));
    }

    let killed = leaf.kill().expect("a kill");
    wait_until("empty", || !killed.populated().expect("events"));
    for pid in pids {
        assert!(matches!(state(pid), 'Z' | 'X' | ' '), "{pid} lives");
    }
    killed.remove().expect("an empty leaf can be removed");
    wait_until("the neighbour sleeps", || state(bystander) == 'S');
}

#[test]
fn events_notify_when_the_last_one_leaves() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    assert!(!leaf.populated().expect("events"));
    cleanup.spawn("", "exec sleep 1000");
    members(&leaf, 1);
    wait_until("populated", || leaf.populated().expect("events"));
    leaf.make_ready();
    let killed = leaf.kill().expect("a kill");
    while killed.populated().expect("events") {
        assert!(notified(&killed, crate::support::DEADLINE), "no notification");
    }
    killed.remove().expect("an empty leaf can be removed");
}

/// spec: 2.1
#[test]
fn a_removed_leaf_is_empty_and_not_found() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let cleanup = Cleanup::of(&leaf);
    let again = Leaf::open(leaf.path()).expect("open").expect("there");
    assert_eq!(again.cgroup(), leaf.cgroup());
    leaf.remove().expect("an empty leaf");
    assert!(!again.populated().expect("a removed leaf is empty"));
    let mut pids = Vec::new();
    again.processes(&mut pids).expect("a removed leaf has nobody");
    assert!(pids.is_empty());
    assert!(Leaf::open(&cleanup.path).expect("open").is_none());
    let killed = again.kill().expect("nobody to kill");
    killed.remove().expect("removed already");
}

/// spec: 3.4
#[test]
fn create_refuses_what_exists_and_what_is_no_name() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    let last = leaf.path().file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    match Leaf::create(&place, &last) {
        Err(CgroupError::Create { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::AlreadyExists),
        other => panic!("{other:?}"),
    }
    for name in ["", ".", "..", "a/b", "/", "a\nb"] {
        assert!(matches!(Leaf::create(&place, name), Err(CgroupError::Name { .. })), "{name:?}");
    }
}

/// spec: 3.4
#[test]
fn open_refuses_links_and_other_file_systems() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    let link = std::env::temp_dir().join(name());
    std::os::unix::fs::symlink(leaf.path(), &link).expect("a link");
    let through = Leaf::open(&link);
    let below = Leaf::open(&link.join("x"));
    std::fs::remove_file(&link).expect("the link");
    assert!(matches!(through, Err(CgroupError::Open { .. })), "{through:?}");
    assert!(matches!(below, Err(CgroupError::Open { .. })), "{below:?}");
    assert!(matches!(Leaf::open(&std::env::temp_dir()), Err(CgroupError::NotCgroup2 { .. })));
}

/// spec: 1.6
#[test]
fn remove_takes_deep_and_wide_subtrees() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    let mut deep = leaf.path().to_owned();
    for _ in 0..200 {
        deep.push("d");
        std::fs::create_dir(&deep).expect("room");
    }
    for n in 0..100 {
        std::fs::create_dir(leaf.path().join(format!("w{n}"))).expect("room");
    }
    leaf.remove().expect("nobody is in it");
}

/// spec: 2.1
#[test]
fn remove_says_what_is_in_the_way() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    let below = leaf.path().join("a/b");
    std::fs::create_dir_all(&below).expect("room");
    cleanup.spawn("/a/b", "exec sleep 1000");
    members(&leaf, 1);
    let failed = leaf.remove().expect_err("somebody is in it");
    assert_eq!(failed.source.kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(failed.path, below);
    gone(failed.leaf.kill().expect("a kill"));
}

/// spec: 1.5
#[test]
fn members_of_threaded_cgroups_are_found_and_killed() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    let below = leaf.path().join("t");
    std::fs::create_dir(&below).expect("room");
    std::fs::write(below.join("cgroup.type"), "threaded").expect("a threaded cgroup");
    let pid = cleanup.spawn("", "echo $$ > \"$1/t/cgroup.threads\" || exit 9; exec sleep 1000");
    wait_until("in the threaded cgroup", || {
        std::fs::read_to_string(below.join("cgroup.threads")).is_ok_and(|text| !text.is_empty())
    });
    assert_eq!(members(&leaf, 1), [pid]);
    assert!(std::fs::read(below.join("cgroup.procs")).is_err(), "a threaded cgroup lists no processes");
    let mut proc = ProcFs::open().expect("/proc");
    let text = proc.cgroups(pid).expect("cgroup").expect("alive");
    assert!(leaf.holds(&text));
    gone(leaf.kill().expect("a kill"));
}

/// spec: 1.5
#[test]
fn a_frozen_member_is_killed() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    cleanup.spawn("", "exec sleep 1000");
    members(&leaf, 1);
    leaf.freeze().expect("a freeze");
    let events = leaf.path().join("cgroup.events");
    wait_until("frozen", || std::fs::read_to_string(&events).is_ok_and(|text| text.contains("frozen 1")));
    let killed = leaf.kill().expect("a kill");
    wait_until("empty", || !killed.populated().expect("events"));
    killed.remove().expect("an empty leaf can be removed");
}

#[test]
fn kill_each_ends_members_one_by_one() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    cleanup.spawn("", "sleep 1000 & sleep 1000 & wait");
    members(&leaf, 3);
    let mut proc = ProcFs::open().expect("/proc");
    assert_eq!(leaf.kill_each(&mut proc).expect("signals"), 3);
    wait_until("empty", || !leaf.populated().expect("events"));
    leaf.remove().expect("an empty leaf can be removed");
}

#[test]
fn kill_without_the_kernels_help_ends_all_and_thaws() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    cleanup.spawn("", "setsid sleep 1000 & kill -STOP $$");
    members(&leaf, 2);
    let killed = leaf.kill_frozen().expect("a kill");
    wait_until("empty", || !killed.populated().expect("events"));
    let state = std::fs::read_to_string(killed.path().join("cgroup.freeze")).expect("freeze");
    assert_eq!(state.trim(), "0");
    killed.remove().expect("an empty leaf can be removed");
}

#[test]
fn usage_counts_what_members_used() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    cleanup.spawn("", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
    // CPU time shows that the process has been in the leaf: before, the leaf is not populated either.
    wait_until("at work", || leaf.usage().cpu.is_some_and(|cpu| !cpu.is_zero()));
    wait_until("over", || !leaf.populated().expect("events"));
    leaf.remove().expect("an empty leaf can be removed");
}

#[test]
fn a_leaf_can_be_a_place() {
    let Some(place) = place() else { return };
    let leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    let inner = LeafPlace::at(leaf.path()).expect("a place");
    assert_eq!(inner.cgroup(), leaf.cgroup());
    let below = Leaf::create(&inner, "below").expect("a leaf in a leaf");
    assert!(below.cgroup().ends_with("/below"));
    leaf.remove().expect("nobody is in it");
    assert!(!below.populated().expect("gone with its parent"));
}

/// The limit of open files is reached.
/// spec: 1.5
#[test]
fn a_leaf_that_was_made_ready_is_listed_and_killed_without_a_free_descriptor() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    leaf.make_ready();
    cleanup.spawn("", "sleep 1000 & exec sleep 1000");
    let pids = members(&leaf, 2);
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).expect("a limit");
    let mut listed = Vec::new();
    let seen = leaf.processes(&mut listed);
    let killed = leaf.kill();
    setrlimit(Resource::Nofile, usual).expect("the usual limit");
    seen.expect("a list");
    assert_eq!(listed, pids);
    let killed = killed.expect("a kill");
    wait_until("empty", || !killed.populated().expect("events"));
    killed.processes(&mut listed).expect("nobody");
    assert!(listed.is_empty());
    killed.remove().expect("an empty leaf can be removed");
}

#[test]
fn a_leaf_that_was_made_ready_a_while_ago_tells_when_its_last_member_has_ended() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let mut cleanup = Cleanup::of(&leaf);
    cleanup.spawn("", "sleep 1000 & exec sleep 1000");
    members(&leaf, 2);
    assert!(leaf.prompt_events().is_none(), "not made ready");
    leaf.make_ready();
    wait_until("prompt", || leaf.prompt_events().is_some());
    assert!(!notified(&leaf, Duration::ZERO), "told of something while all live");
    let killed = leaf.kill().expect("a kill");
    assert!(notified(&killed, crate::support::DEADLINE), "not told of the end");
    assert!(!killed.populated().expect("events"), "told before all had ended");
    killed.remove().expect("an empty leaf can be removed");
}

/// The kernel delays a notification that follows soon after the entry of the first member.
#[test]
fn a_leaf_that_was_made_ready_just_now_promises_nothing() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    let before = Instant::now();
    leaf.make_ready();
    let prompt = leaf.prompt_events().is_some();
    assert!(!prompt || before.elapsed() > Duration::from_millis(20));
}

/// spec: 1.5
#[test]
fn a_leaf_that_was_made_ready_and_removed_has_nobody_and_is_killed() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    leaf.make_ready();
    Leaf::open(leaf.path()).expect("open").expect("there").remove().expect("an empty leaf");
    let mut pids = Vec::new();
    leaf.processes(&mut pids).expect("a removed leaf has nobody");
    assert!(pids.is_empty());
    leaf.kill().expect("nobody to kill").remove().expect("removed already");
}
