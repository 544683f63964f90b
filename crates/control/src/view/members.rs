//! The current members of a sandbox, for people.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read as _};

use penfold_process::{Pid, ProcFs, ProcessId, Stat, quoted_cmdline};
use serde::Serialize;

use super::SandboxView;
use crate::resolve::{Resolver, SandboxRef};
use penfold_state::evidence::fingerprints;
use penfold_state::survivors::LivingSurvivor;

/// The most bytes of a command line that is shown in full.
const LONGEST: u64 = 128 * 1024;

/// A process in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// The identity.
    #[serde(flatten)]
    pub id: ProcessId,
    /// The pid of the nearest member above it; `None` when its parent is not in the sandbox.
    pub parent: Option<i32>,
    /// The name of the main thread.
    pub name: String,
    /// The command line.
    pub command: String,
    /// The state of the main thread, the letter of `proc_pid_stat(5)`.
    pub state: char,
    /// The reason why the member is a stray, if it is one.
    pub stray: Option<String>,
    /// The number of the exec that the member belongs to, if any.
    pub exec: Option<u32>,
}

/// Returns the members of a sandbox, parents before their children, older ones first. With `full`, command lines are
/// not shortened.
///
/// # Errors
/// When /proc cannot be read.
pub fn list_members(
    resolver: &Resolver,
    known: &SandboxRef,
    view: &SandboxView,
    full: bool,
) -> io::Result<Vec<MemberView>> {
    let mut proc = ProcFs::open()?;
    let in_leaf: Vec<Pid> =
        known.leaf.as_deref().and_then(fingerprints::leaf_members).map(|(_, pids)| pids).unwrap_or_default();
    let marked = resolver.fingerprints().marked().get(&known.id).cloned().unwrap_or_default();
    let mut stats = Vec::new();
    let survivors = resolver.survivors(&known.id).iter().map(LivingSurvivor::pid);
    let pids: HashSet<Pid> = in_leaf.iter().chain(&marked).copied().chain(survivors).collect();
    for pid in pids {
        stats.extend(proc.stat(pid)?.filter(|stat| !stat.is_dead()));
    }
    stats.sort_unstable_by_key(Stat::id);
    let between = between(view, &mut proc, &mut stats)?;
    let mut members = MemberTree::new(view, in_leaf, stats, between).members();
    for member in &mut members {
        let text = if full { whole_command(member.id.pid) } else { proc.command_line(member.id.pid) };
        member.command = text.unwrap_or_else(|| format!("[{}]", member.name));
    }
    Ok(members)
}

/// Removes the penfold processes between supervisors and members, and returns their parents.
///
/// These are our init in a pid namespace, and the process that brings an exec into that namespace.
fn between(view: &SandboxView, proc: &mut ProcFs, stats: &mut Vec<Stat>) -> io::Result<HashMap<Pid, Pid>> {
    let ours = claimed_supervisors(view);
    let is_ours = |stat: &Stat| is_between(&ours, stat);
    let known: HashSet<Pid> = stats.iter().map(|stat| stat.pid).collect();
    let mut found = HashMap::new();
    let outside: HashSet<Pid> =
        stats.iter().filter_map(|stat| stat.parent).filter(|parent| !known.contains(parent)).collect();
    for pid in outside.difference(&ours) {
        found.extend(proc.stat(*pid)?.filter(&is_ours).and_then(|stat| Some((stat.pid, stat.parent?))));
    }
    stats.retain(|stat| {
        let inside = is_ours(stat);
        found.extend(stat.parent.filter(|_| inside).map(|parent| (stat.pid, parent)));
        !inside
    });
    Ok(found)
}

/// The supervisors of a sandbox and of its execs, as the supervisor says.
pub(crate) fn claimed_supervisors(view: &SandboxView) -> HashSet<Pid> {
    let exec_supervisors = view.execs.iter().map(|exec| exec.supervisor.pid);
    view.supervisors.iter().map(|id| id.pid).chain(exec_supervisors).collect()
}

/// Tells whether a process in a leaf is one of penfold's, between these supervisors and the members.
pub(crate) fn is_between(supervisors: &HashSet<Pid>, stat: &Stat) -> bool {
    stat.has_our_name() && stat.parent.is_some_and(|parent| supervisors.contains(&parent))
}

