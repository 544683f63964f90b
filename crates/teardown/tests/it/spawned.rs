//! Tests `Spawned` as the example at the top of the crate uses it.

use penfold_testkit::wait_until;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Handle;
use penfold_teardown::{EndedBy, Level, Spawned, StopPolicy};

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

#[test]
fn a_daemon_cannot_leave_its_leaf() {
    let script = "(setsid sleep 3403 & echo $!)";
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
    tree.child().wait().unwrap();
    if tree.level() != Level::Cgroup {
        let _ = daemon.end();
        return penfold_testkit::skip(
            "no cgroup2 to write to: a daemon is lost at this level, as documented",
        );
    }
    let findings = tree.end(&StopPolicy { grace: Duration::from_secs(10), ..StopPolicy::default() }).unwrap();
    assert!(findings.verified, "{findings:?}");
    assert!(daemon.has_ended());
}

#[test]
fn an_ordinary_user_without_a_cgroup_gets_the_level_tree() {
    crate::support::as_user("spawned::end_asks_and_reaps_and_leaves_nothing");
    crate::support::as_user("spawned::end_kills_who_does_not_listen");
}
