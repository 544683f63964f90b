//! Trees beside each other, and beside other code that starts processes.

use std::process::{Child, Command};

use penfold_testkit::wait_until;
use penfold_tree::{Options, Proof, Tree};

use crate::support::{Handle, as_user, at_both, is_subreaper, names, read_line, shell, start};

/// Starts a child that is of no tree.
fn sleeper() -> Foreign {
    Foreign(Command::new("sleep").arg("3501").spawn().unwrap())
}

/// A child that is killed and reaped when dropped.
struct Foreign(Child);

impl Foreign {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn subreaper() -> Options {
    Options::new().cgroup(false)
}

/// spec: 33.3
#[test]
fn children_of_other_code_are_neither_ended_nor_reaped() {
    at_both(|options| {
        let mut before = sleeper();
        let (mut tree, daemon) = start(options, "setsid sleep 3502 & echo $!; exec sleep 3502");
        let mut after = sleeper();
        let mut ended = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let report = tree.kill();
        assert!(report.gone() && daemon.has_ended(), "{report}");
        assert!(!before.has_ended() && !after.has_ended());
        assert_eq!(ended.wait().unwrap().code(), Some(7));
    });
}

/// spec: 33.3
#[test]
fn orphan_of_other_code_lives() {
    let (mut tree, daemon) = start(&subreaper(), "setsid sleep 3503 & echo $!; exec sleep 3503");
    assert!(is_subreaper());
    let mut foreign =
        shell("sleep 3504 & echo $!; read line").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let orphan = Handle::open(read_line(foreign.stdout.as_mut().unwrap()).parse().unwrap()).sleeps();
    foreign.wait().unwrap();
    let report = tree.kill();
    assert!(report.gone() && daemon.has_ended(), "{report}");
    assert!(!orphan.has_ended(), "it became a child of this process while the command lived");
}

/// spec: 33.1, 33.3
#[test]
fn orphan_that_may_be_of_other_code_lives_and_nothing_is_gone() {
    let (mut tree, daemon) = start(&subreaper(), "setsid sleep 3505 & echo $!");
    let mut foreign =
        shell("sleep 3506 & echo $!; read line").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let orphan = Handle::open(read_line(foreign.stdout.as_mut().unwrap()).parse().unwrap()).sleeps();
    tree.wait().unwrap();
    foreign.wait().unwrap();
    let report = tree.kill();
    assert!(daemon.has_ended() && !orphan.has_ended(), "{report}");
    assert!(!report.gone() && names(&report, &orphan), "{report}");
    orphan.end();
    assert!(tree.kill().gone());
}

/// spec: 33.3
#[test]
fn child_of_another_thread_is_no_question() {
    let (mut tree, daemon) = start(&subreaper(), "setsid sleep 3507 & echo $!");
    tree.wait().unwrap();
    let (started, child) = std::sync::mpsc::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        started.send(sleeper()).unwrap();
        let _ = finished.recv();
    });
    let mut child = child.recv().unwrap();
    let report = tree.kill();
    assert!(report.gone() && daemon.has_ended(), "{report}");
    assert!(!child.has_ended());
    drop(finish);
    other.join().unwrap();
}

/// spec: 33.3
#[test]
fn trees_end_alone() {
    at_both(|options| {
        let (mut first, daemon) = start(options, "setsid sleep 3509 & echo $!");
        first.wait().unwrap();
        // This command has no variable that tells its tree.
        let (mut second, another) = start(options, "setsid sleep 3510 & echo $!; exec env -i sleep 3510");
        let leader = Handle::open(i32::try_from(second.id()).unwrap()).sleeps();
        let report = first.kill();
        assert!(report.gone() && daemon.has_ended(), "{report}");
        assert!(!another.has_ended() && !leader.has_ended() && second.try_wait().unwrap().is_none());
        let report = second.kill();
        assert!(report.gone() && another.has_ended() && leader.has_ended(), "{report}");
    });
}

/// spec: 33.3
#[test]
fn daemon_of_another_tree_is_no_question() {
    let (mut first, daemon) = start(&subreaper(), "setsid sleep 3514 & echo $!");
    first.wait().unwrap();
    let (mut second, another) = start(&subreaper(), "setsid sleep 3515 & echo $!");
    second.wait().unwrap();
    let report = first.kill();
    assert!(report.gone() && daemon.has_ended() && !another.has_ended(), "{report}");
    let report = second.kill();
    assert!(report.gone() && another.has_ended(), "{report}");
}

/// spec: 33.3
#[test]
fn process_is_a_subreaper_as_long_as_a_tree_needs_it() {
    assert!(!is_subreaper());
    let (first, _) = start(&subreaper(), "sleep 3511 & echo $!; wait");
    let (second, _) = start(&subreaper(), "sleep 3511 & echo $!; wait");
    assert_eq!(*first.proof(), Proof::Subreaper);
    drop(first);
    assert!(is_subreaper());
    drop(second);
    assert!(!is_subreaper());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    drop(start(&subreaper(), "sleep 3511 & echo $!; wait"));
    assert!(is_subreaper(), "it was one before");
}

/// spec: 33.3
#[test]
fn member_that_ends_by_itself_after_the_command_is_reaped() {
    let (mut tree, member) = start(&subreaper(), "sleep 3512 & echo $!");
    tree.wait().unwrap();
    member.end();
    wait_until("it is a zombie", || member.has_ended());
    let report = tree.kill();
    assert!(report.gone() && report.ended().is_empty(), "{report:?}");
    assert_eq!(crate::support::children(), Vec::new());
}

/// spec: 33.3
#[test]
fn member_that_the_command_has_not_reaped_is_reaped() {
    let script = "sleep 0.05 & dead=$!; sleep 3516 & echo $!; echo $dead; exec sleep 3516";
    let (mut tree, _) = start(&subreaper(), script);
    let path = format!("/proc/{}/status", read_line(tree.stdout.as_mut().unwrap()));
    wait_until("it is a zombie", || {
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains("(zombie)"))
    });
    assert!(tree.kill().gone());
    assert_eq!(crate::support::children(), Vec::new());
}

/// spec: 33.2
#[test]
fn variable_of_another_tree_hides_no_member() {
    let mut tree = Tree::spawn_with(
        &subreaper(),
        &mut shell("(exec env PENFOLD_TREE_1_2=1 setsid sleep 3513) & echo $!"),
    )
    .unwrap();
    let daemon = Handle::open(read_line(tree.stdout.as_mut().unwrap()).parse().unwrap()).sleeps();
    tree.wait().unwrap();
    let report = tree.kill();
    assert!(report.gone() && daemon.has_ended(), "{report}");
}

/// spec: 33.3
#[test]
fn ordinary_user_keeps_other_children() {
    for name in [
        "children_of_other_code_are_neither_ended_nor_reaped",
        "orphan_that_may_be_of_other_code_lives_and_nothing_is_gone",
        "trees_end_alone",
    ] {
        as_user(&format!("beside::{name}"));
    }
}
