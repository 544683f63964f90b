//! Cases of which every pair occurs in one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Ending, Shape};
use crate::support::Prng;

/// Two values that must meet, as words.
pub type Pair = (String, String);

/// The pairs that a case contains. Where a tree cannot be built only the refusal is tried, whatever the ending.
///
/// Detached sandboxes have more endings than there are runs of a tree: for a tree what a client asks for counts as one.
pub fn pairs(case: Case) -> Vec<Pair> {
    let (tree, config) = (case.tree.name.to_owned(), case.config.word());
    let mut found = vec![(tree.clone(), config.clone())];
    if case.is_buildable() {
        let ending = case.ending.word().to_owned();
        found.push((config, ending.clone()));
        found.push((tree, if case.config.shape == Shape::Detached { class(case.ending) } else { ending }));
    }
    found
}

fn class(ending: Ending) -> String {
    let class = match ending {
        Ending::LeaderExit => "detached leader exits",
        Ending::InnerKilled => "detached supervisor killed",
        _ => "detached and asked to end",
    };
    class.to_owned()
}

/// Draws cases until every pair of the product is in one: each time the case of an open pair that has most other open pairs.
pub fn array(product: &[Case], seed: u64) -> Vec<Case> {
    let mut prng = Prng::of(seed);
    let mut holders: BTreeMap<Pair, Vec<usize>> = BTreeMap::new();
    let all: Vec<Vec<Pair>> = product.iter().map(|&case| pairs(case)).collect();
    for (index, pairs) in all.iter().enumerate() {
        for pair in pairs {
            holders.entry(pair.clone()).or_default().push(index);
        }
    }
    let mut open: BTreeSet<Pair> = holders.keys().cloned().collect();
    let mut order: Vec<Pair> = open.iter().cloned().collect();
    prng.shuffle(&mut order);
    // The pairs with the fewest cases first: the others come with them.
    order.sort_by_key(|pair| holders.get(pair).map_or(0, Vec::len));
    let mut chosen = Vec::new();
    for pair in order {
        if !open.contains(&pair) {
            continue;
        }
        let mut candidates = holders.get(&pair).cloned().unwrap_or_default();
        prng.shuffle(&mut candidates);
        let gain = |index: &usize| all[*index].iter().filter(|pair| open.contains(*pair)).count();
        let Some(best) = candidates.into_iter().max_by_key(gain) else { continue };
        for pair in &all[best] {
            open.remove(pair);
        }
        chosen.push(product[best]);
    }
    chosen
}

#[test]
fn every_seed_gives_every_pair_in_about_as_many_cases_as_there_are_trees_in_configurations() {
    let product = super::product();
    let all: BTreeSet<Pair> = product.iter().copied().flat_map(pairs).collect();
    for seed in 0..5 {
        let array = array(&product, seed);
        let seen: BTreeSet<Pair> = array.iter().copied().flat_map(pairs).collect();
        assert_eq!(seen, all, "seed {seed}");
        let detached = array.iter().filter(|case| case.config.shape == Shape::Detached).count();
        let attached = array.len() - detached;
        assert!((500..600).contains(&attached) && (150..220).contains(&detached), "{attached} + {detached}");
    }
    assert_ne!(array(&product, 1), array(&product, 2));
}
