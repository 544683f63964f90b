//! Finds nested sandboxes, for the report. A report lists each one as one stray with its name, not as several penfold
//! processes.

use penfold_process::{Pid, ProcFs, Stat};
use penfold_state::{NestedNotes, NestedRecord, Registry};
use penfold_teardown::EndedMember;

/// The sandboxes started inside of this one.
pub(crate) struct NestedSandboxes {
    notes: NestedNotes,
    /// Those that existed when the end began; `None` before.
    at_end: Option<Vec<NestedSandbox>>,
}

impl NestedSandboxes {
    pub(crate) fn new(notes: NestedNotes) -> NestedSandboxes {
        NestedSandboxes { notes, at_end: None }
    }

    /// Returns the registry with their records.
    pub(crate) fn registry(&self) -> &Registry {
        self.notes.registry()
    }

    /// Finds them when the end begins. Later calls change nothing.
    pub(crate) fn find_at_end(&mut self) {
        if self.at_end.is_none() {
            self.at_end = Some(find_nested(&self.notes));
        }
    }

    /// Merges the processes of each nested sandbox that was found into one stray.
    pub(crate) fn merge_into(&self, ended: &mut Vec<EndedMember>) {
        merge_nested(self.at_end.as_deref().unwrap_or_default(), ended);
    }
}

/// A nested sandbox, and its penfold processes.
struct NestedSandbox {
    text: String,
    supervisors: Vec<Pid>,
}

/// Finds nested sandboxes while they live: their records end with this sandbox. Pids that were recorded in another pid
/// namespace are compared by their namespace pid.
fn find_nested(nested: &NestedNotes) -> Vec<NestedSandbox> {
    let inside = nested.recorded();
    if inside.is_empty() {
        return Vec::new();
    }
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut penfold_processes = Vec::new();
    let _ = proc.scan(|stat| penfold_processes.extend(Some(stat).filter(Stat::has_our_name)));
    let mut has_number = |stat: &Stat, pid| {
        let status = proc.status(stat.pid).ok().flatten();
        stat.pid == pid || status.is_some_and(|status| status.namespace_pids.last() == Some(&pid))
    };
    inside.iter().map(|one| nested_sandbox(one, &inside, &penfold_processes, &mut has_number)).collect()
}

/// `has_number` tells whether a process has this pid, here or in its own pid namespace.
fn nested_sandbox(
    inside: &NestedRecord,
    all: &[NestedRecord],
    penfold_processes: &[Stat],
    has_number: &mut dyn FnMut(&Stat, Pid) -> bool,
) -> NestedSandbox {
    let mut is_supervisor = |stat: &Stat, of: &NestedRecord| {
        of.supervisors.iter().any(|id| id.start == stat.start && has_number(stat, id.pid))
    };
    // Whatever another one has recorded is not of a foreground one that has started in the same moment.
    let mut is_recorded = |stat: &Stat| {
        is_supervisor(stat, inside)
            || (inside.supervisors.is_empty()
                && inside.since == Some(stat.start)
                && !all.iter().any(|other| is_supervisor(stat, other)))
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
fn merge_nested(sandboxes: &[NestedSandbox], ended: &mut Vec<EndedMember>) {
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

#[cfg(test)]
mod tests {
    use penfold_process::ProcessId;

    use super::*;

    /// spec: 21.2
    #[test]
    fn a_foreground_sandbox_that_has_ended_has_no_process_of_one_that_began_with_it() {
        let own = ProcFs::open().unwrap().stat(rustix::process::getpid()).unwrap().unwrap();
        let record = |id: &str, supervisors: Vec<ProcessId>| NestedRecord {
            id: id.to_owned(),
            name: None,
            supervisors,
            since: Some(own.start),
        };
        let (foreground, detached) = (record("0a", Vec::new()), record("0b", vec![own.id()]));
        let all = [foreground, detached];
        let found: Vec<usize> = all
            .iter()
            .map(|one| {
                nested_sandbox(one, &all, std::slice::from_ref(&own), &mut |stat, pid| stat.pid == pid)
            })
            .map(|found| found.supervisors.len())
            .collect();
        assert_eq!(found, [0, 1]);
    }
}
