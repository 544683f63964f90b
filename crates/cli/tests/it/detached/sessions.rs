//! Sessions: `penfold session-host` as the leader of a sandbox.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use penfold_session::{CommandEnd, EndKind, SessionClient, ShellCommand};
use penfold_state::log::{LogEntry, LogPosition};

use super::sandboxes::{at_each_level, remove};
use crate::support::{Level, Process, Sandbox, TestEnv, Who, penfold, wait_until};

/// A sandbox whose leader holds the session `main`.
#[track_caller]
fn session(env: &TestEnv, level: Level) -> Sandbox {
    let (program, root) = (penfold().as_os_str(), env.root());
    let contain: Vec<&std::ffi::OsStr> = ["--contain", level.word(), "--"].map(AsRef::as_ref).to_vec();
    let host = ["session-host", "--name", "main", "--root"].map(AsRef::as_ref);
    env.detach([contain.as_slice(), &[program], &host, &[root.as_os_str()]].concat())
}

#[track_caller]
fn connect(sandbox: &Sandbox) -> SessionClient {
    let record: OwnedFd = std::fs::File::open(&sandbox.record).expect("a record").into();
    let limit = Duration::from_secs(20);
    SessionClient::connect_in(record.as_fd(), &sandbox.record, "main", limit, || sandbox.has_ended())
        .expect("a host")
}

#[track_caller]
fn end(client: &mut SessionClient, run: &ShellCommand) -> (CommandEnd, String) {
    let number = client.run(run).expect("accepted");
    let end = client.wait_end(number, Some(Instant::now() + Duration::from_secs(20))).expect("an end");
    let mut out = Vec::new();
    let mut reader = client.log(number, LogPosition::Start).expect("a log");
    while let Some(entry) = reader.next_entry().expect("a log") {
        if let LogEntry::Data { bytes, .. } = entry {
            out.extend_from_slice(bytes);
        }
    }
    (end, String::from_utf8_lossy(&out).into_owned())
}

/// The sleeps of a tree that does what it can to outlive its session.
const SLEEPS: [&str; 4] = ["sleep 4201", "sleep 4202", "sleep 4203", "sleep 4204"];
const TREE: &str = "trap '' TERM HUP; sleep 4201 & setsid sleep 4202 & (setsid sleep 4203 &)
    (trap '' TERM INT HUP; setsid bash -c 'sleep 4204; :' & disown) ; true";

#[track_caller]
fn begun(env: &TestEnv) -> Vec<Process> {
    wait_until("all sleeps run", || SLEEPS.iter().all(|sleep| env.is_running(sleep)));
    SLEEPS.iter().flat_map(|sleep| env.running(sleep)).collect()
}

#[test]
fn kill_of_the_sandbox_ends_all_that_the_session_started() {
    at_each_level(Who::Tester, |env, level| {
        let sandbox = session(env, level);
        let mut client = connect(&sandbox);
        assert_eq!(end(&mut client, &ShellCommand::new(TREE)).0.how, EndKind::Exited, "{level:?}");
        let sleeps = begun(env);
        let busy = client.run(&ShellCommand::new("sleep 4205; echo more")).expect("accepted");
        wait_until("the command runs", || env.is_running("sleep 4205"));
        sandbox.call(env, &["kill", "ID"]).with_code(0);
        assert!(sleeps.iter().all(Process::has_ended) && !env.is_running("sleep 4205"), "{level:?}");
        assert!(client.wait_end(busy, None).is_err(), "{level:?}: a command that was cut off has no end");
        remove(env, &sandbox);
    });
}

#[test]
fn death_of_a_client_loses_no_output_and_no_end() {
    let env = TestEnv::new();
    let sandbox = session(&env, Level::Subreaper);
    let mut client = connect(&sandbox);
    let number = client
        .run(&ShellCommand::new("cd /usr; for i in 1 2 3; do echo $i; sleep 0.05; done; exit 7"))
        .expect("accepted");
    drop(client);
    let mut client = connect(&sandbox);
    let done = client.wait_end(number, Some(Instant::now() + Duration::from_secs(20))).expect("an end");
    assert_eq!((done.how, done.code, done.stdout_bytes), (EndKind::ShellExited, 7, 6));
    assert_eq!(client.end(number), Some(done));
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

#[test]
fn time_limit_ends_the_command_and_nothing_else() {
    at_each_level(Who::Tester, |env, level| {
        let sandbox = session(env, level);
        let mut client = connect(&sandbox);
        end(&mut client, &ShellCommand::new("kept=yes; sleep 4206 & cd /usr"));
        wait_until("the job runs", || env.is_running("sleep 4206"));
        let endless = [
            TREE.replace("true", "sleep 4205"),
            "while :; do :; done".to_owned(),
            "sleep 4205 | cat".to_owned(),
        ];
        for text in endless {
            let run = ShellCommand { timeout_ms: Some(150), grace_ms: Some(150), ..ShellCommand::new(text) };
            let (done, _) = end(&mut client, &run);
            assert_eq!((done.how, done.replaced), (EndKind::TimedOut, false), "{level:?}: {run:?}");
            assert!(done.remaining.is_empty(), "{level:?}: {done:?}");
            let left: Vec<_> =
                SLEEPS.iter().chain(&["sleep 4205"]).filter(|sleep| env.is_running(sleep)).collect();
            assert!(left.is_empty(), "{level:?}: {left:?}");
            assert!(env.is_running("sleep 4206"), "{level:?}");
            assert_eq!(end(&mut client, &ShellCommand::new("echo $kept; pwd")).1, "yes\n/usr\n", "{level:?}");
        }
        sandbox.call(env, &["stop", "ID"]);
        assert!(!env.is_running("sleep 4206"));
        remove(env, &sandbox);
    });
}

#[test]
fn marker_and_environment_reach_the_shell() {
    let env = TestEnv::new();
    let sandbox = session(&env, Level::Subreaper);
    let (_, out) = end(&mut connect(&sandbox), &ShellCommand::new("echo $PENFOLD_SANDBOX"));
    assert_eq!(out.trim(), sandbox.id);
    env.call(["session-host", "--name", "main"]).refused(2, "cannot hold a session");
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    remove(&env, &sandbox);
}
