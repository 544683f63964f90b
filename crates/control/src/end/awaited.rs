//! What the end of a sandbox waits for now, for a person. Read from the host: the supervisor is busy, and is not asked.

use std::path::Path;

use penfold_process::{Pid, ProcFs};
use penfold_resource::{PlannedResource, ResourcePresence};
use penfold_state::Intent;
use penfold_state::evidence::fingerprints;

/// The most processes that are named.
const NAMED: usize = 3;

/// Returns what of a sandbox still exists, in the order in which a teardown ends it: processes, resources, the scratch directory,
/// the cgroup, the supervisor.
pub fn describe_remains(intent: &Intent) -> String {
    let pids = match &intent.leaf {
        Some(leaf) => fingerprints::leaf_members(leaf).map(|(_, pids)| pids).unwrap_or_default(),
        None => fingerprints::find_marked_processes(None, |_| false)
            .complete()
            .ok()
            .and_then(|mut all| all.remove(&intent.id.short()))
            .unwrap_or_default(),
    };
    let processes = processes(&pids);
    processes.or_else(|| resource(intent)).unwrap_or_else(|| "waiting for its supervisor".to_owned())
}

/// The processes that are not dead, with their states.
fn processes(pids: &[Pid]) -> Option<String> {
    let mut proc = ProcFs::open().ok()?;
    let stats = pids.iter().filter_map(|&pid| proc.stat(pid).ok().flatten());
    let alive: Vec<String> = stats
        .filter(|stat| !stat.is_dead())
        .map(|stat| format!("{} ({})", stat.id().pid.as_raw_pid(), stat.state))
        .collect();
    let named = alive.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match alive.len() {
        0 => None,
        1 => Some(format!("waiting for 1 process: {named}")),
        count if count > NAMED => Some(format!("waiting for {count} processes: {named}, …")),
        count => Some(format!("waiting for {count} processes: {named}")),
    }
}

/// The first resource, in the order of their release, that exists.
fn resource(intent: &Intent) -> Option<String> {
    let owner = intent.owner();
    let exists =
        |planned: &&PlannedResource| matches!(planned.probe(&owner), Ok(ResourcePresence::Ours { .. }));
    if let Some(planned) = intent.resources.iter().rev().find(exists) {
        return Some(removal(&planned.describe()));
    }
    let is_there = |path: &&Path| rustix::fs::lstat(*path).is_ok();
    if let Some(scratch) = intent.scratch.as_deref().filter(is_there) {
        return Some(removal(&format!("directory {}", scratch.display())));
    }
    let leaf = intent.leaf.as_deref().filter(is_there)?;
    Some(removal(&format!("cgroup {}", leaf.display())))
}

fn removal(what: &str) -> String {
    format!("removing {what}")
}
