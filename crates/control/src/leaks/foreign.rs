//! Strays of other tools: processes that somebody started, lost and left on this host. penfold shows them and never
//! touches them.
//!
//! The kernel has no notion of "left behind". A process is shown for one of two reasons, and a person decides:
//! - The process lost its parent, has a session of its own and no terminal, and is no service.
//! - Its environment names a session whose owner is dead.

mod marks;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use penfold_process::{Listeners, Pid, ProcFs, Stat};
use penfold_teardown::MARKER;
use serde::Serialize;

use super::Member;
use super::alive::{self, Belongs};

pub use marks::{Mark, OwnerState};
pub use penfold_process::Port;

/// The first process of a tree that somebody left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stray {
    /// The process.
    #[serde(flatten)]
    pub member: Member,
    /// The user id.
    pub user: u32,
    /// The age in seconds.
    pub age_s: u64,
    /// The working directory, if readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The session.
    pub session: i32,
    /// The parent, which adopted the process.
    pub parent: i32,
    /// The number of processes in the tree, including this one.
    pub processes: usize,
    /// The ports on which the tree listens.
    pub ports: Vec<Port>,
    /// The marks of sessions in the environment.
    pub marks: Vec<Mark>,
    /// The reasons for taking the process for a stray, a few words each.
    pub evidence: Vec<String>,
}

/// The result of a search for strays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Strays {
    /// The strays, the oldest first.
    pub strays: Vec<Stray>,
    /// Whether all processes could be read.
    pub complete: bool,
}

/// Programs that adopt orphans besides init. Their own children are not taken for orphans.
const REAPERS: [&str; 8] =
    ["systemd", "init", "tini", "dumb-init", "catatonit", "docker-init", "conmon", "containerd-shim"];
/// A process that starts this soon after init belongs to the host, in clock ticks of 10 ms.
const WITH_THE_HOST: u64 = 500;

/// Searches for strays of this user; of all users for root.
///
/// # Errors
/// When /proc cannot be read at all.
pub fn look() -> io::Result<Strays> {
    let mut proc = ProcFs::open()?;
    let mut all = HashMap::new();
    let scanned = proc.scan(|stat| {
        if !stat.is_kernel_thread() && !stat.is_dead() {
            all.insert(stat.pid, stat);
        }
    })?;
    let looking = HostView { services: services(), children: children(&all), all };
    let mut found: HashMap<Pid, Stray> = HashMap::new();
    let mut candidates: Vec<&Stat> = looking.all.values().collect();
    candidates.sort_unstable_by_key(|stat| stat.id());
    let spared = looking.ancestors(rustix::process::getpid());
    for stat in candidates {
        let below = looking.ancestors(stat.pid);
        // Parents come first: processes below a stray are part of its tree.
        if spared.contains(&stat.pid) || below.iter().any(|pid| found.contains_key(pid)) {
            continue;
        }
        if let Some(stray) = looking.judge(&mut proc, stat) {
            found.insert(stat.pid, stray);
        }
    }
    let mut strays: Vec<Stray> = found.into_values().collect();
    strays.sort_unstable_by_key(|stray| stray.member.id);
    let mut listeners = Listeners::default();
    for stray in &mut strays {
        let tree = looking.tree(stray.member.id.pid);
        stray.processes = tree.len();
        stray.ports = listeners.of(&tree);
    }
    Ok(Strays { strays, complete: scanned.is_complete() })
}

struct HostView {
    all: HashMap<Pid, Stat>,
    children: HashMap<Pid, Vec<Pid>>,
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
    fn judge(&self, proc: &mut ProcFs, stat: &Stat) -> Option<Stray> {
        let parent = stat.parent.and_then(|parent| self.all.get(&parent))?;
        let orphan = self.is_orphan(stat, parent);
        let apart = stat.session != parent.session;
        let environment = (orphan || apart).then(|| environment(stat.pid)).flatten()?;
        let user = std::fs::metadata(path(stat.pid, "")).ok()?.uid();
        let own = rustix::process::geteuid();
        if !(own.is_root() || own.as_raw() == user) || marks::value(&environment, MARKER).is_some() {
            return None;
        }
        let marks = marks::of(&environment, stat, &self.all);
        let abandoned = marks.iter().any(|mark| mark.owner == OwnerState::Dead);
        let left = orphan && apart && has_no_terminal(stat) && !self.is_service(proc, stat);
        if !left && !abandoned || alive::belongs(stat.pid).ok()? != Belongs::Nobody {
            return None;
        }
        let mut evidence = Vec::new();
        if orphan {
            let number = parent.pid.as_raw_pid();
            evidence.push(format!("its parent is gone, it was given to {} ({number})", parent.comm));
        }
        if left {
            evidence.push("a session of its own, no terminal, no service".to_owned());
        }
        evidence.extend(marks.iter().filter_map(Mark::says));
        let member = Member { id: stat.id(), name: stat.comm.clone(), command: proc.command_line(stat.pid) };
        Some(Stray {
            user,
            age_s: alive::age(stat.id()),
            directory: std::fs::read_link(path(stat.pid, "cwd")).ok(),
            session: stat.session,
            parent: parent.pid.as_raw_pid(),
            processes: 1,
            ports: Vec::new(),
            marks,
            evidence,
            member,
        })
    }

    /// Tells whether the kernel gave the process to its parent as an orphan, as far as that can be known.
    fn is_orphan(&self, stat: &Stat, parent: &Stat) -> bool {
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
    fn is_service(&self, proc: &mut ProcFs, stat: &Stat) -> bool {
        let groups = proc.cgroups(stat.pid).ok().flatten().unwrap_or_default();
        let groups = String::from_utf8_lossy(&groups);
        self.services.contains(&stat.pid)
            || groups.lines().any(|line| line.split('/').next_back().is_some_and(is_unit))
    }

    fn ancestors(&self, pid: Pid) -> HashSet<Pid> {
        let mut found = HashSet::from([pid]);
        let mut next = self.all.get(&pid).and_then(|stat| stat.parent);
        while let Some(pid) = next.filter(|pid| found.insert(*pid)) {
            next = self.all.get(&pid).and_then(|stat| stat.parent);
        }
        found
    }

    fn tree(&self, root: Pid) -> Vec<Pid> {
        let mut tree = vec![root];
        let mut at = 0;
        while let Some(pid) = tree.get(at).copied() {
            tree.extend(self.children.get(&pid).into_iter().flatten());
            at += 1;
        }
        tree
    }
}

fn has_no_terminal(stat: &Stat) -> bool {
    let text = std::fs::read_to_string(path(stat.pid, "stat")).unwrap_or_default();
    // The field is the fourth after the state, which is the first after the name.
    text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(4)) == Some("0")
}

/// Tells whether the service manager itself started a unit; it did not start the processes in the scope of a login.
fn is_unit(part: &str) -> bool {
    part.ends_with(".service") || part == "init.scope"
}

fn path(pid: Pid, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_pid().to_string()).join(file)
}

/// Returns the environment with which the process was started; `None` when it cannot be read.
fn environment(pid: Pid) -> Option<Vec<u8>> {
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
