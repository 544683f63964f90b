//! Sandboxes inside of this one. To people each is one stray with its name, not a list of processes of ours.

use penfold_process::{Pid, ProcFs, Stat};
use penfold_state::{Inside, Nested};
use penfold_teardown::Ended;

/// One of them, and the processes that look after it.
#[derive(Debug)]
pub(crate) struct Line {
    text: String,
    supervisors: Vec<Pid>,
}

/// Looks for them while they live: what ends with this sandbox takes its record with it, and pids that were written down in
/// another namespace say nothing here.
pub(crate) fn find(nested: &Nested) -> Vec<Line> {
    let inside = nested.recorded();
    if inside.is_empty() {
        return Vec::new();
    }
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut ours = Vec::new();
    let _ = proc.scan(|stat| ours.extend(Some(stat).filter(Stat::has_our_name)));
    inside.iter().map(|inside| line(inside, &ours, &mut proc)).collect()
}

fn line(inside: &Inside, ours: &[Stat], proc: &mut ProcFs) -> Line {
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
        ours.iter().filter(|stat| is_recorded(stat)).map(|stat| stat.pid).collect();
    // A launcher has one or two below it.
    for stat in ours.iter().chain(ours) {
        if stat.parent.is_some_and(|parent| supervisors.contains(&parent)) && !supervisors.contains(&stat.pid)
        {
            supervisors.push(stat.pid);
        }
    }
    let text = match &inside.name {
        Some(name) => format!("sandbox {name} ({})", inside.id),
        None => format!("sandbox {}", inside.id),
    };
    Line { text, supervisors }
}

/// Makes one stray of the processes of each.
pub(crate) fn name(lines: &[Line], ended: &mut Vec<Ended>) {
    for line in lines {
        let mut named = false;
        ended.retain_mut(|ended| {
            if !line.supervisors.iter().any(|pid| pid.as_raw_pid() == ended.pid) {
                return true;
            }
            ended.command = Some(line.text.clone());
            !std::mem::replace(&mut named, true)
        });
    }
}
