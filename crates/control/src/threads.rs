//! Calls a function for many items in several threads.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{Builder, available_parallelism};

/// The most threads of [`at_once`]. An item that takes long delays no other, up to this number of items.
const AT_ONCE: usize = 128;
/// The most threads of [`on_all_processors`]: more would wait for each other in the kernel.
const MOST_PROCESSORS: usize = 8;
/// The number of items that are worth a thread.
const WORTH_A_THREAD: usize = 64;

/// Calls `act` for all items in parallel, each in its own thread if threads can be made.
///
/// The results are in the order of `all`.
pub fn at_once<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let parts = in_threads(all, AT_ONCE, |some| some.iter().map(&act).collect::<Vec<R>>());
    parts.into_iter().flatten().collect()
}

/// Calls `act` for parts of `all` that together are all items, as many at a time as there are processors.
///
/// The results are in the order of `all`. Few items take no thread.
pub fn on_all_processors<T: Sync, R: Send>(all: &[T], act: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    if all.len() <= WORTH_A_THREAD {
        return vec![act(all)];
    }
    let processors = available_parallelism().map_or(1, NonZero::get);
    in_threads(all, processors.min(MOST_PROCESSORS), act)
}

fn in_threads<T: Sync, R: Send>(all: &[T], most: usize, act: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .chunks(all.len().div_ceil(most).max(1))
            .map(|some| (some, Builder::new().spawn_scoped(scope, || act(some))))
            .collect();
        let joined = threads.into_iter().map(|(some, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => act(some),
        });
        joined.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_none_is_missing() {
        for count in [0_usize, 1, 64, 65, 1001] {
            let all: Vec<usize> = (0..count).collect();
            assert_eq!(on_all_processors(&all, <[usize]>::to_vec).concat(), all);
            assert_eq!(at_once(&all, |item| *item), all);
        }
    }
}
