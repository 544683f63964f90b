//! Strays of other tools: processes that somebody started, lost and left on this host. They are shown and never touched.
//!
//! Nothing of the kernel's says "left behind". What is shown has lost its parent, has a session of its own and no
//! terminal and is no service, or names a session in its environment whose owner is dead. A person judges.

mod marks;
mod ports;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, Stat};
use penfold_teardown::MARKER;
use serde::Serialize;

use super::Member;
use super::alive::{self, Belongs};

pub use marks::{Mark, OwnerState};
pub use ports::Port;

/// The first process of a tree that somebody left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stray {
    /// Who.
    #[serde(flatten)]
    pub member: Member,
    /// Whose it is, a user id.
    pub user: u32,
    /// For how long it has lived, in seconds.
    pub age_s: u64,
    /// Where it stands, if that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Its session.
    pub session: i32,
    /// Its parent, to which it was given.
    pub parent: i32,
    /// How many processes the tree has, itself included.
    pub processes: usize,
    /// What the tree listens on.
    pub ports: Vec<Port>,
    /// The marks of sessions in its environment.
    pub marks: Vec<Mark>,
    /// Why it is taken for a stray, a few words each.
    pub evidence: Vec<String>,
}

/// What a look for strays has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Strays {
    /// The strays, the oldest first.
    pub strays: Vec<Stray>,
    /// Whether all processes could be seen.
    pub complete: bool,
}

/// Programs that orphans are given to, besides the first process: they do not lose those that they start themselves.
const REAPERS: [&str; 8] =
    ["systemd", "init", "tini", "dumb-init", "catatonit", "docker-init", "conmon", "containerd-shim"];
/// What starts that soon after the first process, in clock ticks of a hundredth, belongs to the host.
const WITH_THE_HOST: u64 = 500;

/// Looks for strays of this user; of all users for root.
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
    let looking = Looking { services: services(), children: children(&all), all };
    let mut found: HashMap<Pid, Stray> = HashMap::new();
    let mut candidates: Vec<&Stat> = looking.all.values().collect();
    candidates.sort_unstable_by_key(|stat| stat.id());
    let spared = looking.ancestors(rustix::process::getpid());
    for stat in candidates {
        let below = looking.ancestors(stat.pid);
        // Parents come first: what is below a stray is part of its tree.
        if spared.contains(&stat.pid) || below.iter().any(|pid| found.contains_key(pid)) {
            continue;
        }
        if let Some(stray) = looking.judge(&mut proc, stat) {
            found.insert(stat.pid, stray);
        }
    }
    let mut strays: Vec<Stray> = found.into_values().collect();
    strays.sort_unstable_by_key(|stray| stray.member.id);
    let mut listeners = ports::Listeners::default();
    for stray in &mut strays {
        let tree = looking.tree(stray.member.id.pid);
        stray.processes = tree.len();
        stray.ports = listeners.of(&tree);
    }
    Ok(Strays { strays, complete: scanned.is_complete() })
}

struct Looking {
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

impl Looking {
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

    /// Whether it was given to its parent by the kernel, as far as that can be told.
    fn is_orphan(&self, stat: &Stat, parent: &Stat) -> bool {
        let own = stat.pid.as_raw_pid();
        // Who leads a session was started by the parent of its session or lost that; who does not and has a parent outside
        // of it lost the leader.
        let lost_leader = stat.session != own
            && stat.session != parent.session
            && Pid::from_raw(stat.session).is_none_or(|leader| !self.all.contains_key(&leader));
        let reaper = parent.pid.is_init() || REAPERS.contains(&parent.comm.as_str());
        lost_leader || (reaper && !self.came_with_the_host(stat))
    }

    /// Whether it is as old as the host, or the container.
    fn came_with_the_host(&self, stat: &Stat) -> bool {
        self.all.get(&Pid::INIT).is_some_and(|init| stat.start.0.saturating_sub(init.start.0) < WITH_THE_HOST)
    }

    /// Whether this host keeps it as a service: a unit of the service manager, or the pid in a file below `/run`.
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
    // The fourth after the state, which is the first after the name.
    text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(4)) == Some("0")
}

/// A unit that the service manager itself started; what runs in the scope of a login was not.
fn is_unit(part: &str) -> bool {
    part.ends_with(".service") || part == "init.scope"
}

fn path(pid: Pid, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_pid().to_string()).join(file)
}

/// The environment that it was started with; nothing when it cannot be read.
fn environment(pid: Pid) -> Option<Vec<u8>> {
    std::fs::read(path(pid, "environ")).ok()
}

/// The processes that a `*.pid` below `/run` names, at most two deep.
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
