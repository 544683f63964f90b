//! Everything that can be lost, damaged or forged of a sandbox's state, alone and in pairs, with a tree of daemons alive
//! inside: penfold never says that the sandbox has ended, and ends all of it and no other process.
//!
//! Needs root for what only root can do to files and cgroups of others.

mod harm;
pub mod scene;

use std::thread;

use penfold_harness::Trial;

use self::harm::Damage;
use self::scene::Scene;
use crate::support::{Level, Prng, TestEnv, is_root};

/// Whether outer and inner live when the damage is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Supervisors {
    Alive,
    Killed,
}

impl Supervisors {
    const BOTH: [Supervisors; 2] = [Supervisors::Alive, Supervisors::Killed];
}

/// What ends a damaged sandbox: the name of the test, the words of the commands.
const ENDINGS: [(&str, Supervisors, &[&[&str]]); 2] = [
    (
        // spec: 12.7
        "damaged_sandbox_ends",
        Supervisors::Alive,
        &[&["kill", "ID"], &["kill", "NAME"], &["stop", "-t", "300ms", "ID"], &["rm", "-f", "ID"]],
    ),
    (
        // spec: 12.7
        "damaged_orphan_ends",
        Supervisors::Killed,
        &[&["kill", "ID"], &["kill", "NAME"], &["rm", "-f", "PREFIX"]],
    ),
];

/// A test for each damage, with living and with dead supervisors, and for each pair of damages.
///
/// Of the pairs, ordinary runs take a sample, in which every damage occurs; `PENFOLD_MATRIX_SEED` chooses another.
pub fn generated() -> Vec<Trial> {
    let singles = ENDINGS.into_iter().flat_map(|(test, supervisors, endings)| {
        Damage::ALL.iter().map(move |&damage| {
            let name = format!("state::damage::{test}::{}", damage.name());
            trial(name, move || every_ending(damage, supervisors, endings))
        })
    });
    let full_disks = [&["kill", "ID"][..], &["stop", "-t", "300ms", "ID"], &["rm", "-f", "ID"]];
    let full_disks = full_disks.into_iter().map(|words| {
        // spec: 12.7
        let name = format!("state::damage::full_disk_keeps_nobody_alive::{}", words[0]);
        trial(name, move || sandbox_on_a_full_disk_ends(words))
    });
    let seed = seed();
    let sample = sample(seed);
    let pairs = all_pairs().into_iter().zip(seed..).map(move |(pair, seed)| {
        let [one, other] = pair;
        // spec: 12.7
        let name = format!("state::damage::pairs::{}::{}", one.name(), other.name());
        let is_in_sample = sample.contains(&pair);
        trial(name, move || two_damages(pair, seed)).with_ignored_flag(!is_in_sample)
    });
    singles.chain(full_disks).chain(pairs).collect()
}

fn trial(name: String, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        if is_root() {
            test();
        }
        Ok(())
    })
}

#[expect(clippy::disallowed_methods, reason = "the person who runs the tests chooses")]
fn seed() -> u64 {
    std::env::var("PENFOLD_MATRIX_SEED")
        .map_or(1, |seed| seed.parse().expect("PENFOLD_MATRIX_SEED: a number"))
}

/// All pairs, in both orders.
fn all_pairs() -> Vec<[Damage; 2]> {
    let pairs = Damage::ALL.iter().flat_map(|&one| Damage::ALL.iter().map(move |&other| [one, other]));
    pairs.filter(|&pair| !Damage::hide_the_truth(pair)).collect()
}

/// Pairs in which every damage occurs.
fn sample(seed: u64) -> Vec<[Damage; 2]> {
    let mut prng = Prng::of(seed);
    let mut pairs = all_pairs();
    pairs.retain(|[one, other]| one != other);
    let mut missing = Damage::ALL.to_vec();
    let mut sample = Vec::new();
    while let Some(&wanted) = missing.first() {
        let mut fresh = pairs.clone();
        fresh.retain(|pair| pair.contains(&wanted) && pair.iter().all(|damage| missing.contains(damage)));
        // The last one may be left without a partner.
        if fresh.is_empty() {
            fresh.clone_from(&pairs);
            fresh.retain(|pair| pair.contains(&wanted));
        }
        let pair = *prng.one_of(&fresh);
        missing.retain(|damage| !pair.contains(damage));
        sample.push(pair);
    }
    sample
}

