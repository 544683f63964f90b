//! Tests `Spawned` as the example at the top of the crate uses it.

use penfold_testkit::wait_until;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Handle;
use penfold_teardown::{EndedBy, Findings, Level, Spawned, StopPolicy, Survivor};

const SHORT: Duration = Duration::from_millis(300);

/// Starts two sleepers that print their pids, one of them in a session of its own.
fn tree() -> (Spawned, Vec<Handle>) {
    let script = "setsid sleep 3401 >&- & echo $!; sleep 3401 >&- & echo $!; exec >&-; wait";
    let mut tree = Spawned::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    let mut said = String::new();
    tree.child().stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let members: Vec<Handle> = said.lines().map(|line| Handle::open(line.parse().unwrap())).collect();
    assert_eq!(members.len(), 2);
    wait_until("both have become what they are", || members.iter().all(|member| member.name() == "sleep"));
    (tree, members)
}

#[test]
fn end_asks_and_reaps_and_leaves_nothing() {
    let (mut tree, members) = tree();
    let level = tree.level();
    let findings = tree.end(&StopPolicy { grace: Duration::from_secs(10), ..StopPolicy::default() }).unwrap();
    assert!(findings.verified, "{level}: {findings:?}");
    assert!(members.iter().all(Handle::has_ended), "{level}");
    assert!(findings.ended.iter().all(|ended| ended.how == EndedBy::Term), "{level}: {findings:?}");
    assert!(tree.child().try_wait().unwrap().is_some(), "reaped");
    assert_eq!(crate::support::leaves_of_this_process(), Vec::<String>::new());
}

#[test]
fn end_kills_who_does_not_listen() {
    let script = "trap '' TERM; echo; sleep 3402; sleep 3402";
    let mut tree = Spawned::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    let mut said = [0];
    tree.child().stdout.take().unwrap().read_exact(&mut said).unwrap();
    let findings = tree.end(&StopPolicy { grace: SHORT, ..StopPolicy::default() }).unwrap();
    assert!(findings.verified, "{findings:?}");
    assert!(findings.ended.iter().any(|ended| ended.how == EndedBy::Kill), "{findings:?}");
}

#[test]
fn a_command_that_cannot_start_leaves_no_leaf() {
    let error = Spawned::start(&mut Command::new("/nonexistent/command")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(crate::support::leaves_of_this_process(), Vec::<String>::new());
}

/// Starts a shell that leaves a daemon, and prints its pid.
fn with_daemon(script: &str) -> (Spawned, Handle) {
    let mut tree = Spawned::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    let mut said = String::new();
    // The daemon holds the pipe open: read only the first line.
    let mut out = tree.child().stdout.take().unwrap();
    while !said.ends_with('\n') {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        said.push(char::from(byte[0]));
    }
    let daemon = Handle::open(said.trim().parse().unwrap());
    wait_until("the daemon is one", || daemon.name() == "sleep");
    (tree, daemon)
}

/// Whether the findings say that something could not be seen.
fn says_unseen(findings: &Findings) -> bool {
    findings.survivors.iter().any(|survivor| matches!(survivor, Survivor::Unknown { .. }))
}

/// spec: 33.1, 33.2
#[test]
fn a_daemon_of_a_child_that_has_ended_is_ended_and_named_or_nothing_is_verified() {
    let (mut tree, daemon) = with_daemon("setsid sleep 3403 & echo $!; exit 3");
    assert_eq!(tree.child().wait().unwrap().code(), Some(3));
    assert!(!daemon.has_ended());
    let findings = tree.end(&StopPolicy { grace: Duration::from_secs(10), ..StopPolicy::default() }).unwrap();
    let level = tree.level();
    assert_eq!(findings.verified, level == Level::Cgroup, "{level}: {findings:?}");
    assert_eq!(says_unseen(&findings), level == Level::Tree, "{level}: {findings:?}");
    assert!(daemon.has_ended(), "{level}");
    let pid = daemon.pid().as_raw_nonzero().get();
    assert!(findings.strays().any(|stray| stray.pid == pid), "{level}: {findings:?}");
}

/// spec: 33.1, 33.2
#[test]
fn a_daemon_without_variables_is_ended_or_nothing_is_verified() {
    let (mut tree, daemon) = with_daemon("env -i setsid sleep 3404 & echo $!");
    tree.child().wait().unwrap();
    assert!(!daemon.has_ended());
    for _ in 0..2 {
        let findings = tree.end(&StopPolicy { grace: SHORT, ..StopPolicy::default() }).unwrap();
        assert_eq!(findings.verified, daemon.has_ended(), "{}: {findings:?}", tree.level());
        assert_eq!(says_unseen(&findings), !findings.verified, "{findings:?}");
    }
    assert_eq!(daemon.has_ended(), tree.level() == Level::Cgroup);
}

/// spec: 33.2
#[test]
fn a_daemon_without_variables_stays_below_a_child_that_lives() {
    let (mut tree, daemon) = with_daemon("(env -i setsid sleep 3405 & echo $!); exec sleep 3405");
    let findings = tree.end(&StopPolicy { grace: Duration::ZERO, ..StopPolicy::default() }).unwrap();
    assert!(findings.verified && daemon.has_ended(), "{}: {findings:?}", tree.level());
    let pid = daemon.pid().as_raw_nonzero().get();
    assert!(findings.strays().any(|stray| stray.pid == pid), "{findings:?}");
}

/// spec: 33.2
#[test]
fn a_daemon_that_the_polite_signal_starts_is_found() {
    let script = "trap 'setsid sleep 3406 & echo $!; exit' TERM; echo 0; sleep 3406 >&- & wait";
    let mut tree = Spawned::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    let mut out = tree.child().stdout.take().unwrap();
    out.read_exact(&mut [0; 2]).unwrap();
    let findings = tree.end(&StopPolicy { grace: SHORT, ..StopPolicy::default() }).unwrap();
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    assert!(findings.verified, "{}: {findings:?}", tree.level());
    let daemon: i32 = said.trim().parse().unwrap();
    assert!(findings.ended.iter().any(|ended| ended.pid == daemon), "{daemon}: {findings:?}");
}

#[test]
fn an_ordinary_user_without_a_cgroup_gets_the_level_tree() {
    crate::support::as_user("spawned::end_asks_and_reaps_and_leaves_nothing");
    crate::support::as_user("spawned::end_kills_who_does_not_listen");
    crate::support::as_user(
        "spawned::a_daemon_of_a_child_that_has_ended_is_ended_and_named_or_nothing_is_verified",
    );
    crate::support::as_user("spawned::a_daemon_without_variables_is_ended_or_nothing_is_verified");
    crate::support::as_user("spawned::a_daemon_without_variables_stays_below_a_child_that_lives");
    crate::support::as_user("spawned::a_daemon_that_the_polite_signal_starts_is_found");
}
