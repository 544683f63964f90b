//! Decides which processes a marker proves to be members.
//!
//! A process outside the sandbox may carry a copy: tmux, ssh and `systemctl --user import-environment` copy it.

use std::collections::HashSet;

use crate::spare::{SparedMark, binding_ids};
use penfold_process::{EnvironmentMatch, Pid, ProcFs, ProcessId, StartTime, Stat};

/// The variable that marks the members of a sandbox. Its value is the ids of the enclosing sandboxes and the sandbox
/// itself, outermost first, separated by `:`.
pub const MARKER: &str = "PENFOLD_SANDBOX";

/// A sandbox whose supervisor is lost, and the facts about its members besides their marker.
///
/// A process of another user, or one that is older than the sandbox, is never a member by its marker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marker {
    /// The id of the sandbox, one of the parts of the marker variable.
    pub sandbox: String,
    /// The user of the sandbox; `None` for the user who searches.
    pub user: Option<u32>,
    /// The start time of the sandbox's oldest process, if known.
    pub since: Option<StartTime>,
    /// The session of the sandbox's first process, if known.
    pub session: Option<i32>,
    /// The cgroup in which the sandbox was started, by the text that follows `0::`, if known.
    pub home: Option<String>,
    /// The ancestors of the sandbox when it started, as far as known: one of them adopts its orphans.
    pub ancestors: Vec<ProcessId>,
    /// Whether the marker alone is proof, because somebody has named the sandbox.
    pub suffices: bool,
    /// The sandboxes that have spared processes: their markers bind these no more.
    pub spared: Vec<SparedMark>,
}

/// The processes that carry a marker.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    /// The carriers for which there is another proof.
    pub(super) proven: HashSet<Pid>,
    /// The carriers that may have copied the marker.
    pub(super) unproven: HashSet<Pid>,
}

impl Marker {
    /// Makes the marker of a sandbox that somebody has named.
    pub fn named(sandbox: impl Into<String>) -> Marker {
        Marker { sandbox: sandbox.into(), suffices: true, ..Marker::default() }
    }

    /// Finds the carriers among all processes. Processes in `seen` were members before.
    ///
    /// Besides the marker, one of these is proof:
    /// - the cgroup's path has the leaf's name;
    /// - the session is the recorded session;
    /// - the cgroup is the recorded cgroup or below, and the parent adopts orphans. Such a parent is init, a recorded
    ///   ancestor of the sandbox, or a process that adopted a proven member.
    pub(super) fn carriers(&self, proc: &mut ProcFs, all: &[Stat], seen: &HashSet<ProcessId>) -> Carriers {
        let user = self.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let mut carriers = Carriers::default();
        let mut orphans = Vec::new();
        let mut adopters = HashSet::from([Pid::INIT]);
        let above = self.ancestors.iter().filter(|id| all.iter().any(|stat| stat.id() == **id));
        adopters.extend(above.map(|id| id.pid));
        // A process that was spared was a member, and its children are members.
        let spared = self.spared.iter().filter(|mark| mark.sandbox == self.sandbox && !mark.is_over);
        let spared = spared.flat_map(|mark| &mark.processes);
        let living = spared.filter(|id| all.iter().any(|stat| stat.id() == **id));
        adopters.extend(living.map(|id| id.pid));
        let mut marked: Vec<&Stat> = Vec::new();
        for stat in all.iter().filter(|stat| self.since.is_none_or(|since| stat.start >= since)) {
            if self.is_carried(proc, stat.id()) && is_of(proc, stat.pid, user) {
                marked.push(stat);
            }
        }
        for stat in &marked {
            let groups = proc.cgroups(stat.pid).ok().flatten().unwrap_or_default();
            let group = unified_cgroup(&groups);
            let proven = self.suffices
                || seen.contains(&stat.id())
                || (self.session.is_some() && self.session == Some(stat.session))
                || group.is_some_and(|group| self.is_leaf(group));
            if proven {
                carriers.proven.insert(stat.pid);
                adopters.extend(stat.parent);
            } else if group.is_none_or(|group| self.is_home(group)) {
                orphans.push(*stat);
            }
        }
        let is_adopted = |stat: &&Stat| stat.parent.is_none_or(|parent| adopters.contains(&parent));
        carriers.proven.extend(orphans.into_iter().filter(is_adopted).map(|stat| stat.pid));
        let left = marked.iter().map(|stat| stat.pid).filter(|pid| !carriers.proven.contains(pid));
        carriers.unproven = left.collect();
        carriers
    }

    fn is_carried(&self, proc: &mut ProcFs, id: ProcessId) -> bool {
        let carried = std::cell::RefCell::new(Vec::new());
        let names = |found: &[u8]| {
            let found = String::from_utf8_lossy(found);
            let names_it = found.split(':').any(|id| id == self.sandbox);
            if names_it {
                *carried.borrow_mut() = found.split(':').map(str::to_owned).collect();
            }
            names_it
        };
        if proc.environ_has(id.pid, MARKER.as_bytes(), names) != EnvironmentMatch::Yes {
            return false;
        }
        binding_ids(&carried.into_inner(), id, proc, &self.spared).contains(&self.sandbox)
    }

    fn is_leaf(&self, group: &str) -> bool {
        group.split('/').any(|part| part.strip_prefix("penfold-") == Some(self.sandbox.as_str()))
    }

    fn is_home(&self, group: &str) -> bool {
        let Some(home) = &self.home else { return true };
        let rest = group.strip_prefix(home.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Tells whether a process runs as this user; false if the process is gone or cannot be read.
fn is_of(proc: &mut ProcFs, pid: Pid, user: u32) -> bool {
    proc.status(pid).is_ok_and(|status| status.is_some_and(|status| status.uids[0] == user))
}

/// Returns the path of the unified hierarchy in the text of `/proc/<pid>/cgroup`, cgroups(7).
pub fn unified_cgroup(groups: &[u8]) -> Option<&str> {
    let path = groups.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    std::str::from_utf8(path).ok()
}
