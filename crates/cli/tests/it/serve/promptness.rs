//! How soon a lost sandbox is gone, and how soon many followers get an event.

use std::time::{Duration, Instant};

use super::Server;
use super::native::followers::write_event;
use super::native::{self, Events};
use crate::support::{TREE, TestEnv, wait_until};

/// spec: 15.3
#[test]
fn a_lost_sandbox_is_gone_within_a_second() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    server.await_ready();
    let mut times = Vec::new();
    for _ in 0..5 {
        let _ = std::fs::remove_file(env.path("work/up"));
        let sandbox = env.detach(["bash", "-c", TREE]);
        env.await_up(&["deaf", "lead"]);
        let members = sandbox.members(&env);
        sandbox.kill_supervisors();
        let begun = Instant::now();
        wait_until("the sandbox has ended", || sandbox.has_ended());
        times.push(begun.elapsed());
        sandbox.assert_gone(&members);
    }
    println!("{times:?}");
    assert!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
    server.end();
}

/// spec: 15.16
#[test]
fn an_event_reaches_a_hundred_followers_within_milliseconds() {
    let (env, server) = native::start();
    let mut followers: Vec<Events> = (0..100).map(|_| Events::open(&server, "/v1/events", "")).collect();
    let mut times = Vec::new();
    for number in 0..100 {
        let begun = Instant::now();
        write_event(&env.root(), number);
        for events in &mut followers {
            assert_eq!(events.expect("exec").data["number"], number);
        }
        times.push(begun.elapsed());
    }
    // The longest times show a busy machine.
    times.sort_unstable();
    println!("{times:?}");
    assert!(times[times.len() / 2] < Duration::from_millis(10), "{times:?}");
}
