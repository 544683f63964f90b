//! The pairs of the matrix, counted from the names of the tests that ran.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use penfold_testkit::catalog::TREES;

use super::{CONFIGS, Case, ENDINGS, Shape, USERS_TREES};
use crate::support::Who;

/// Panics unless every tree met every configuration and every ending, and every configuration every ending.
///
/// The names are taken apart here, and what is expected is counted from the lists of values: the generator is not asked.
fn assert_every_pair(names: &[String]) {
    let ran: Vec<[&str; 3]> = names
        .iter()
        .filter_map(|name| name.split_once("hostile::matrix::"))
        .filter_map(|(_, case)| case.split("::").collect::<Vec<_>>().try_into().ok())
        .collect();
    let met = |one: usize, other: usize| -> BTreeSet<[&str; 2]> {
        ran.iter().map(|words| [words[one], words[other]]).collect()
    };
    let (tree_config, tree_ending, config_ending) = (met(0, 1), met(0, 2), met(1, 2));
    let mut missing = Vec::new();
    let mut expect = |met: &BTreeSet<[&str; 2]>, one: &str, other: &str| {
        if !met.contains(&[one, other]) {
            missing.push(format!("{one} × {other}"));
        }
    };
    let detached = |config: &&super::Config| config.shape == Shape::Detached;
    for tree in TREES {
        let is_hasty = tree.name == "hasty";
        for config in &CONFIGS {
            if !detached(&config) || config.who == Who::Root || USERS_TREES.contains(&tree.name) {
                expect(&tree_config, tree.name, &config.word());
            }
        }
        for (ending, word) in &ENDINGS {
            // Of what a client asks a detached sandbox for, a tree meets one. Where the tree cannot be built, no ending
            // happens.
            let mut attached = CONFIGS.iter().filter(|config| !detached(config) && ending.fits(config.shape));
            let happens = attached
                .any(|&config| Case { tree, config, ending: *ending, full_size: false }.is_buildable());
            if happens && (!is_hasty || *word == "leader_exits") {
                expect(&tree_ending, tree.name, word);
            }
        }
    }
    for config in &CONFIGS {
        for (_, word) in ENDINGS.iter().filter(|(ending, _)| ending.fits(config.shape)) {
            expect(&config_ending, &config.word(), word);
        }
    }
    assert!(missing.is_empty(), "{} cases, and {} pairs did not run: {missing:?}", ran.len(), missing.len());
    println!(
        "{} cases: {} trees × configurations, {} trees × endings, {} configurations × endings",
        ran.len(),
        tree_config.len(),
        tree_ending.len(),
        config_ending.len()
    );
}

/// The names of the tests that this binary runs unless more is asked for.
fn listed() -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let listed = command.args(["--list", "--format", "terse"]).stdin(Stdio::null()).output().unwrap();
    let ignored = command.arg("--ignored").output().unwrap();
    let lines = |bytes: &[u8]| -> BTreeSet<String> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
    };
    lines(&listed.stdout).difference(&lines(&ignored.stdout)).cloned().collect()
}

#[test]
fn every_pair_of_the_matrix_is_a_test_of_this_run() {
    assert_every_pair(&listed());
}

/// For `scripts/test`, after the run: takes the names from the file that the test runner wrote.
#[test]
#[ignore = "it judges a run that is over"]
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told which file")]
fn every_pair_of_the_matrix_has_run() {
    let Some(path) = std::env::var_os("PENFOLD_JUNIT") else {
        return println!("skipped: no `PENFOLD_JUNIT`");
    };
    let text = std::fs::read_to_string(path).unwrap();
    let cases = text.split("<testcase name=\"").skip(1);
    let names: Vec<String> = cases.filter_map(|case| Some(case.split_once('"')?.0.to_owned())).collect();
    assert!(names.iter().filter_map(|name| Case::parse(name)).count() > 500, "{} tests ran", names.len());
    assert_every_pair(&names);
}
