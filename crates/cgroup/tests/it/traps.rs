//! Surprising behaviour of the kernel. These tests fork, and need a single-threaded process.
#![expect(clippy::disallowed_methods, reason = "the forked children end themselves")]

use penfold_testkit::{skip, wait_until};
use std::time::{Duration, Instant};

use crate::support::{Cleanup, members, name, place, state};
use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs};
use penfold_sys::ForkSide;
use rustix::process::{WaitOptions, waitpid};

/// Forks a child that joins the leaf, starts a thread and ends its main thread.
fn zombie_leader(leaf: &Leaf) -> Pid {
    match penfold_sys::fork().expect("one thread") {
        ForkSide::Parent(pid) => pid,
        ForkSide::Child => {
            if let Ok(file) = leaf.processes_file()
                && rustix::io::write(&file, b"0").is_ok()
            {
                std::thread::spawn(|| {
                    // Ends after a minute, whatever happens to the test.
                    let end = Instant::now() + Duration::from_mins(1);
                    while Instant::now() < end {
                        std::thread::park_timeout(end - Instant::now());
                    }
                    std::process::exit(0);
                });
                penfold_sys::hostile::exit_thread();
            }
            std::process::exit(9);
        }
    }
}

#[test]
fn kill_misses_zombie_leader_and_kill_again_does_not() {
    let Some(place) = place() else { return };
    let mut leaf = Leaf::create(&place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    leaf.make_ready();
    let pid = zombie_leader(&leaf);
    wait_until("a zombie", || state(pid) == 'Z');
    let mut proc = ProcFs::open().expect("/proc");
    let stat = proc.stat(pid).expect("stat").expect("there");
    assert!(stat.threads > 1 && !stat.is_dead(), "{stat:?}");
    assert_eq!(members(&leaf, 1), [pid]);

    let killed = leaf.kill().expect("a kill");
    let waited = Instant::now();
    while killed.populated().expect("events") && waited.elapsed() < Duration::from_millis(100) {
        crate::support::notified(&killed, Duration::from_millis(10));
    }
    if !killed.populated().expect("events") {
        skip("this kernel's cgroup.kill reaches a zombie leader");
    }
    killed.kill_again(&mut proc).expect("signals");
    wait_until("empty", || !killed.populated().expect("events"));
    killed.remove().expect("an empty leaf can be removed");
    waitpid(Some(pid), WaitOptions::empty()).expect("our child");
}

fn cloned_into(leaf: &Leaf) -> Option<i32> {
    let namespaces = penfold_sys::launch::Namespaces::default();
    match penfold_sys::launch::clone_process(namespaces, Some(leaf.dir())).expect("a clone") {
        ForkSide::Child => std::process::exit(7),
        ForkSide::Parent(pid) => {
            let (_, status) =
                waitpid(Some(pid), WaitOptions::empty()).expect("our child").expect("it has ended");
            status.exit_status()
        }
    }
}

#[test]
fn a_killed_leaf_kills_what_is_cloned_into_it() {
    let Some(place) = place() else { return };
    let name = name();
    let leaf = Leaf::create(&place, &name).expect("a leaf");
    let cleanup = Cleanup::of(&leaf);
    let fresh = cloned_into(&leaf);
    if fresh != Some(7) {
        skip("the own cgroup was killed once: every clone into a leaf dies");
        return;
    }
    let killed = leaf.kill().expect("a kill");
    wait_until("empty", || !killed.populated().expect("events"));
    // The types forbid this: the directory is opened as if it had not been killed.
    let forbidden = Leaf::open(&cleanup.path).expect("open").expect("there");
    if cloned_into(&forbidden) == Some(7) {
        skip("this kernel has the fix 8e3599202166: a killed leaf can be spawned into");
    }
    wait_until("empty", || !killed.populated().expect("events"));
    killed.remove().expect("an empty leaf can be removed");

    let again = Leaf::create(&place, &name).expect("the same name");
    assert_eq!(cloned_into(&again), Some(7), "a new leaf of the same name is clean");
    wait_until("empty", || !again.populated().expect("events"));
    again.remove().expect("an empty leaf can be removed");
}
