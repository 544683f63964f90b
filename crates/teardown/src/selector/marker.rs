//! Which processes a marker tells of. A marker is copied: by tmux, by ssh, by `systemctl --user import-environment`.

use std::collections::HashSet;

use penfold_process::{Evidence, Pid, ProcFs, ProcessId, StartTime, Stat};

/// The variable that marks the members of a sandbox. Its value is the ids of the sandboxes that it is in, from
/// the outermost to the innermost, with `:` between them.
pub const MARKER: &str = "PENFOLD_SANDBOX";

/// A sandbox whose supervisor is lost, and what is known of its members besides their marker.
///
/// A process of another user, or one that is older than the sandbox, is never a member by its marker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marker {
    /// The sandbox, as one of the parts of the marker variable.
    pub sandbox: String,
    /// Whose sandbox it is; none for the user who searches.
    pub user: Option<u32>,
    /// When the oldest of its processes started, if that is known.
    pub since: Option<StartTime>,
    /// The session of its first process, if that is known.
    pub session: Option<i32>,
    /// The cgroup that it was started in, by the text that follows `0::`, if that is known.
    pub home: Option<String>,
    /// Who was above the sandbox when it started, as far as that is known: one of them takes in its orphans.
    pub ancestors: Vec<ProcessId>,
    /// The marker is proof enough: somebody has named the sandbox.
    pub suffices: bool,
}

/// The carriers of a marker.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    /// Those that something else tells of, too.
    pub(super) proven: HashSet<Pid>,
    /// Those that may have copied the marker.
    pub(super) unproven: HashSet<Pid>,
}

impl Marker {
    /// The marker of a sandbox that somebody has named.
    pub fn named(sandbox: impl Into<String>) -> Marker {
        Marker { sandbox: sandbox.into(), suffices: true, ..Marker::default() }
    }

    /// Finds the carriers among all processes. Those in `seen` were members before.
    ///
    /// Proof is, besides the marker: the leaf's name in the path of the cgroup, the recorded session, or, for a process in the
    /// recorded cgroup or below, a parent that takes in orphans: init, who was above the sandbox, or who took in a proven member.
    pub(super) fn carriers(&self, proc: &mut ProcFs, all: &[Stat], seen: &HashSet<ProcessId>) -> Carriers {
        let user = self.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let mut carriers = Carriers::default();
        let mut orphans = Vec::new();
        let mut adopters = HashSet::from([Pid::INIT]);
        let above = self.ancestors.iter().filter(|id| all.iter().any(|stat| stat.id() == **id));
        adopters.extend(above.map(|id| id.pid));
        let mut marked: Vec<&Stat> = Vec::new();
        for stat in all.iter().filter(|stat| self.since.is_none_or(|since| stat.start >= since)) {
            if self.is_carried(proc, stat.pid) && is_of(proc, stat.pid, user) {
                marked.push(stat);
            }
        }
        for stat in &marked {
            let groups = proc.cgroups(stat.pid).ok().flatten().unwrap_or_default();
            let group = unified(&groups);
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

    fn is_carried(&self, proc: &mut ProcFs, pid: Pid) -> bool {
        let names =
            |found: &[u8]| found.split(|&byte| byte == b':').any(|part| part == self.sandbox.as_bytes());
        proc.environ_has(pid, MARKER.as_bytes(), names) == Evidence::Yes
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

/// Whether a process runs as this user. One that is gone or cannot be read does not.
fn is_of(proc: &mut ProcFs, pid: Pid, user: u32) -> bool {
    proc.status(pid).is_ok_and(|status| status.is_some_and(|status| status.uids[0] == user))
}

/// The path of the unified hierarchy in the text of `/proc/<pid>/cgroup`, cgroups(7).
pub fn unified(groups: &[u8]) -> Option<&str> {
    let path = groups.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    std::str::from_utf8(path).ok()
}
