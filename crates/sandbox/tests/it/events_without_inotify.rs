//! Events are followed where the kernel gives nothing to be told by: to a user of whom nobody else knows, for it takes
//! all that this user may have.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::inotify::{CreateFlags, init};

const USER: u32 = 64_213;

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn a_follower_without_inotify_keeps_up_by_looking() {
    let user = rustix::process::geteuid();
    if user.as_raw() == USER {
        return by_looking();
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args([
        "--exact",
        "events_without_inotify::a_follower_without_inotify_keeps_up_by_looking",
        "--nocapture",
    ]);
    match command.uid(USER).gid(USER).env_remove("TMPDIR").current_dir("/").output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: needs root and a program that every user may read");
        }
        Err(error) => panic!("{error}"),
    }
}

fn by_looking() {
    let mut held = Vec::new();
    while let Ok(inotify) = init(CreateFlags::CLOEXEC) {
        held.push(inotify);
        assert!(held.len() < 10_000, "no end of them");
    }
    let behind = crate::events_support::latencies(40, || {});
    let middle = behind[behind.len() / 2];
    // Another process of this user may give one back at any moment: then it is faster.
    assert!(middle < 60_000, "{behind:?}");
}
