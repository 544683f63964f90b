//! How often a command over ssh waits for the other host.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::sshd::{Link, Sshd, command};
use crate::support::{Process, Running, TestEnv, penfold};

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

/// spec: 32.2
#[test]
fn who_holds_the_output_of_the_account_delays_no_command() {
    let env = TestEnv::new();
    let bin = env.path("work/sshd/bin");
    std::fs::create_dir_all(&bin).unwrap();
    // The first is a process of the start-up files, the second ssh itself, which waits for such a process.
    for (name, last) in [("start-up", "exec sh -c \"$line\""), ("ssh", "sh -c \"$line\"; wait")] {
        let script = format!(
            "#!/bin/sh\nfor line; do :; done\nsleep 20 </dev/null 2>/dev/null & echo $! >held\n{last}\n"
        );
        std::fs::write(bin.join("ssh"), script).unwrap();
        std::fs::set_permissions(bin.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let host = format!("ssh://other{}", penfold().display());
        let begun = Instant::now();
        let done =
            Running::start(&mut command(&env, &host, &["run", "sh", "-c", "echo out; exit 3"])).finish();
        let took = begun.elapsed();
        assert_eq!((done.code(), done.out().as_str()), (Some(3), "out\n"), "{name}: {}", done.err());
        let held = std::fs::read_to_string(env.path("work/held")).unwrap();
        let held = Process::find(held.trim().parse().unwrap()).expect("it holds the output still");
        held.signal(Signal::KILL);
        assert!(took < Duration::from_millis(1500), "{name}: {took:?}");
    }
    env.assert_nothing_left();
}
