//! SIGKILL to processes of penfold, at any moment and in any combination: within a second nothing is left that the
//! policy says must end.
//!
//! Needs root and the program `testkit`: `cargo nextest run -p penfold -p penfold-testkit`.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::process::Child;
use std::time::Duration;

use penfold_testkit::proc::Handle;
use penfold_testkit::{Bystander, Tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::support_e1::house::{House, Ours};
use crate::support_e1::nest::{Nest, child_of, random};
use crate::support_e1::{Ground, Level, PROMPT, Shape, Who, until};

/// How many early kills each test tries.
const ROUNDS: u32 = 100;
/// The moments at which a kill may come, in microseconds after the shell starts that becomes penfold.
const EARLY: u64 = 5000;
/// A leader with a child and a stray.
const COMMAND: [&str; 3] = ["sh", "-c", "setsid sleep 60 & sleep 60"];

/// A ground, or the reason why there is none, printed.
fn ground() -> Option<Ground> {
    Ground::new(Who::Root).map_err(|why| println!("skipped: {why}")).ok()
}

/// Starts sandboxes and kills one process of each a moment later.
fn early_kills(level: Level, mut kill: impl FnMut(&mut Child)) {
    let Some(ground) = ground() else { return };
    let nest = Nest::new();
    let mut bystander = Bystander::spawn().unwrap();
    let mut failures = Vec::new();
    for round in 0..ROUNDS {
        if failures.len() > 4 {
            break;
        }
        let mut front = nest.spawn(&mut ground.shaped(Shape::Pair, level, &[], &COMMAND));
        // The random moment of the kill, or its end if that comes first.
        let moment = Timespec::try_from(Duration::from_micros(random(EARLY))).unwrap();
        let pidfd = pidfd_open(Pid::from_child(&front), PidfdFlags::empty()).unwrap();
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&moment)).unwrap();
        kill(&mut front);
        let own = bystander.pid().to_string();
        let gone = until(PROMPT, || {
            // The bystander is a child of this process, too.
            let _ = front.try_wait();
            nest.living().iter().all(|process| process.starts_with(&format!("{own}:")))
        });
        if !gone {
            failures.push(format!("round {round}: {:?}", nest.living()));
            let _ = front.kill();
        }
        // A front that dies before its supervisor is born leaves an empty leaf and a record, for the next command.
        if !ground.left().is_empty() {
            ground.next_command().unwrap();
            let left = ground.await_clean(PROMPT);
            if !left.is_empty() {
                failures.push(format!("round {round}: after the next command {left:?}"));
            }
        }
    }
    bystander.assert_alive();
    drop(bystander);
    assert!(failures.is_empty(), "{level:?}:\n  {}", failures.join("\n  "));
    drop(ground);
    nest.check();
}

fn kill_front(front: &mut Child) {
    front.kill().unwrap();
}

fn kill_supervisor(front: &mut Child) {
    let mut inner = None;
    until(Duration::from_secs(10), || {
        inner = child_of(front.id());
        inner.is_some() || front.try_wait().is_ok_and(|status| status.is_some())
    });
    if let Some(handle) = inner.and_then(|inner| Handle::open(inner).ok().flatten()) {
        handle.signal(Signal::KILL).unwrap();
    }
}

