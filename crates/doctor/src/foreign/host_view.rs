//! The processes of this host, and what shows that one of them was left behind.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use penfold_process::{Pid, ProcFs, Stat};

use super::path;

/// Programs that adopt orphans besides init. Their own children are not taken for orphans.
const REAPERS: [&str; 8] =
    ["systemd", "init", "tini", "dumb-init", "catatonit", "docker-init", "conmon", "containerd-shim"];
/// A process that starts this soon after init belongs to the host, in clock ticks of 10 ms.
const WITH_THE_HOST: u64 = 500;

/// The processes of this host, read once.
pub(super) struct HostView {
    pub(super) all: HashMap<Pid, Stat>,
    pub(super) children: HashMap<Pid, Vec<Pid>>,
    /// Whether all processes could be read.
    pub(super) complete: bool,
    /// Processes that a file below `/run` names.
    services: HashSet<Pid>,
}

fn children(all: &HashMap<Pid, Stat>) -> HashMap<Pid, Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for stat in all.values() {
        if let Some(parent) = stat.parent {
            children.entry(parent).or_default().push(stat.pid);
        }
    }
    children
}

impl HostView {
    /// Reads all processes but kernel threads and dead ones.
    pub(super) fn read(proc: &mut ProcFs) -> io::Result<HostView> {
        let mut all = HashMap::new();
        let scanned = proc.scan(|stat| {
            if !stat.is_kernel_thread() && !stat.is_dead() {
                all.insert(stat.pid, stat);
            }
        })?;
        let complete = scanned.is_complete();
        Ok(HostView { services: services(), children: children(&all), complete, all })
    }

    /// Returns the parent of a process, if known.
    pub(super) fn parent(&self, stat: &Stat) -> Option<&Stat> {
        stat.parent.and_then(|parent| self.all.get(&parent))
    }

    /// Tells whether the kernel gave the process to its parent as an orphan, as far as that can be known.
    pub(super) fn is_orphan(&self, stat: &Stat, parent: &Stat) -> bool {
        let own = stat.pid.as_raw_pid();
        // A session leader was started by a process of its parent's session, or has lost that process. Any other
        // process whose parent is in another session has lost its session leader.
        let lost_leader = stat.session != own
            && stat.session != parent.session
            && Pid::from_raw(stat.session).is_none_or(|leader| !self.all.contains_key(&leader));
        let reaper = parent.pid.is_init() || REAPERS.contains(&parent.comm.as_str());
        lost_leader || (reaper && !self.came_with_the_host(stat))
    }

    /// Tells whether the process is as old as the host, or the container.
    fn came_with_the_host(&self, stat: &Stat) -> bool {
        self.all.get(&Pid::INIT).is_some_and(|init| stat.start.0.saturating_sub(init.start.0) < WITH_THE_HOST)
    }

    /// Tells whether the process is a service of this host: a unit of the service manager, or a pid in a file below
    /// `/run`.
    pub(super) fn is_service(&self, proc: &mut ProcFs, stat: &Stat) -> bool {
        let groups = proc.cgroups(stat.pid).ok().flatten().unwrap_or_default();
        let groups = String::from_utf8_lossy(&groups);
        self.services.contains(&stat.pid)
            || groups.lines().any(|line| line.split('/').next_back().is_some_and(is_unit))
    }

    pub(super) fn ancestors(&self, pid: Pid) -> HashSet<Pid> {
        let mut found = HashSet::from([pid]);
        let mut next = self.all.get(&pid).and_then(|stat| stat.parent);
        while let Some(pid) = next.filter(|pid| found.insert(*pid)) {
            next = self.all.get(&pid).and_then(|stat| stat.parent);
        }
        found
    }

    pub(super) fn tree(&self, root: Pid) -> Vec<Pid> {
        let mut tree = vec![root];
        let mut at = 0;
        while let Some(pid) = tree.get(at).copied() {
            tree.extend(self.children.get(&pid).into_iter().flatten());
            at += 1;
        }
        tree
    }
}

pub(super) fn has_no_terminal(stat: &Stat) -> bool {
    let text = std::fs::read_to_string(path(stat.pid, "stat")).unwrap_or_default();
    // The field is the fourth after the state, which is the first after the name.
    text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(4)) == Some("0")
}

/// Tells whether the service manager itself started a unit; it did not start the processes in the scope of a login.
fn is_unit(part: &str) -> bool {
    part.ends_with(".service") || part == "init.scope"
}

/// Returns the environment with which the process was started; `None` when it cannot be read.
pub(super) fn read_environment(pid: Pid) -> Option<Vec<u8>> {
    std::fs::read(path(pid, "environ")).ok()
}

/// Returns the processes that a `*.pid` below `/run` names, at most two levels deep.
fn services() -> HashSet<Pid> {
    let list = |dir: &Path| -> Vec<std::fs::DirEntry> {
        std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).collect()
    };
    let top = list(Path::new("/run"));
    let deeper = top.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below: Vec<std::fs::DirEntry> = deeper.flat_map(|entry| list(&entry.path())).collect();
    let named = |entry: &std::fs::DirEntry| {
        let plain = entry.file_type().is_ok_and(|kind| kind.is_file());
        let path = entry.path();
        if !plain || path.extension().is_none_or(|end| end != "pid") {
            return None;
        }
        let text = std::fs::read_to_string(path).ok()?;
        text.split_whitespace().next()?.parse().ok().and_then(penfold_process::pid_from_raw)
    };
    top.iter().chain(&below).filter_map(named).collect()
}
