//! How soon a lost sandbox is gone.

use std::time::{Duration, Instant};

use super::Server;
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
