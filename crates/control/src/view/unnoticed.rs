//! Finds living sandboxes whose only evidence is the marker of a member.

use std::collections::HashSet;
use std::io;

use penfold_process::Pid;

use super::{SandboxView, SeenSandbox, look};
use crate::descent::Descent;
use crate::resolve::Resolver;
use penfold_state::evidence::fingerprints;
use penfold_state::state::Status;

/// Finds sandboxes besides those `found`: a process carries their marker and has no supervisor.
///
/// Some of them are said to be `over`; of others nothing else is left.
///
/// # Errors
/// When not all processes can be read.
pub(super) fn search_unnoticed(
    resolver: &Resolver,
    found: &[SeenSandbox],
    over: &HashSet<String>,
) -> io::Result<Vec<SeenSandbox>> {
    let known: HashSet<&str> = found.iter().map(|seen| seen.0.id.as_str()).collect();
    // Reading an environment is costly: processes that are already accounted for are skipped.
    let accounted_pids: HashSet<Pid> = found.iter().flat_map(|seen| accounted(&seen.1)).collect();
    let marked =
        fingerprints::find_marked_processes(Some(resolver.root()), |pid| accounted_pids.contains(&pid))
            .complete()?;
    let mut descent = Descent::new()?;
    let mut unnoticed = Vec::new();
    for (id, pids) in marked {
        if known.contains(id.as_str()) || !pids.iter().any(|&pid| descent.is_unguarded(pid, &id)) {
            continue;
        }
        let said_over = over.contains(&id);
        // A sandbox that was made meanwhile is left to the next look.
        let fresh = !said_over && !resolver.is_unrecorded(&id);
        if fresh {
            continue;
        }
        let sandbox = resolver.by_id(&id).or_else(|| resolver.left_in(&id, &pids));
        let sandbox = sandbox.filter(|known| resolver.is_in_scope(known));
        let seen = sandbox.and_then(|known| look(resolver, &known).map(|view| (known, view)));
        unnoticed.extend(seen.filter(|(_, view)| view.status.is_living()).map(Box::new));
    }
    Ok(unnoticed)
}

fn accounted(view: &SandboxView) -> Vec<Pid> {
    if !view.status.is_living() || view.status == Status::Orphaned {
        return Vec::new();
    }
    let execs = view.execs.iter().map(|exec| exec.supervisor.pid);
    view.leader.iter().chain(&view.supervisors).map(|id| id.pid).chain(execs).collect()
}
