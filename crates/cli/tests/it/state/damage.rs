//! Everything that can be lost, damaged or forged of a sandbox's state, alone and in pairs, with a tree of daemons alive
//! inside: it is never said to have ended, its end is the end of all of it, and of nobody else.
//!
//! Needs root for what only root can do to another's files and cgroups.

#![allow(clippy::disallowed_methods, reason = "what these tests remove is their own, or is to be lost")]

use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::support_damage::{Damage, Scene};
use crate::support_f::Dice;

/// Whether outer and inner live when the damage is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Supervisors {
    Alive,
    Killed,
}

/// Does the damage, looks, and ends what is there with these words, where `ID` and `NAME` stand for the sandbox.
fn one(damages: &[Damage], supervisors: Supervisors, words: &[&str]) -> Result<(), String> {
    let mut scene = Scene::new(crate::support_f::Level::Cgroup)?;
    if supervisors == Supervisors::Killed {
        scene.sandbox.kill_both()?;
    }
    for damage in damages {
        damage.act(&mut scene)?;
    }
    scene.daemons_run()?;
    scene.is_not_said_to_be_over(Damage::are_seen_in_a_file(damages))?;
    scene.daemons_run()?;
    scene.end(words)?;
    scene.must_be_over()
}

fn run<Cases>(cases: Cases)
where
    Cases: IntoIterator<Item = (Vec<Damage>, Supervisors, Vec<&'static str>), IntoIter: Send>,
{
    if !crate::support_e2::root() {
        return;
    }
    let told = |(damages, supervisors, words): (Vec<Damage>, Supervisors, Vec<&'static str>)| {
        let why = one(&damages, supervisors, &words).err()?;
        Some(format!("{damages:?}, supervisors {supervisors:?}, {words:?}: {why}"))
    };
    // Most of each is waiting.
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(next).filter_map(told).collect::<Vec<String>>();
    let failures = thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<String>>()
    });
    assert!(failures.is_empty(), "\n  {}", failures.join("\n  "));
}

fn each(supervisors: Supervisors, words: &[&'static str]) {
    run(Damage::ALL.iter().map(|&damage| (vec![damage], supervisors, words.to_vec())));
}

#[test]
fn damaged_sandbox_is_killed_by_its_id() {
    each(Supervisors::Alive, &["kill", "ID"]);
}

#[test]
fn damaged_sandbox_is_killed_by_its_name() {
    each(Supervisors::Alive, &["kill", "NAME"]);
}

#[test]
fn damaged_sandbox_is_stopped() {
    each(Supervisors::Alive, &["stop", "-t", "300ms", "ID"]);
}

#[test]
fn damaged_sandbox_is_removed_by_force() {
    each(Supervisors::Alive, &["rm", "-f", "ID"]);
}

#[test]
fn damaged_orphan_is_killed_by_its_id() {
    each(Supervisors::Killed, &["kill", "ID"]);
}

#[test]
fn damaged_orphan_is_killed_by_its_name() {
    each(Supervisors::Killed, &["kill", "NAME"]);
}

#[test]
fn damaged_orphan_is_removed_by_force() {
    each(Supervisors::Killed, &["rm", "-f", "PREFIX"]);
}

/// Two at a time, forty of all pairs, others each time.
#[test]
fn two_damages_are_no_worse_than_one() {
    let mut dice = Dice::new();
    let seed = dice.seed();
    let mut any = |of: usize| usize::try_from(dice.below(of.try_into().unwrap())).unwrap();
    let all = Damage::ALL;
    let cases: Vec<_> = (0..40)
        .filter_map(|_| {
            let pair = [all[any(all.len())], all[any(all.len())]];
            if Damage::hide_the_truth(pair) {
                return None;
            }
            let supervisors = [Supervisors::Alive, Supervisors::Killed][any(2)];
            let words = [vec!["kill", "ID"], vec!["rm", "-f", "ID"]][any(2)].clone();
            Some((pair.to_vec(), supervisors, words))
        })
        .collect();
    assert!(std::panic::catch_unwind(|| run(cases)).is_ok(), "seed {seed}");
}

/// Neither a record that can be believed nor a leaf is left of it, and nobody looks after it.
#[test]
fn orphan_is_listed_while_a_process_carries_its_marker() {
    let damages = [Damage::RecordGone, Damage::RootRemade, Damage::ReportForged];
    run(damages.map(|damage| (vec![damage, Damage::LeafGone], Supervisors::Killed, vec!["kill", "ID"])));
}

/// All pairs, in both orders.
#[test]
#[ignore = "more than a thousand sandboxes; forty others are tried each time"]
fn no_two_damages_are_worse_than_one() {
    let all = Damage::ALL;
    let pairs = all.iter().flat_map(|&one| all.iter().map(move |&other| [one, other]));
    let cases = pairs.filter(|&pair| !Damage::hide_the_truth(pair)).flat_map(|pair| {
        let case = move |supervisors| (pair.to_vec(), supervisors, vec!["kill", "ID"]);
        [Supervisors::Alive, Supervisors::Killed].map(case)
    });
    run(cases);
}

/// Nothing can be written any more: the end is the same, and what is said of it no guess.
#[test]
fn full_disk_keeps_nobody_alive() {
    if !crate::support_e2::root() {
        return;
    }
    for words in [["kill", "ID"].as_slice(), &["stop", "-t", "300ms", "ID"], &["rm", "-f", "ID"]] {
        for supervisors in [Supervisors::Alive, Supervisors::Killed] {
            let mut scene = Scene::on_a_small_disk().unwrap();
            scene.fill();
            if supervisors == Supervisors::Killed {
                scene.sandbox.kill_both().unwrap();
            }
            scene.is_not_said_to_be_over(false).unwrap();
            let why = scene.end(words).and_then(|()| scene.must_be_over());
            assert_eq!(why, Ok(()), "{words:?}, supervisors {supervisors:?}");
        }
    }
}

/// Without a leaf only the marker is left to know members by once both supervisors are dead.
#[test]
fn orphan_without_a_leaf_is_known_by_its_marker() {
    for damage in [None, Some(Damage::StateMissing), Some(Damage::IntentMissing), Some(Damage::RecordGone)] {
        let mut scene = Scene::new(crate::support_f::Level::Subreaper).unwrap();
        scene.sandbox.kill_both().unwrap();
        if let Some(damage) = damage {
            damage.act(&mut scene).unwrap();
        }
        if damage != Some(Damage::RecordGone) {
            scene.is_not_said_to_be_over(false).unwrap();
        }
        scene
            .end(&["kill", "ID"])
            .and_then(|()| scene.must_be_over())
            .unwrap_or_else(|why| panic!("{damage:?}: {why}"));
    }
}