struct MemberTree<'a> {
    view: &'a SandboxView,
    /// The parents of the penfold processes between supervisors and members.
    between: HashMap<Pid, Pid>,
    leaf: HashSet<Pid>,
    /// Older ones first.
    stats: Vec<Stat>,
    places: HashMap<Pid, usize>,
    /// By the pid of the parent, which may be no member.
    children: HashMap<Pid, Vec<usize>>,
    leader: Option<usize>,
}

impl MemberTree<'_> {
    fn new(
        view: &SandboxView,
        leaf: Vec<Pid>,
        stats: Vec<Stat>,
        between: HashMap<Pid, Pid>,
    ) -> MemberTree<'_> {
        let mut children: HashMap<Pid, Vec<usize>> = HashMap::new();
        for (place, stat) in stats.iter().enumerate() {
            if let Some(parent) = stat.parent {
                children.entry(parent).or_default().push(place);
            }
        }
        let leader = match view.leader {
            Some(leader) => stats.iter().position(|stat| stat.id() == leader),
            // Without a recorded leader, the oldest member counts as leader.
            None => (!stats.is_empty()).then_some(0),
        };
        let places = stats.iter().enumerate().map(|(place, stat)| (stat.pid, place)).collect();
        MemberTree { view, between, leaf: leaf.into_iter().collect(), stats, places, children, leader }
    }

    fn members(&self) -> Vec<MemberView> {
        let mut members = Vec::new();
        let mut placed = HashSet::new();
        for (place, stat) in self.stats.iter().enumerate() {
            if self.parent(stat).is_none() {
                self.add(place, &mut placed, &mut members);
            }
        }
        members
    }

    fn parent(&self, stat: &Stat) -> Option<&Stat> {
        self.stats.get(*self.places.get(&stat.parent?)?)
    }

    /// Adds a member and those below it. No recursion: a tree may be as deep as the host allows.
    fn add(&self, top: usize, placed: &mut HashSet<usize>, out: &mut Vec<MemberView>) {
        let exec = self.stats.get(top).and_then(|stat| self.exec(stat));
        let first = exec.map_or(self.leader, |(_, first)| Some(first));
        let mut pending = vec![top];
        while let Some(place) = pending.pop() {
            let Some(stat) = self.stats.get(place).filter(|_| placed.insert(place)) else { continue };
            out.push(MemberView {
                id: stat.id(),
                parent: self.parent(stat).map(|parent| parent.pid.as_raw_pid()),
                name: printable(&stat.comm),
                command: String::new(),
                state: stat.state.letter(),
                stray: if first == Some(place) { None } else { self.stray(stat, first) },
                exec: exec.map(|(number, _)| number),
            });
            pending.extend(self.children.get(&stat.pid).into_iter().flatten().rev());
        }
    }

    /// Returns the exec of which a member is the top, with the exec's first process.
    fn exec(&self, top: &Stat) -> Option<(u32, usize)> {
        let parent = top.parent?;
        let above = self.between.get(&parent).copied().unwrap_or(parent);
        let exec = self.view.execs.iter().find(|exec| exec.supervisor.pid == above)?;
        Some((exec.number, *self.children.get(&parent)?.first()?))
    }

    fn stray(&self, stat: &Stat, first: Option<usize>) -> Option<String> {
        let session = first.and_then(|place| self.stats.get(place)).map(|stat| stat.session);
        let mut why = Vec::new();
        if session.is_some_and(|session| stat.session != session) {
            why.push("own session");
        }
        if self.parent(stat).is_none() {
            why.push("reparented");
        }
        if !self.leaf.is_empty() && !self.leaf.contains(&stat.pid) {
            why.push("left the cgroup");
        }
        (!why.is_empty()).then(|| why.join(", "))
    }
}

fn printable(comm: &str) -> String {
    comm.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn whole_command(pid: Pid) -> Option<String> {
    let file = std::fs::File::open(format!("/proc/{}/cmdline", pid.as_raw_pid())).ok()?;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    quoted_cmdline(&text).map(|command| printable(&command))
}
