//! What the ends of a tree end, and what they say.

use std::process::Stdio;
use std::time::Duration;

use penfold_testkit::skip;
use penfold_tree::{EndedBy, Options, Tree};

use crate::support::{
    Handle, as_user, at_both, children, has_stray, is_in_cgroup, leaves, names, read_line, shell, start,
};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

/// spec: 33.1, 33.4
#[test]
fn daemon_that_outlives_the_command_is_ended_and_named() {
    at_both(|options| {
        let (mut tree, daemon) = start(options, "setsid sleep 3401 & echo $!; exit 3");
        assert_eq!(tree.wait().unwrap().code(), Some(3));
        assert!(!daemon.has_ended());
        let report = tree.wait_and_end().unwrap();
        assert!(report.gone() && daemon.has_ended(), "{report}");
        assert_eq!(report.exit().and_then(|exit| exit.code()), Some(3));
        assert!(has_stray(&report, &daemon, "sleep 3401"), "{report:?}");
        assert_eq!(report.strays().count(), 1, "{report:?}");
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()), "all was reaped");
    });
}

/// spec: 33.4
#[test]
fn member_in_the_session_of_the_command_is_a_stray_only_if_it_was_left() {
    at_both(|options| {
        for (script, is_left) in
            [("sleep 3409 & echo $!", true), ("sleep 3409 & echo $!; exec sleep 3409", false)]
        {
            let (mut tree, member) = start(options, script);
            if is_left {
                tree.wait().unwrap();
            }
            let report = tree.kill();
            assert!(report.gone() && member.has_ended(), "{report}");
            assert_eq!(has_stray(&report, &member, "sleep 3409"), is_left, "{report:?}");
        }
    });
}

/// spec: 33.1, 33.4
#[test]
fn every_stray_of_many_has_its_command_line() {
    at_both(|options| {
        let script = "for i in 1 2 3 4 5; do setsid sleep 3402 & echo $!; done";
        let mut tree = Tree::spawn_with(options, &mut shell(script)).unwrap();
        let out = tree.stdout.as_mut().unwrap();
        let daemons: Vec<Handle> =
            (0..5).map(|_| Handle::open(read_line(out).parse().unwrap()).sleeps()).collect();
        tree.wait().unwrap();
        assert!(daemons.iter().all(|daemon| !daemon.has_ended()));
        let report = tree.stop(LONG);
        assert!(report.gone() && daemons.iter().all(Handle::has_ended), "{report}");
        assert!(daemons.iter().all(|daemon| has_stray(&report, daemon, "sleep 3402")), "{report:?}");
        assert!(report.ended().iter().all(|ended| ended.how == EndedBy::Term), "{report:?}");
    });
}

/// spec: 33.1
#[test]
fn double_forked_daemon_is_ended() {
    at_both(|options| {
        let script = "(setsid sh -c '(sleep 3403 & echo $!)' &) ; exec sleep 3403";
        for is_waited_for in [false, true] {
            let script =
                if is_waited_for { script.replace("exec sleep 3403", "exit 0") } else { script.to_owned() };
            let (mut tree, daemon) = start(options, &script);
            if is_waited_for {
                tree.wait().unwrap();
            }
            assert!(!daemon.has_ended());
            let report = tree.kill();
            assert!(report.gone() && daemon.has_ended(), "{report}");
            assert!(has_stray(&report, &daemon, "sleep 3403"), "{report:?}");
        }
    });
}

/// spec: 33.1, 33.2
#[test]
fn daemon_without_variables_that_outlives_the_command_is_ended_or_nothing_is_gone() {
    at_both(|options| {
        let (mut tree, daemon) = start(options, "env -i setsid sleep 3404 & echo $!");
        tree.wait().unwrap();
        assert!(!daemon.has_ended());
        let is_in_cgroup = is_in_cgroup(&tree);
        for _ in 0..2 {
            let report = tree.kill();
            assert_eq!((report.gone(), daemon.has_ended()), (is_in_cgroup, is_in_cgroup), "{report}");
            assert_eq!(names(&report, &daemon), !is_in_cgroup, "{report}");
        }
        daemon.end();
        assert!(tree.kill().gone());
    });
}

/// spec: 33.2
#[test]
fn daemon_without_variables_stays_below_a_command_that_lives() {
    at_both(|options| {
        let script = "(env -i setsid sleep 3405 & echo $!); exec sleep 3405";
        let (mut tree, daemon) = start(options, script);
        let report = tree.kill();
        assert!(report.gone() && daemon.has_ended(), "{report}");
        assert!(has_stray(&report, &daemon, "sleep 3405"), "{report:?}");
        assert_eq!(children(), Vec::new(), "all was reaped");
    });
}

