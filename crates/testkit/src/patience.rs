//! How long something may take on a machine that does other things as well.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks.
const NAP: Duration = Duration::from_millis(5);
/// What one look and the nap after it count at most. A look takes a few milliseconds, beside a storm of a thousand processes
/// up to five seconds (six runs of `detached_matrix` on two cores): then whoever is waited for has not run either.
const MOST: Duration = Duration::from_millis(250);

/// A time limit for looks that do not block. Time in which the one who waits got no processor counts for little, as nothing
/// can be said of it.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// Begins now.
    pub fn new(limit: Duration) -> Patience {
        Patience { left: limit, looked: Instant::now() }
    }

    /// Lets a moment go by until the next look; false, and at once, when the time is over.
    pub fn wait(&mut self) -> bool {
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.looked).min(MOST));
        self.looked = now;
        let more = !self.left.is_zero();
        if more {
            sleep(NAP.min(self.left));
        }
        more
    }
}

/// Looks until something holds, at most this long; says whether it does.
pub fn until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let mut patience = Patience::new(limit);
    loop {
        if holds() {
            return true;
        }
        if !patience.wait() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_kept_where_looks_are_short() {
        let begun = Instant::now();
        assert!(!until(Duration::from_millis(50), || false));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn time_without_a_processor_counts_little() {
        let mut looks = 0;
        // As if each look had to wait for a processor for longer than the whole limit.
        let over = until(Duration::from_millis(700), || {
            looks += 1;
            sleep(Duration::from_millis(750));
            looks == 3
        });
        assert!(over, "given up after {looks} looks");
    }
}
