//! How often a command over ssh waits for the other host.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::sshd::{Link, Sshd, command};
use crate::support::{Running, TestEnv};

/// The delay of the link in each direction.
const DELAY: Duration = Duration::from_millis(50);

/// The least of three times.
fn least(mut act: impl FnMut()) -> Duration {
    let times = (0..3).map(|_| {
        let begun = Instant::now();
        act();
        begun.elapsed()
    });
    times.min().unwrap()
}

/// spec: 32.8
#[test]
fn command_takes_at_most_three_round_trips_more_than_ssh_itself() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let link = Link::new(sshd.port(), DELAY);
    let plain = least(|| {
        let mut ssh = Command::new(env.path("work/sshd/bin/ssh"));
        ssh.args(["-T", "-p", &link.port().to_string(), "127.0.0.1", "true"]);
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(ssh.status().unwrap().success());
    });
    let ours = least(|| {
        Running::start(&mut command(&env, &link.host(), &["run", "true"])).finish().with_code(0);
    });
    let trips = ours.saturating_sub(plain).as_secs_f64() / (2.0 * DELAY.as_secs_f64());
    assert!(trips < 3.0, "{trips:.1} round trips: {ours:?}, ssh itself {plain:?}");
    env.assert_nothing_left();
}
