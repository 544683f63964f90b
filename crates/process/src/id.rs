//! The identity of a process: its pid and its start time.

use std::cmp::Ordering;
use std::fmt;
use std::io;
use std::time::Duration;

use rustix::process::Pid;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The start time of a process in clock ticks since boot: field 22 of `/proc/<pid>/stat`, proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartTime(pub u64);

impl StartTime {
    /// Converts to the time from boot to the start.
    pub fn since_boot(self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs(self.0 / per_second)
            + Duration::from_nanos((self.0 % per_second).saturating_mul(1_000_000_000) / per_second)
    }
}

/// The identity of a process within one boot: its pid and its start time.
///
/// A pid alone is not an identity, because the kernel reuses pids. Across boots, the identity includes [`boot_id`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// The pid, as the reader's `/proc` shows it.
    pub pid: Pid,
    /// The start time.
    pub start: StartTime,
}

impl Ord for ProcessId {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.start, self.pid.as_raw_pid()).cmp(&(other.start, other.pid.as_raw_pid()))
    }
}

/// Older processes come first.
impl PartialOrd for ProcessId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Writes `pid@start`, the start in clock ticks.
impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.pid, self.start.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "ProcessId")]
struct Written {
    pid: i32,
    start: StartTime,
}

impl Serialize for ProcessId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written { pid: self.pid.as_raw_pid(), start: self.start }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { pid, start } = Written::deserialize(deserializer)?;
        let pid =
            pid_from_raw(pid).ok_or_else(|| D::Error::custom(format_args!("`{pid}` cannot be a pid")))?;
        Ok(Self { pid, start })
    }
}

/// Makes a [`Pid`] of a positive number. Zero and negative numbers mean groups and "any" to the kernel.
pub fn pid_from_raw(raw: i32) -> Option<Pid> {
    if raw > 0 { Pid::from_raw(raw) } else { None }
}

/// Reads the id of this boot, a uuid: `/proc/sys/kernel/random/boot_id`, random(4).
pub fn boot_id() -> io::Result<String> {
    let mut id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    id.truncate(id.trim_end().len());
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: i32, start: u64) -> ProcessId {
        ProcessId { pid: pid_from_raw(pid).expect("a pid"), start: StartTime(start) }
    }

    /// spec: 3.1
    #[test]
    fn identity_needs_both_halves() {
        assert_ne!(id(7, 1), id(7, 2));
        assert_ne!(id(7, 1), id(8, 1));
        assert!(id(9, 1) < id(2, 2), "older first");
        assert_eq!(id(7, 100).to_string(), "7@100");
    }

    #[test]
    fn numbers_with_a_meaning_of_their_own_are_no_pids() {
        assert_eq!(pid_from_raw(0), None);
        assert_eq!(pid_from_raw(-1), None);
        assert_eq!(pid_from_raw(i32::MIN), None);
    }

    #[test]
    fn boot_id_is_a_uuid() {
        assert_eq!(boot_id().expect("every Linux has it").len(), 36);
    }
}
