//! How often a command over ssh waits for the other host.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::sshd::{Link, Sshd, command};
use crate::support::{Process, Running, TestEnv, penfold};

/// The delay of the link in each direction.
const DELAY: Duration = Duration::from_millis(50);

/// The round trips of what happens over a new link to a port.
fn round_trips(port: u16, act: impl Fn(&Link)) -> f64 {
    let link = Link::new(port, DELAY);
    act(&link);
    link.round_trips()
}

/// spec: 32.8
#[test]
fn command_takes_at_most_three_round_trips_more_than_ssh_itself() {
    let env = TestEnv::new();
    let Some(sshd) = Sshd::start(&env) else { return };
    let ssh = |link: &Link, word: &str| {
        let mut ssh = Command::new(env.path("work/sshd/bin/ssh"));
        ssh.args(["-T", "-p", &link.port().to_string(), "127.0.0.1", word]).stderr(Stdio::null());
        ssh
    };
    let plain = || {
        round_trips(sshd.port(), |link| {
            let status = ssh(link, "true").stdin(Stdio::null()).stdout(Stdio::null()).status();
            assert!(status.unwrap().success());
        })
    };
    // The links only wait, all at once.
    let plain = std::thread::scope(|scope| {
        let tries = [(); 3].map(|()| scope.spawn(plain));
        tries.into_iter().map(|one| one.join().unwrap()).reduce(f64::min).unwrap()
    });
    // Four questions, each after the answer to the last one: the link counts them.
    let link = Link::new(sshd.port(), DELAY);
    let mut cat = ssh(&link, "cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut asked, mut answer) = (cat.stdin.take().unwrap(), [0]);
    let mut answers = cat.stdout.take().unwrap();
    for _ in 0..4 {
        asked.write_all(b"?").unwrap();
        answers.read_exact(&mut answer).unwrap();
    }
    drop(asked);
    assert!(cat.wait().unwrap().success());
    assert!(
        link.round_trips() > plain + 3.0,
        "{} round trips, without questions {plain}",
        link.round_trips()
    );
    // A program that gets no processor for longer than the delay of the link may wait for a message that it does not need.
    let mut tries = (0..3).map(|_| {
        round_trips(sshd.port(), |link| {
            Running::start(&mut command(&env, &link.host(), &["run", "true"])).finish().with_code(0);
        })
    });
    let seen = tries.find(|ours| ours - plain <= 3.0);
    assert!(seen.is_some(), "each time more than three round trips more than ssh itself, {plain}");
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