/// Ends a sandbox with this damage by each of these commands, and each time another sandbox.
fn every_ending(damage: Damage, supervisors: Supervisors, endings: &[&[&str]]) {
    let end = |words: &[&str]| end_damaged(&[damage], supervisors, words);
    if damage.is_impostor() {
        // penfold waits for an impostor for up to two seconds: all commands at a time.
        thread::scope(|scope| {
            let threads: Vec<_> = endings.iter().map(|words| scope.spawn(move || end(words))).collect();
            // They end together: the end of one kills what has no environment, as a process of another that calls
            // execve(2).
            let envs: Vec<TestEnv> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            drop(envs);
        });
    } else {
        for words in endings {
            drop(end(words));
        }
    }
}

/// Does the damage, looks, and ends the sandbox with these words. Gives the environment, in which nothing is left.
fn end_damaged(damages: &[Damage], supervisors: Supervisors, words: &[&str]) -> TestEnv {
    println!("case {damages:?}, supervisors {supervisors:?}, {words:?}");
    let mut scene = Scene::new(Level::Cgroup);
    if supervisors == Supervisors::Killed {
        scene.sandbox.kill_supervisors();
    }
    for damage in damages {
        damage.act(&mut scene);
    }
    scene.assert_daemons_run();
    scene.assert_not_said_to_be_over(Damage::are_seen_in_a_file(damages));
    scene.assert_daemons_run();
    scene.end(words);
    scene.assert_over()
}

/// Two damages, one after the other, are no worse than one.
fn two_damages(pair: [Damage; 2], seed: u64) {
    let mut prng = Prng::of(seed);
    for supervisors in Supervisors::BOTH {
        let words = prng.one_of(&[vec!["kill", "ID"], vec!["rm", "-f", "ID"]]).clone();
        drop(end_damaged(&pair, supervisors, &words));
    }
}

/// Nothing can be written any more: the sandbox ends all the same, and no answer is a guess.
fn sandbox_on_a_full_disk_ends(words: &[&str]) {
    for supervisors in Supervisors::BOTH {
        println!("case {words:?}, supervisors {supervisors:?}");
        let scene = Scene::on_a_small_disk();
        scene.fill();
        if supervisors == Supervisors::Killed {
            scene.sandbox.kill_supervisors();
        }
        scene.assert_not_said_to_be_over(false);
        scene.end(words);
        scene.assert_over();
    }
}

/// No record that can be believed is left of it, no leaf and no supervisor.
/// spec: 12.7
#[test]
fn orphan_is_listed_while_a_process_carries_its_marker() {
    if !is_root() {
        return;
    }
    for damage in [Damage::RecordGone, Damage::RootRemade, Damage::ReportForged] {
        drop(end_damaged(&[damage, Damage::LeafGone], Supervisors::Killed, &["kill", "ID"]));
    }
}

/// Without a leaf, members of an orphan are known only by the marker in their environment.
/// spec: 12.7
#[test]
fn orphan_without_a_leaf_is_known_by_its_marker() {
    if !is_root() {
        return;
    }
    for damage in [None, Some(Damage::StateMissing), Some(Damage::IntentMissing), Some(Damage::RecordGone)] {
        println!("case {damage:?}");
        let mut scene = Scene::new(Level::Subreaper);
        scene.sandbox.kill_supervisors();
        if let Some(damage) = damage {
            damage.act(&mut scene);
        }
        if damage != Some(Damage::RecordGone) {
            scene.assert_not_said_to_be_over(false);
        }
        scene.end(&["kill", "ID"]);
        scene.assert_over();
    }
}

#[test]
fn every_damage_is_in_the_sample_of_every_seed() {
    for seed in 0..100 {
        let sample = sample(seed);
        assert!(sample.len() <= Damage::ALL.len());
        assert!(Damage::ALL.iter().all(|damage| sample.iter().any(|pair| pair.contains(damage))), "{seed}");
    }
}
