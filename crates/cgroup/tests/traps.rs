//! What the kernel does and nobody expects. These tests need a process with one thread, so they run without the test
//! harness; the names and flags are those of the harness.
#![expect(clippy::disallowed_methods, reason = "the forked children end themselves")]

mod support;

use std::time::{Duration, Instant};

use penfold_cgroup::{Leaf, Place};
use penfold_process::{Pid, ProcFs};
use penfold_sys::Forked;
use rustix::process::{WaitOptions, waitpid};
use support::{Cleanup, members, name, place, skip, state, until};

type Test = (&'static str, fn(&Place));

const TESTS: [Test; 2] = [
    ("kill_misses_zombie_leader_and_kill_again_does_not", kill_misses_zombie_leader_and_kill_again_does_not),
    ("a_killed_leaf_kills_what_is_cloned_into_it", a_killed_leaf_kills_what_is_cloned_into_it),
];

#[expect(clippy::print_stdout, reason = "the list is for the test runner")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    if has("--list") {
        for (name, _) in TESTS.iter().filter(|_| !has("--ignored")) {
            println!("{name}: test");
        }
        return;
    }
    let Some(place) = place() else { return };
    for (name, test) in TESTS {
        let chosen =
            |filter: &&String| if has("--exact") { name == **filter } else { name.contains(filter.as_str()) };
        if !has("--ignored") && (filters.is_empty() || filters.iter().any(chosen)) {
            test(&place);
            println!("test {name} ... ok");
        }
    }
}

/// Forks a child that joins the leaf, starts a thread and ends its main thread.
fn zombie_leader(leaf: &Leaf) -> Pid {
    match penfold_sys::fork().expect("one thread") {
        Forked::Parent(pid) => pid,
        Forked::Child => {
            if let Ok(file) = leaf.processes_file()
                && rustix::io::write(&file, b"0").is_ok()
            {
                std::thread::spawn(|| {
                    // Never for ever, whatever becomes of the test.
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

fn kill_misses_zombie_leader_and_kill_again_does_not(place: &Place) {
    let mut leaf = Leaf::create(place, &name()).expect("a leaf");
    let _cleanup = Cleanup::of(&leaf);
    leaf.make_ready();
    let pid = zombie_leader(&leaf);
    until("a zombie", || state(pid) == 'Z');
    let mut proc = ProcFs::open().expect("/proc");
    let stat = proc.stat(pid).expect("stat").expect("there");
    assert!(stat.threads > 1 && !stat.is_dead(), "{stat:?}");
    assert_eq!(members(&leaf, 1), [pid]);

    let killed = leaf.kill().expect("a kill");
    let waited = Instant::now();
    while killed.populated().expect("events") && waited.elapsed() < Duration::from_millis(100) {
        support::notified(&killed, Duration::from_millis(10));
    }
    if !killed.populated().expect("events") {
        skip("this kernel's cgroup.kill reaches a zombie leader");
    }
    killed.kill_again(&mut proc).expect("signals");
    until("empty", || !killed.populated().expect("events"));
    killed.remove().expect("an empty leaf can be removed");
    waitpid(Some(pid), WaitOptions::empty()).expect("our child");
}

fn cloned_into(leaf: &Leaf) -> Option<i32> {
    let namespaces = penfold_sys::launch::Namespaces::default();
    match penfold_sys::launch::clone_process(namespaces, Some(leaf.dir())).expect("a clone") {
        Forked::Child => std::process::exit(7),
        Forked::Parent(pid) => {
            let (_, status) =
                waitpid(Some(pid), WaitOptions::empty()).expect("our child").expect("it has ended");
            status.exit_status()
        }
    }
}

fn a_killed_leaf_kills_what_is_cloned_into_it(place: &Place) {
    let name = name();
    let leaf = Leaf::create(place, &name).expect("a leaf");
    let cleanup = Cleanup::of(&leaf);
    let fresh = cloned_into(&leaf);
    if fresh != Some(7) {
        skip("the own cgroup was killed once: every clone into a leaf dies");
        return;
    }
    let killed = leaf.kill().expect("a kill");
    until("empty", || !killed.populated().expect("events"));
    // What the types forbid: the same directory, opened as if it had not been killed.
    let forbidden = Leaf::open(&cleanup.path).expect("open").expect("there");
    if cloned_into(&forbidden) == Some(7) {
        skip("this kernel has the fix 8e3599202166: a killed leaf can be spawned into");
    }
    until("empty", || !killed.populated().expect("events"));
    killed.remove().expect("an empty leaf can be removed");

    let again = Leaf::create(place, &name).expect("the same name");
    assert_eq!(cloned_into(&again), Some(7), "a new leaf of the same name is clean");
    until("empty", || !again.populated().expect("events"));
    again.remove().expect("an empty leaf can be removed");
}
