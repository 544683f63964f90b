//! The times of one contender.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Times in nanoseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The time that this share of the samples (in percent) does not exceed, by nearest rank; zero without samples.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        Duration::from_nanos(sorted.get(rank).copied().unwrap_or(0))
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    /// `p50 (p90)` in milliseconds.
    pub(crate) fn cell(&self) -> String {
        format!("{} ({})", millis(self.p50()), millis(self.percentile(90)))
    }

    /// The ratio of this median to the median of `other`.
    pub(crate) fn times(&self, other: &Samples) -> Option<f64> {
        let (own, other) = (self.p50().as_secs_f64(), other.p50().as_secs_f64());
        (own > 0.0 && other > 0.0).then(|| own / other)
    }
}

/// Milliseconds with about three significant digits.
pub(crate) fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    if millis < 10.0 {
        format!("{millis:.2}")
    } else if millis < 100.0 {
        format!("{millis:.1}")
    } else {
        format!("{millis:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_nearest_rank() {
        let samples = Samples((1..=10).rev().collect());
        assert_eq!(samples.p50(), Duration::from_nanos(5));
        assert_eq!(samples.percentile(90), Duration::from_nanos(9));
        assert_eq!(Samples(vec![7]).percentile(90), Duration::from_nanos(7));
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }

    #[test]
    fn nothing_is_no_multiple_of_nothing() {
        assert_eq!(Samples::default().times(&Samples(vec![1])), None);
        assert_eq!(Samples(vec![3]).times(&Samples(vec![2])), Some(1.5));
    }
}
