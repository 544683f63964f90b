//! The limits of a sandbox: memory, number of processes, processor time.

mod controller;
mod error;
mod files;
mod place;
mod subtree;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use controller::Controller;
pub use error::LimitError;
pub use place::{LEAF_PREFIX, LimitedPlace, is_delegated};

/// The limits of the members of a leaf together. Kernel: Documentation/admin-guide/cgroup-v2.rst, "Controllers".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The most memory, in bytes; swap is not used beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The processor time for each second; in JSON a number of processors, such as 1.5.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "processors")]
    pub cpus: Option<Duration>,
}

/// The accepted limits of memory: below a mebibyte no program starts.
pub const MEMORY_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// The accepted numbers of processes. The kernel has no more pids: `PID_MAX_LIMIT`, include/linux/threads.h.
pub const PIDS: RangeInclusive<u64> = 1..=4 << 20;
/// The accepted processor time for each second. The kernel's smallest quota is a millisecond in a period, sched-bwc.rst; it has
/// 8192 processors at most.
pub const CPUS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(8192);

impl Limits {
    /// Tells whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the stricter limit of each kind.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            }
        }
        Self {
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            pids: least(self.pids, other.pids),
            cpus: least(self.cpus, other.cpus),
        }
    }

    /// Returns the controllers that hold these limits.
    pub fn controllers(&self) -> impl Iterator<Item = Controller> + use<> {
        [
            self.memory_bytes.map(|_| Controller::Memory),
            self.pids.map(|_| Controller::Pids),
            self.cpus.map(|_| Controller::Cpu),
        ]
        .into_iter()
        .flatten()
    }
}

/// Reads and writes the processor time for each second as a number of processors.
mod processors {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde wants")]
    pub(super) fn serialize<S: Serializer>(cpus: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        match cpus {
            Some(cpus) => out.serialize_f64(cpus.as_secs_f64()),
            None => out.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
        let number = Option::<f64>::deserialize(input)?;
        number.map(Duration::try_from_secs_f64).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_stricter_counts() {
        let one = Limits { memory_bytes: Some(5), pids: None, cpus: Some(Duration::from_millis(500)) };
        let other = Limits { memory_bytes: Some(7), pids: Some(3), cpus: Some(Duration::from_secs(2)) };
        let both = Limits { memory_bytes: Some(5), pids: Some(3), cpus: Some(Duration::from_millis(500)) };
        assert_eq!(one.stricter(other), both);
        assert_eq!(other.stricter(one), both);
        assert_eq!(both.stricter(Limits::default()), both);
    }

    #[test]
    fn json_has_processors_as_a_number_and_omits_what_is_not_limited() {
        let limits =
            Limits { memory_bytes: Some(512 << 20), pids: None, cpus: Some(Duration::from_millis(1500)) };
        let text = serde_json::to_string(&limits).unwrap();
        assert_eq!(text, r#"{"memory_bytes":536870912,"cpus":1.5}"#);
        assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        assert_eq!(serde_json::from_str::<Limits>("{}").unwrap(), Limits::default());
        let whole: Limits = serde_json::from_str(r#"{"cpus":2}"#).unwrap();
        assert_eq!(whole.cpus, Some(Duration::from_secs(2)));
        assert!(serde_json::from_str::<Limits>(r#"{"cpus":-1}"#).is_err());
    }
}
