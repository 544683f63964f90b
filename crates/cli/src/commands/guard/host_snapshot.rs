//! What the host has besides processes, before and after the tests. Others may make such things at the same time, so a new one is
//! only named.

use std::collections::BTreeSet;

/// Names of network namespaces, mounts and links.
#[derive(Debug, Default)]
pub(super) struct HostSnapshot {
    things: BTreeSet<String>,
}

impl HostSnapshot {
    /// Looks at the host. What cannot be read is left out.
    pub(super) fn look() -> HostSnapshot {
        let names = |dir: &str| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // The fifth word is the mount point, proc_pid_mountinfo(5).
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let things = names("/run/netns")
            .into_iter()
            .map(|name| format!("network namespace {name}"))
            .chain(names("/sys/class/net").into_iter().map(|name| format!("link {name}")))
            .chain(mounts.map(|point| format!("mount {point}")));
        HostSnapshot { things: things.collect() }
    }

    /// Returns what `before` did not have.
    pub(super) fn since(&self, before: &HostSnapshot) -> Vec<String> {
        self.things.difference(&before.things).cloned().collect()
    }
}
