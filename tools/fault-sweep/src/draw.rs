//! Draws the faults by a seed: a rare call is as likely as a call that is made a hundred times.

use std::collections::BTreeMap;

use crate::calls::ObservedCall;
use crate::limits;
use crate::word::{Aim, Fault, Injection, Place};

/// xorshift64*, which is good enough for a draw.
#[derive(Debug)]
struct Prng(u64);

impl Prng {
    fn new(seed: u64) -> Prng {
        Prng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap_or(0) % bound.max(1)
    }
}

/// Draws at most `count` different faults: equally many for each verb and level, and within these for each call of each
/// process.
pub(crate) fn draw(all: &[(Place, Vec<ObservedCall>)], seed: u64, count: usize) -> Vec<Injection> {
    let mut random = Prng::new(seed);
    let mut heaps: Vec<Vec<Vec<Injection>>> = Vec::new();
    for (place, calls) in all {
        let mut kinds: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for seen in calls {
            *kinds.entry((&seen.role, &seen.call)).or_default() += 1;
        }
        heaps.push(kinds.into_iter().map(|(kind, most)| of_one_call(*place, kind, most)).collect());
    }
    let mut drawn = Vec::new();
    while drawn.len() < count && !heaps.is_empty() {
        heaps.retain_mut(|kinds| {
            kinds.retain(|words| !words.is_empty());
            let Some(kind) = kinds.len().checked_sub(1).map(|_| random.below(kinds.len())) else {
                return false;
            };
            if let Some(words) = kinds.get_mut(kind) {
                let chosen = random.below(words.len());
                drawn.push(words.swap_remove(chosen));
            }
            true
        });
    }
    drawn.truncate(count);
    drawn
}

fn of_one_call(place: Place, (role, call): (&str, &str), most: u32) -> Vec<Injection> {
    let mut words = Vec::new();
    let lasting = limits::may_last(call).then_some(None);
    for number in (1..=most).map(Some).chain(lasting) {
        for fault in Fault::common().into_iter().filter(|fault| number.is_some() || fault.may_last()) {
            let aim = Aim { role: role.to_owned(), call: call.to_owned(), part: String::new(), number };
            let word = Injection { place, aim, fault };
            if limits::excused(&word).is_none() {
                words.push(word);
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_nothing_twice() {
        let place = "run/cgroup".parse().unwrap();
        let seen =
            ObservedCall { role: "launcher".to_owned(), call: "openat".to_owned(), object: String::new() };
        let calls = vec![seen; 5];
        let all = [(place, calls)];
        let mut drawn = draw(&all, 4, 30);
        assert_eq!(drawn, draw(&all, 4, 30));
        assert_eq!(drawn.len(), 30);
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), 30);
        let lasting = Fault::common().iter().filter(|fault| fault.may_last()).count();
        assert_eq!(draw(&all, 4, 1000).len(), 5 * Fault::common().len() + lasting);
    }
}