macro_rules! early {
    ($($name:ident $level:ident $kill:ident)*) => {
        $(#[test] fn $name() { early_kills(Level::$level, $kill); })*
    };
}

early! {
    hundred_early_kills_of_the_front_leave_nothing_at_cgroup_level Cgroup kill_front
    hundred_early_kills_of_the_front_leave_nothing_at_pidns_level Pidns kill_front
    hundred_early_kills_of_the_front_leave_nothing_at_subreaper_level Subreaper kill_front
    hundred_early_kills_of_the_supervisor_leave_nothing_at_cgroup_level Cgroup kill_supervisor
    hundred_early_kills_of_the_supervisor_leave_nothing_at_pidns_level Pidns kill_supervisor
    hundred_early_kills_of_the_supervisor_leave_nothing_at_subreaper_level Subreaper kill_supervisor
}

/// A tree that stands, with the processes of ours around it.
fn stand(ground: &Ground, shape: Shape, level: Level, options: &[&str]) -> (Tree, House) {
    let tree = Tree::spawn(&ground.tool(shape, level, options), "daemon").unwrap();
    tree.assert_alive();
    let house = House::around(&tree, shape, level).unwrap();
    (tree, house)
}

fn gone(ground: &Ground, tree: &Tree, what: &str) {
    let survivors = tree.await_gone(PROMPT);
    assert!(survivors.is_empty(), "{what}: {survivors:?}");
    let left = ground.await_clean(PROMPT);
    assert!(left.is_empty(), "{what}: {left:?}");
}

/// Every set of ours but all of them: who is left ends the sandbox.
#[test]
fn any_of_ours_that_is_left_ends_the_sandbox() {
    use Ours::{Front, Inner, Outer};
    let pairs: [&[Ours]; 2] = [&[Front], &[Inner]];
    let trios: [&[Ours]; 6] =
        [&[Front], &[Outer], &[Inner], &[Front, Outer], &[Front, Inner], &[Outer, Inner]];
    for (shape, sets) in [(Shape::Pair, pairs.as_slice()), (Shape::Trio, trios.as_slice())] {
        for level in Level::ALL {
            for set in sets {
                let Some(ground) = ground() else { return };
                let (tree, house) = stand(&ground, shape, level, &[]);
                house.kill(set).unwrap();
                gone(&ground, &tree, &format!("{shape:?} {level:?} {set:?}"));
                tree.end().unwrap();
            }
        }
    }
}

/// All of ours in the same instant: the next command cleans up.
#[test]
fn next_command_ends_what_all_of_ours_left() {
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            let Some(ground) = ground() else { return };
            let (tree, house) = stand(&ground, shape, level, &[]);
            house.kill_all().unwrap();
            let what = format!("{shape:?} {level:?}: {:?}: {}", tree.survivors(), tree.stderr());
            assert!(!ground.left().is_empty(), "the record is gone before the members are: {what}");
            ground.next_command().unwrap();
            gone(&ground, &tree, &format!("{shape:?} {level:?}"));
            tree.end().unwrap();
        }
    }
}

/// The same with `gc`, which says so.
#[test]
fn gc_ends_what_all_of_ours_left() {
    for level in Level::ALL {
        let Some(ground) = ground() else { return };
        let (tree, house) = stand(&ground, Shape::Pair, level, &[]);
        house.kill_all().unwrap();
        ground.await_unlocked();
        let output = ground.command(["gc", "-f"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{level:?}: {}: {said}", output.status);
        // What `gc` reports is observed. An init of ours that is dead for its lock and its leaf may be seen for a moment longer.
        let mut survivors = tree.survivors();
        survivors.retain(|survivor| survivor.name != "penfold");
        assert!(survivors.is_empty(), "{level:?}: {survivors:?}");
        gone(&ground, &tree, &format!("{level:?}"));
        tree.end().unwrap();
    }
}

/// A front that is stopped is no help; with an outer process none is needed, without one it acts once it goes on.
#[test]
fn stopped_front_and_killed_supervisor_leave_nothing() {
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            let Some(ground) = ground() else { return };
            let (tree, house) = stand(&ground, shape, level, &[]);
            let what = format!("{shape:?} {level:?}");
            house.signal(Ours::Front, Signal::STOP).unwrap();
            house.kill(&[Ours::Inner]).unwrap();
            if shape == Shape::Trio {
                let members = tree.members();
                let ended =
                    until(PROMPT, || !tree.survivors().iter().any(|survivor| members.contains(&survivor.id)));
                assert!(ended, "{what}: {:?}", tree.survivors());
            }
            house.signal(Ours::Front, Signal::CONT).unwrap();
            gone(&ground, &tree, &what);
            tree.end().unwrap();
        }
    }
}

#[test]
fn death_of_the_owner_ends_the_sandbox() {
    for shape in [Shape::Pair, Shape::Trio] {
        for level in Level::ALL {
            for policy in ["kill", "stop"] {
                let Some(ground) = ground() else { return };
                let (tree, _) = stand(&ground, shape, level, &["--on-owner-exit", policy]);
                tree.kill_owner().unwrap();
                gone(&ground, &tree, &format!("{shape:?} {level:?} {policy}"));
                tree.end().unwrap();
            }
        }
    }
}

#[test]
fn sandbox_that_is_kept_outlives_its_owner_and_ends_with_its_leader() {
    let Some(ground) = ground() else { return };
    let (tree, _) = stand(&ground, Shape::Pair, Level::Cgroup, &["--on-owner-exit", "keep"]);
    tree.kill_owner().unwrap();
    let ended = until(Duration::from_millis(300), || tree.check_alive().is_err());
    assert!(!ended, "{:?}", tree.check_alive());
    tree.tell_leader_to_exit().unwrap();
    gone(&ground, &tree, "kept");
    tree.end().unwrap();
}
