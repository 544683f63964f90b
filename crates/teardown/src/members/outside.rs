//! Tells the members from the processes of sandboxes that members have started outside.
//!
//! Such a process still descends from the supervisor here: the kernel reparents its standby to it, and moves no process of a tree that
//! was kept. Two facts tell it apart, and both are looked up anew with each look:
//! - it is a living supervisor of such a sandbox, or descends from one;
//! - it is in the leaf of such a sandbox, and a supervisor of it lives.
//!
//! A sandbox outside that has lost its supervisors is not left alone: its processes are members again.

use std::collections::HashSet;
use std::io;

use penfold_cgroup::Leaf;
use penfold_process::{Pid, Stat};

use super::Teardown;
use crate::spare::OutsideSandbox;

impl Teardown {
    /// Tells whether sandboxes may have been started outside, so that the kernel's "no child" is no longer the proof.
    pub(super) fn allows_outside(&self) -> bool {
        self.spare.as_ref().is_some_and(|state| state.sparing.outside.is_some())
    }

    /// Returns the sandboxes outside that have a supervisor.
    pub(super) fn outside(&mut self) -> Vec<OutsideSandbox> {
        let outside = self.spare.as_mut().and_then(|state| state.sparing.outside.as_mut());
        let mut noted = outside.map(|outside| outside.noted()).unwrap_or_default();
        noted.retain(|sandbox| sandbox.supervisors.iter().any(|id| !self.proc.presence(*id).is_gone()));
        noted
    }

    /// Returns which of these processes belong to sandboxes outside. The processes must have been read before this call: a leaf
    /// that is read later has every child of theirs.
    ///
    /// # Errors
    /// When a leaf cannot be read: then no process counts as outside, and nothing as gone.
    pub(super) fn are_outside(&mut self, stats: &[Stat]) -> io::Result<HashSet<Pid>> {
        let mut free = HashSet::new();
        if !self.allows_outside() {
            return Ok(free);
        }
        let sandboxes = self.outside();
        let mut pids = Vec::new();
        for sandbox in &sandboxes {
            free.extend(
                stats.iter().filter(|stat| sandbox.supervisors.contains(&stat.id())).map(|stat| stat.pid),
            );
            if let Some(path) = &sandbox.leaf
                && let Some(leaf) = Leaf::open(path).map_err(io::Error::other)?
            {
                leaf.processes(&mut pids).map_err(io::Error::other)?;
                free.extend(&pids);
            }
        }
        // Parents need not come before their children in the list.
        loop {
            let known = free.len();
            let below = stats.iter().filter(|stat| stat.parent.is_some_and(|parent| free.contains(&parent)));
            let below: Vec<Pid> = below.map(|stat| stat.pid).collect();
            free.extend(below);
            if free.len() == known {
                break;
            }
        }
        // The leader is a member, wherever it is.
        if let Some(leader) = self.leader {
            free.remove(&leader.pid);
        }
        Ok(free)
    }

    /// Removes the processes of sandboxes outside from a list of children.
    pub(super) fn without_outside(&mut self, children: &mut Vec<Pid>) -> io::Result<()> {
        if !self.allows_outside() || children.is_empty() {
            return Ok(());
        }
        let mut stats = Vec::new();
        for &pid in &*children {
            stats.extend(self.proc.stat(pid)?);
        }
        let free = self.are_outside(&stats)?;
        if let Some(state) = &mut self.spare {
            state.passed.extend(&free);
        }
        children.retain(|pid| !free.contains(pid));
        Ok(())
    }
}
