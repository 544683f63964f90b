//! Finds nested sandboxes, for the report. A report lists each one as one stray with its name, not as several penfold
//! processes.

use penfold_process::{Pid, ProcFs, Stat};
use penfold_state::{Inside, Nested};
use penfold_teardown::Ended;

/// A nested sandbox, and its penfold processes.
#[derive(Debug)]
pub(crate) struct NestedSandbox {
    text: String,
    supervisors: Vec<Pid>,
}

/// Finds nested sandboxes while they live: their records end with this sandbox. Pids that were recorded in another pid
/// namespace are compared by their namespace pid.
pub(crate) fn find(nested: &Nested) -> Vec<NestedSandbox> {
    let inside = nested.recorded();
    if inside.is_empty() {
        return Vec::new();
    }
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut penfold_processes = Vec::new();
    let _ = proc.scan(|stat| penfold_processes.extend(Some(stat).filter(Stat::has_our_name)));
    inside.iter().map(|inside| nested_sandbox(inside, &penfold_processes, &mut proc)).collect()
}

fn nested_sandbox(inside: &Inside, penfold_processes: &[Stat], proc: &mut ProcFs) -> NestedSandbox {
    let mut has_number = |stat: &Stat, pid| {
        let status = proc.status(stat.pid).ok().flatten();
        stat.pid == pid || status.is_some_and(|status| status.namespace_pids.last() == Some(&pid))
    };
    let mut is_recorded = |stat: &Stat| {
        let mut recorded = inside.supervisors.iter().filter(|id| id.start == stat.start);
        recorded.any(|id| has_number(stat, id.pid))
            || (inside.supervisors.is_empty() && inside.since == Some(stat.start))
    };
    let mut supervisors: Vec<Pid> =
        penfold_processes.iter().filter(|stat| is_recorded(stat)).map(|stat| stat.pid).collect();
    // Supervisor and standby are up to two levels below the launcher, hence two passes.
    for stat in penfold_processes.iter().chain(penfold_processes) {
        if stat.parent.is_some_and(|parent| supervisors.contains(&parent)) && !supervisors.contains(&stat.pid)
        {
            supervisors.push(stat.pid);
        }
    }
    let text = match &inside.name {
        Some(name) => format!("sandbox {name} ({})", inside.id),
        None => format!("sandbox {}", inside.id),
    };
    NestedSandbox { text, supervisors }
}

/// Merges the processes of each nested sandbox into one stray.
pub(crate) fn merge(sandboxes: &[NestedSandbox], ended: &mut Vec<Ended>) {
    for sandbox in sandboxes {
        let mut named = false;
        ended.retain_mut(|ended| {
            if !sandbox.supervisors.iter().any(|pid| pid.as_raw_pid() == ended.pid) {
                return true;
            }
            ended.command = Some(sandbox.text.clone());
            !std::mem::replace(&mut named, true)
        });
    }
}
