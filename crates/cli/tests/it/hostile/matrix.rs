//! Every hostile tree × containment level × ending, as root, as an ordinary user with a delegated cgroup, and as one
//! without. Survivors, left records and leaves, innocents hit: none.
//!
//! Needs root and the program `testkit`: `cargo nextest run -p penfold -p penfold-testkit`.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::process::Stdio;

use crate::support_e1::case::{Case, Ending, every_tree, every_unended_tree};
use crate::support_e1::{Ground, Level, Shape, Who};

macro_rules! endings {
    ($who:ident $shape:ident $level:ident: $($name:ident $ending:ident)*) => {
        $(
            #[test]
            fn $name() {
                use super::super::{Case, Ending, Level, Shape, Who, every_tree};
                let (who, shape, level) = (Who::$who, Shape::$shape, Level::$level);
                every_tree(Case { who, shape, level, ending: Ending::$ending });
            }
        )*
    };
}

macro_rules! levels {
    ($module:ident $who:ident: $($name:ident $level:ident)*) => {
        mod $module {
            $(mod $name {
                endings!($who Pair $level:
                    leader_exits LeaderExit stopped Stop killed Kill interrupted_twice Interrupt timed_out Timeout
                    owner_killed OwnerKilled inner_killed InnerKilled front_killed FrontKilled all_killed AllKilled);
            })*
        }
    };
    // Only what the process in between makes different.
    ($module:ident $who:ident outer: $($name:ident $level:ident)*) => {
        mod $module {
            $(mod $name {
                endings!($who Trio $level:
                    leader_exits LeaderExit inner_killed InnerKilled outer_killed OuterKilled front_killed FrontKilled);
            })*
        }
    };
}

levels!(root Root: cgroup Cgroup pidns Pidns subreaper Subreaper);
levels!(root_with_outer Root outer: cgroup Cgroup pidns Pidns subreaper Subreaper);
levels!(delegated Delegated: cgroup Cgroup pidns Pidns subreaper Subreaper);
levels!(plain Plain: pidns Pidns subreaper Subreaper);

/// Who became root cannot be signalled by an ordinary user, who has nothing but that at subreaper level.
#[test]
fn members_that_nobody_may_signal_are_named() {
    let endings = [
        Ending::LeaderExit,
        Ending::Stop,
        Ending::Kill,
        Ending::Interrupt,
        Ending::Timeout,
        Ending::OwnerKilled,
        Ending::InnerKilled,
        Ending::FrontKilled,
    ];
    let users: Vec<Who> =
        [Who::Delegated, Who::Plain].into_iter().filter(|&who| Ground::new(who).is_ok()).collect();
    let with = |who| endings.map(|ending| Case { who, shape: Shape::Pair, level: Level::Subreaper, ending });
    let cases: Vec<Case> = users.into_iter().flat_map(with).collect();
    assert_eq!(every_unended_tree(&cases), cases.len(), "one tree of each");
}

/// An ordinary user without a cgroup of its own asks for one: refused, with the reason, before anything runs.
#[test]
fn cgroup_level_without_a_cgroup_is_refused() {
    let ground = match Ground::new(Who::Plain) {
        Ok(ground) => ground,
        Err(why) => return println!("skipped: {why}"),
    };
    let words = ["run", "--contain", Level::Cgroup.word(), "--", "touch"];
    let file = ground.path("ran");
    let output = ground
        .command(words.map(Into::into).into_iter().chain([file.clone().into_os_string()]))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("cgroup"), "{said}");
    assert!(!file.try_exists().unwrap(), "the command ran");
    assert_eq!(ground.left(), Vec::<String>::new());
}

/// The leaf of an ordinary user belongs to the command as much as to penfold.
#[test]
fn a_leaf_that_a_command_has_locked_is_emptied_and_removed() {
    let ground = match Ground::new(Who::Delegated) {
        Ok(ground) => ground,
        Err(why) => return println!("skipped: {why}"),
    };
    let locks = [
        "mkdir $C/x; chmod 000 $C/x",
        "mkdir -p $C/x/y; sleep 4421 & echo $! > $C/x/y/cgroup.procs; chmod 000 $C/x/y/cgroup.procs $C/x/y $C/x",
        "chmod 000 $C/cgroup.procs $C/cgroup.kill",
        "chmod 000 $C",
    ];
    for lock in locks {
        for report in [None, Some("--report=/dev/null")] {
            let script = format!(
                "for m in /sys/fs/cgroup /sys/fs/cgroup/unified; do C=$m$(sed -n s/^0:://p /proc/self/cgroup); \
                 [ -d $C ] && break; done; {lock}; setsid sleep 4422 & exit 3"
            );
            let words = ["run", "--contain", "cgroup"].into_iter().chain(report);
            let words = words.chain(["--", "bash", "-c", &script]);
            let cgroup = ground.cgroup().unwrap().join("cgroup.procs");
            let joined = std::fs::OpenOptions::new().write(true).open(cgroup).unwrap();
            let mut command = ground.command(words);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            let started = penfold_sys::launch::spawn_joined(&mut command, joined.into()).unwrap();
            let output = started.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{lock}: {said}");
            assert!(said.contains("verified gone") && !said.contains("NOT"), "{lock}: {said}");
            assert_eq!(ground.left(), Vec::<String>::new(), "{lock}");
        }
    }
}