/// spec: 33.1
#[test]
fn member_that_ignores_the_polite_signal_is_killed_after_the_grace() {
    at_both(|options| {
        let mut tree =
            Tree::spawn_with(options, &mut shell("trap '' TERM; echo; sleep 3406; sleep 3406")).unwrap();
        read_line(tree.stdout.as_mut().unwrap());
        assert_eq!(tree.try_wait().unwrap(), None);
        let report = tree.stop(SHORT);
        assert!(report.gone(), "{report}");
        assert!(report.ended().iter().any(|ended| ended.how == EndedBy::Kill), "{report:?}");
        assert!(report.took() >= SHORT, "{:?}", report.took());
        assert!(report.exit().is_some_and(|exit| exit.code().is_none()), "{report:?}");
        assert_eq!(tree.try_wait().unwrap(), report.exit());
    });
}

/// spec: 33.2
#[test]
fn daemon_that_has_left_the_cgroup_is_found_by_its_variable() {
    let options = Options::new();
    let Ok(place) = penfold_cgroup::LeafPlace::find_here() else { return skip("no cgroup can be made here") };
    let file = place.path().join("cgroup.procs");
    let script = format!("sh -c 'echo 0 >{} && exec setsid sleep 3410' & echo $!", file.display());
    let (mut tree, daemon) = start(&options, &script);
    assert!(is_in_cgroup(&tree));
    tree.wait().unwrap();
    let cgroup = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert_eq!(cgroup(&daemon.pid().to_string()), cgroup("self"), "it has left");
    let report = tree.kill();
    assert!(report.gone() && daemon.has_ended(), "{report}");
    assert!(has_stray(&report, &daemon, "sleep 3410"), "{report:?}");
}

/// spec: 33.2
#[test]
fn daemon_that_the_polite_signal_starts_is_ended() {
    at_both(|options| {
        let script = "trap 'setsid sleep 3407 & echo $!; exit' TERM; echo 0; sleep 3407 >&- & wait";
        let mut tree = Tree::spawn_with(options, &mut shell(script)).unwrap();
        read_line(tree.stdout.as_mut().unwrap());
        let report = tree.stop(Duration::from_secs(1));
        let daemon: i32 = read_line(tree.stdout.as_mut().unwrap()).parse().unwrap();
        assert!(report.gone(), "{report}");
        assert!(report.ended().iter().any(|ended| ended.pid == daemon), "{daemon}: {report:?}");
    });
}

/// spec: 33.1
#[test]
fn command_that_cannot_start_leaves_nothing() {
    at_both(|options| {
        let error =
            Tree::spawn_with(options, &mut std::process::Command::new("/nonexistent/command")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert_eq!((leaves(), children()), (Vec::new(), Vec::new()));
        assert!(!crate::support::is_subreaper());
    });
}

#[test]
fn wait_closes_the_input_and_reads_no_output() {
    at_both(|options| {
        let mut tree = Tree::spawn_with(options, shell("cat; exit 4").stdin(Stdio::piped())).unwrap();
        assert_eq!(tree.try_wait().unwrap(), None);
        assert_eq!(tree.wait().unwrap().code(), Some(4));
        assert!(tree.kill().ended().is_empty());
    });
}

/// spec: 33.7
#[test]
fn one_command_starts_several_trees() {
    at_both(|options| {
        let mut command = shell("setsid sleep 3408 & echo $!");
        let mut start = || {
            let mut tree = Tree::spawn_with(options, &mut command).unwrap();
            let pid = read_line(tree.stdout.as_mut().unwrap());
            tree.wait().unwrap();
            (tree, Handle::open(pid.parse().unwrap()).sleeps())
        };
        let (mut first, daemon) = start();
        let (mut second, another) = start();
        assert!(!daemon.has_ended());
        let report = first.kill();
        assert!(report.gone() && daemon.has_ended() && !another.has_ended(), "{report}");
        let proof = first.proof().clone();
        drop(first);
        let (mut third, last) = start();
        assert!(second.kill().gone() && another.has_ended() && !last.has_ended());
        assert!(third.kill().gone() && last.has_ended());
        assert_eq!((second.proof(), third.proof()), (&proof, &proof), "each has a cgroup, or none");
        let mut child = command.spawn().unwrap();
        let daemon = Handle::open(read_line(child.stdout.as_mut().unwrap()).parse().unwrap()).sleeps();
        assert!(child.wait().unwrap().success() && !daemon.has_ended(), "the command is as before");
    });
}

/// spec: 33.1, 33.2, 33.4
#[test]
fn ordinary_user_without_a_cgroup_gets_the_same() {
    for name in [
        "daemon_that_outlives_the_command_is_ended_and_named",
        "every_stray_of_many_has_its_command_line",
        "daemon_without_variables_that_outlives_the_command_is_ended_or_nothing_is_gone",
        "daemon_without_variables_stays_below_a_command_that_lives",
        "daemon_that_the_polite_signal_starts_is_ended",
    ] {
        as_user(&format!("ends::{name}"));
    }
}
