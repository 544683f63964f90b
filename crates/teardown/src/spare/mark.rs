//! What the marker in the environment of a spared process still means.

use penfold_process::{ProcFs, ProcessId};

/// A sandbox that has spared processes. They keep its marker, and so does all that they start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparedMark {
    /// The id of the sandbox, one of the parts of a marker.
    pub sandbox: String,
    /// Whether nothing else of the sandbox was left. Then its marker means nothing any more.
    pub is_over: bool,
    /// The spared processes.
    pub processes: Vec<ProcessId>,
    /// The id of the sandbox outside that members were handed over to: what is in its leaf was spared, too.
    pub kept_by: Option<String>,
}

/// Returns the ids in a marker that still bind a process, outermost first.
///
/// A process that its sandbox has spared is no member of this sandbox, nor of those inside of it. It is still a member of
/// the enclosing ones.
pub fn binding_ids<'a, T: AsRef<str>>(
    ids: &'a [T],
    process: ProcessId,
    proc: &mut ProcFs,
    spared: &[SparedMark],
) -> &'a [T] {
    let mut is_kept = |keeper: &str| {
        let groups = proc.cgroups(process.pid).ok().flatten().unwrap_or_default();
        let unified = groups.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
        let mut parts = unified.unwrap_or_default().split(|&byte| byte == b'/');
        parts.any(|part| part.strip_prefix(b"penfold-") == Some(keeper.as_bytes()))
    };
    let mut is_free = |id: &T| {
        spared.iter().filter(|mark| mark.sandbox == id.as_ref()).any(|mark| {
            mark.is_over
                || mark.processes.contains(&process)
                || mark.kept_by.as_deref().is_some_and(&mut is_kept)
        })
    };
    let bound = ids.iter().position(&mut is_free).unwrap_or(ids.len());
    ids.get(..bound).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use penfold_process::{Pid, StartTime};

    use super::*;

    /// spec: 23.4
    #[test]
    fn spared_process_is_bound_by_enclosing_sandboxes_only() {
        let id = ProcessId { pid: Pid::INIT, start: StartTime(7) };
        let other = ProcessId { start: StartTime(8), ..id };
        let mark = SparedMark { sandbox: "b".to_owned(), is_over: false, processes: vec![id], kept_by: None };
        let proc = &mut ProcFs::open().unwrap();
        let ids = ["a", "b", "c"];
        assert_eq!(binding_ids(&ids, id, proc, std::slice::from_ref(&mark)), ["a"]);
        assert_eq!(binding_ids(&ids, other, proc, std::slice::from_ref(&mark)), ids);
        assert_eq!(binding_ids(&ids, other, proc, &[SparedMark { is_over: true, ..mark }]), ["a"]);
        assert_eq!(binding_ids(&ids, id, proc, &[]), ids);
    }
}
