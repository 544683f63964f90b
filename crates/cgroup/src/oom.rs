//! Counts of the times that memory was short, and of the processes that the kernel has killed for it.

use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use crate::dir;

/// How often memory was short in a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shortages {
    /// Processes that were killed for it (`oom_kill`).
    pub kills: u64,
    /// Times that the cgroup's own limit was the reason (`oom`).
    pub at_limit: u64,
}

/// A cgroup above a leaf without the memory controller, with its counts at an earlier time.
///
/// The kernel charges the memory of the leaf's members to the next cgroup above that has the controller, and counts
/// their kills there. Other members of that cgroup count too.
#[derive(Debug)]
pub(crate) struct Baseline {
    file: PathBuf,
    then: Shortages,
}

impl Baseline {
    /// Reads the counts of the next cgroup above `leaf` that has them. Kernel: `memory.events.local`, Linux 5.2.
    pub(crate) fn above(leaf: &Path) -> Option<Self> {
        leaf.ancestors().skip(1).find_map(|directory| {
            let file = directory.join("memory.events.local");
            let then = count(&file)?;
            Some(Self { file, then })
        })
    }

    /// Returns the counts since then.
    pub(crate) fn since(&self) -> Shortages {
        count(&self.file).map_or_else(Shortages::default, |now| Shortages {
            kills: now.kills.saturating_sub(self.then.kills),
            at_limit: now.at_limit.saturating_sub(self.then.at_limit),
        })
    }
}

fn count(file: &Path) -> Option<Shortages> {
    let file = rustix::path::Arg::into_c_str(file).ok()?;
    let mut text = [0; 512];
    dir::read_short(CWD, &file, &mut text).ok().and_then(parse_shortages)
}

/// Returns the counts in the text of `memory.events` or `memory.events.local`.
pub(crate) fn parse_shortages(text: &[u8]) -> Option<Shortages> {
    let value = |key: &[u8]| {
        let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key))?;
        std::str::from_utf8(line.trim_ascii()).ok()?.parse().ok()
    };
    Some(Shortages { kills: value(b"oom_kill ")?, at_limit: value(b"oom ").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_want_of_memory_are_counted_apart_from_those_of_groups() {
        // From a host with cgroup v2 only, Linux 6.12.
        let text = b"low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(parse_shortages(text), Some(Shortages { kills: 1, at_limit: 2 }));
        assert_eq!(parse_shortages(b"low 0\nhigh 0\nmax 0\noom 0\n"), None);
        assert_eq!(parse_shortages(b""), None);
    }

    /// spec: 2.4
    #[test]
    fn the_next_cgroup_above_with_the_controller_counts_what_the_leaf_does_not() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("unit/below/leaf");
        std::fs::create_dir_all(&leaf).unwrap();
        assert!(Baseline::above(&leaf).is_none());
        let (far, near) =
            (root.path().join("memory.events.local"), root.path().join("unit/memory.events.local"));
        std::fs::write(&far, "oom_kill 7\n").unwrap();
        std::fs::write(&near, "oom 3\noom_kill 2\n").unwrap();
        // The leaf's own count is not its parent's.
        std::fs::write(leaf.join("memory.events.local"), "oom_kill 9\n").unwrap();
        let baseline = Baseline::above(&leaf).unwrap();
        assert_eq!(baseline.since().kills, 0, "kills before the start do not count");
        std::fs::write(&far, "oom_kill 8\n").unwrap();
        assert_eq!(baseline.since().kills, 0, "kills in a cgroup farther above do not count");
        std::fs::write(&near, "oom 4\noom_kill 3\n").unwrap();
        assert_eq!(baseline.since(), Shortages { kills: 1, at_limit: 1 });
        std::fs::remove_file(&near).unwrap();
        assert_eq!(baseline.since().kills, 0);
    }
}
