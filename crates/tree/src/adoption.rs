//! This process as the subreaper of its trees, beside other code that has children of its own.
//!
//! The command is a subreaper, too: while it lives, its orphans are its children, and no child of this process but the command is of
//! the tree. When the command ends, the kernel gives its orphans to this process.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use penfold_process::{EnvironmentMatch, Pid, ProcFs, ProcessId, Stat};
use rustix::thread::{Timespec, nanosleep};

/// The number of looks at the children of this process: one can miss a child while another one exits.
const LOOKS: usize = 4;

/// The pause between two looks at a process that executes a program.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };

/// The trees for which this process is a subreaper.
struct Registry {
    /// Whether this process was a subreaper before the first of them.
    was_subreaper: bool,
    trees: Vec<Registered>,
}

struct Registered {
    variable: String,
    leader: Option<ProcessId>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { was_subreaper: false, trees: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of one tree in the adoption of orphans by this process. The last one to be dropped undoes it.
#[derive(Debug)]
pub(crate) struct Adoption {
    variable: String,
    leader: Option<ProcessId>,
    /// The thread that has forked the leader. A leader can start a process beside itself: a child of the same thread.
    thread: Pid,
    /// Children of this process that were there while a child of the tree could not be: they are of other code.
    foreign: HashSet<ProcessId>,
    /// Members that had ended below the leader and that it has not reaped: they become children of this process with its end.
    ended: Vec<ProcessId>,
}

impl Adoption {
    /// Makes this process a subreaper.
    ///
    /// # Errors
    /// When the kernel refuses, or the children of this process cannot be listed.
    pub(crate) fn begin(proc: &mut ProcFs, variable: &str) -> io::Result<Adoption> {
        let mut adoption = Adoption {
            variable: variable.to_owned(),
            leader: None,
            thread: rustix::thread::gettid(),
            foreign: HashSet::new(),
            ended: Vec::new(),
        };
        let mut registry = registry();
        if registry.trees.is_empty() {
            registry.was_subreaper = rustix::process::child_subreaper()?.is_some();
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        registry.trees.push(Registered { variable: adoption.variable.clone(), leader: None });
        drop(registry);
        adoption.foreign.extend(children(proc)?.iter().map(Stat::id));
        Ok(adoption)
    }

    /// Starts the leader as a subreaper. No other tree of this process takes it for a child of its own meanwhile.
    pub(crate) fn spawn(&mut self, proc: &mut ProcFs, command: &mut Command) -> io::Result<(Child, Stat)> {
        let mut registry = registry();
        let child = penfold_sys::launch::spawn_subreaper(command)?;
        let (child, stat) = identify_child(child, proc)?;
        self.leader = Some(stat.id());
        if let Some(own) = registry.trees.iter_mut().find(|tree| tree.variable == self.variable) {
            own.leader = self.leader;
        }
        Ok((child, stat))
    }

    /// Notes the children of this process that other code has started since, if the leader lives.
    pub(crate) fn note_foreign(&mut self, proc: &mut ProcFs) -> io::Result<()> {
        let Some(leader) = self.leader else { return Ok(()) };
        let found = children(proc)?;
        let mut below = Vec::new();
        // Who is missing stays a zombie, no more.
        let _ = proc.descendants(leader.pid, &mut below)?;
        // The kernel reparents the children of a process that is exiting, not before.
        let lives = proc.stat(leader.pid)?.is_some_and(|stat| stat.id() == leader && !stat.is_exiting());
        if lives {
            self.foreign.extend(found.iter().map(Stat::id));
            self.ended = below.iter().filter(|stat| stat.is_dead()).map(Stat::id).collect();
        }
        Ok(())
    }

    /// Returns the members that had ended when the leader was last seen alive, and were not reaped.
    pub(crate) fn ended(&self) -> &[ProcessId] {
        &self.ended
    }

    /// Returns the living children of this process of which nothing shows whether they are of the tree.
    ///
    /// The members that carry the variable, and those that were found while they had a parent, are no question.
    fn doubts(&mut self, proc: &mut ProcFs) -> io::Result<Vec<Stat>> {
        let registry = registry();
        let mut found: BTreeMap<ProcessId, Stat> = BTreeMap::new();
        for _ in 0..LOOKS {
            found.extend(children(proc)?.into_iter().map(|stat| (stat.id(), stat)));
        }
        let forked_here = proc.children_of_other_threads(&[self.thread])?;
        found.retain(|id, stat| {
            !self.foreign.contains(id)
                && !registry.trees.iter().any(|tree| tree.leader == Some(*id))
                && self.leader.is_none_or(|leader| id.start >= leader.start)
                && !forked_here.contains(&stat.pid)
                && !self.is_of_another(&registry, proc, stat.pid)
        });
        found.retain(|id, _| {
            proc.stat(id.pid).is_ok_and(|stat| stat.is_some_and(|stat| stat.id() == *id && !stat.is_dead()))
        });
        Ok(found.into_values().collect())
    }

    /// Returns the [doubts](Adoption::doubts) once no process of them is executing a program: until then, nothing shows its variables. On a
    /// busy host that can take several scheduling periods. `None` if one of them turns out to be a member.
    pub(crate) fn settled_doubts(
        &mut self,
        proc: &mut ProcFs,
        until: Instant,
    ) -> io::Result<Option<Vec<Stat>>> {
        loop {
            let doubts = self.doubts(proc)?;
            let mut executes = false;
            for stat in &doubts {
                executes |= proc.is_in_exec(stat.pid);
                if proc.environ_has(stat.pid, self.variable.as_bytes(), |_| true) == EnvironmentMatch::Yes {
                    return Ok(None);
                }
                executes |= proc.is_in_exec(stat.pid);
            }
            if !executes || Instant::now() >= until {
                return Ok(Some(doubts));
            }
            let _ = nanosleep(&PAUSE);
        }
    }

    fn is_of_another(&self, registry: &Registry, proc: &mut ProcFs, pid: Pid) -> bool {
        let mut others = registry.trees.iter().filter(|tree| tree.variable != self.variable);
        others.any(|tree| proc.environ_has(pid, tree.variable.as_bytes(), |_| true) == EnvironmentMatch::Yes)
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.trees.retain(|tree| tree.variable != self.variable);
        if registry.trees.is_empty() && !registry.was_subreaper {
            // What the kernel has once allowed.
            let _ = rustix::process::set_child_subreaper(None);
        }
    }
}

/// Returns a child that nobody has reaped with its identity and its session.
///
/// # Errors
/// When `/proc` does not show it. The child was killed then.
pub(crate) fn identify_child(mut child: Child, proc: &mut ProcFs) -> io::Result<(Child, Stat)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    match pid.map(|pid| proc.stat(pid)).transpose() {
        Ok(Some(Some(stat))) => Ok((child, stat)),
        unseen => {
            child.kill()?;
            child.wait()?;
            unseen?;
            Err(io::Error::new(io::ErrorKind::NotFound, "`/proc` does not show the command"))
        }
    }
}

/// Returns the living children of this process.
fn children(proc: &mut ProcFs) -> io::Result<Vec<Stat>> {
    let own = rustix::process::getpid();
    let mut pids = Vec::new();
    proc.children(own, &mut pids)?;
    let mut found = Vec::new();
    for pid in pids {
        found.extend(proc.stat(pid)?.filter(|stat| stat.parent == Some(own) && !stat.is_dead()));
    }
    Ok(found)
}
