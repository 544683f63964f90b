//! Describes what runs when a time limit is reached: what was waited for, as far as the tree shows it.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::Path;

use penfold_cgroup::Leaf;
use penfold_process::{Listeners, ProcFs, Stat};
use penfold_state::LeakedProcess;

use crate::left_behind::describe_process;

/// The most processes that are described.
const DESCRIBED: usize = 8;

/// Describes the youngest members of those without living children, the youngest first: the others wait for these. penfold's own
/// processes are left out.
pub(crate) fn running(leaf: Option<&Path>) -> Vec<LeakedProcess> {
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let this = rustix::process::getpid();
    let own = proc.program(this);
    let mut members = members(&mut proc, leaf);
    members.retain(|stat| !stat.is_dead() && (own.is_none() || proc.program(stat.pid) != own));
    let parents: HashSet<_> = members.iter().filter_map(|stat| stat.parent).collect();
    members.retain(|stat| !parents.contains(&stat.pid));
    members.sort_by_key(|stat| Reverse((stat.id().start, stat.pid.as_raw_pid())));
    let mut listeners = Listeners::default();
    let describe = |stat: &Stat| {
        // The time limit does not wait for one that hangs in the kernel.
        if proc.has_stuck_thread(stat.pid) {
            return LeakedProcess::named(
                stat.pid.as_raw_pid(),
                stat.id().start.0,
                format!("[{}]", stat.comm),
            );
        }
        describe_process(&mut proc, &mut listeners, stat)
    };
    members.iter().take(DESCRIBED).map(describe).collect()
}

/// Lists the members of a leaf, execs included; without one, the descendants of this process.
fn members(proc: &mut ProcFs, leaf: Option<&Path>) -> Vec<Stat> {
    let mut found = Vec::new();
    let Some(Ok(Some(leaf))) = leaf.map(Leaf::open) else {
        let _ = proc.descendants(rustix::process::getpid(), &mut found);
        return found;
    };
    let mut pids = Vec::new();
    let _ = leaf.processes(&mut pids);
    found.extend(pids.into_iter().filter_map(|pid| proc.stat(pid).ok().flatten()));
    found
}
