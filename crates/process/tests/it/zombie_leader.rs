//! A process whose main thread has exited while another thread lives. The test needs a program of its own to end its
//! main thread.
#![expect(clippy::disallowed_methods, reason = "the misbehaving child ends itself")]

use std::time::{Duration, Instant};

use penfold_process::{Delivery, EnvironmentMatch, Pid, ProcFs, Process, SchedulerState, Signal};
use penfold_testkit::wait_until;

const MARK: (&str, &str) = ("PENFOLD_TEST_MARK", "zombie");

/// Starts a fresh program, so that the marker is in its environment.
fn start_zombie() -> std::process::Child {
    std::process::Command::new(std::env::current_exe().expect("this test"))
        .arg("zombie-leader")
        .env(MARK.0, MARK.1)
        .spawn()
        .expect("this test again")
}

/// Implements the program `zombie-leader`.
pub(crate) fn become_zombie() {
    std::thread::spawn(|| {
        // The child belongs to a thread other than the main thread, and ends after a minute like its parent.
        let child = std::process::Command::new("sleep").arg("60").spawn();
        let end = Instant::now() + Duration::from_mins(1);
        while Instant::now() < end {
            std::thread::park_timeout(end - Instant::now());
        }
        drop(child);
        std::process::exit(0);
    });
    penfold_sys::hostile::exit_thread();
}

#[test]
fn zombie_leader_is_alive_marked_and_can_be_ended() {
    let mut proc = ProcFs::open().expect("/proc");
    let mut child = start_zombie();
    let pid = Pid::from_child(&child);
    wait_until("a zombie", || {
        proc.stat(pid).expect("stat").is_some_and(|stat| stat.state == SchedulerState::Zombie)
    });

    let stat = proc.stat(pid).expect("stat").expect("there");
    assert!(!stat.is_dead(), "{stat:?}");
    assert_eq!(
        proc.environ_has(pid, MARK.0.as_bytes(), |value| value == MARK.1.as_bytes()),
        EnvironmentMatch::Yes
    );
    let mut tree = Vec::new();
    wait_until("one child", || {
        assert!(proc.descendants(pid, &mut tree).expect("a walk").is_complete());
        tree.len() == 1
    });

    let process = Process::open(&mut proc, pid).expect("open").expect("it can be aimed at");
    assert!(!process.has_exited().expect("poll"));
    let grandchild = Process::open_exact(&mut proc, tree[0].id()).expect("open").expect("alive");
    assert_eq!(process.signal(Signal::KILL).expect("ours"), Delivery::Delivered);
    assert_eq!(grandchild.signal(Signal::KILL).expect("ours"), Delivery::Delivered);
    wait_until("ended", || process.has_exited().expect("poll") && grandchild.has_exited().expect("poll"));
    child.wait().expect("our child");
}
