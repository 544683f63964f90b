//! Judges whether a sandbox has a living supervisor in another mount namespace.
//!
//! There the record has the same path and is another directory, or is not visible at all: in a container, or in a service
//! with `PrivateTmp=` or `TemporaryFileSystem=`. Without this judgement such a sandbox would count as orphaned.
//!
//! A process is such a supervisor if all of this holds:
//! - Its name is one of penfold, and its mount namespace is not that of the caller. Both are filters, not proof.
//! - It holds an exclusive flock(2) on a directory `…/sandboxes/<id>`, as `/proc/<pid>/fdinfo` shows.
//! - It is no member: it is in no leaf of the sandbox, and the sandbox's marker is not in its environment.
//! - Every member that can be found descends from it or from another such process, which is not younger than the member.
//!
//! A member could take the name, enter a namespace and lock such a directory. The kernel decides the rest. The members of a
//! sandbox that lost its supervisors have become children of init, or of another subreaper, so one leaked member is enough
//! to show the loss. To hide all of them, a member would have to be an ancestor of all others, leave the leaf, and start
//! another program with an empty environment. Such a member is hidden from `gc` even without a lock.
//!
//! Limit: the first process of an adopted tree does not descend from its supervisor, so such a sandbox counts as orphaned.

use std::collections::HashSet;
use std::io;

use penfold_process::{EnvironmentMatch, Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::MARKER;

use super::EvidenceSubject;
use super::fingerprints::{self, Fingerprints};
use crate::leaf_name::LeafName;

/// More ancestors than any process has.
const MOST_ANCESTORS: usize = 10_000;
/// The number of looks at a member whose ancestors exit meanwhile.
const LOOKS: usize = 5;

/// Returns the living supervisors of a sandbox in other mount namespaces; empty unless they are certain.
pub fn supervisors_elsewhere(host: &Fingerprints, subject: &EvidenceSubject<'_>) -> Vec<Pid> {
    let Some(holders) = host.elsewhere().get(subject.id) else { return Vec::new() };
    judge(host, subject, holders).unwrap_or_default()
}

fn judge(host: &Fingerprints, subject: &EvidenceSubject<'_>, holders: &[ProcessId]) -> io::Result<Vec<Pid>> {
    let mut proc = ProcFs::open()?;
    let mut supervisors = Vec::new();
    for &holder in holders {
        let Some(stat) = proc.stat(holder.pid)?.filter(|stat| stat.id() == holder && !stat.is_dead()) else {
            continue;
        };
        if !may_be_member(&mut proc, holder.pid, subject.id)? {
            supervisors.push(stat);
        }
    }
    if supervisors.is_empty() {
        return Ok(Vec::new());
    }
    let mut below = HashSet::new();
    for member in members(host, subject) {
        if !descends(&mut proc, member, &supervisors, &mut below)? {
            return Ok(Vec::new());
        }
    }
    Ok(supervisors.iter().map(|stat| stat.pid).collect())
}

/// Returns the members in the leaf, and those with the marker.
fn members(host: &Fingerprints, subject: &EvidenceSubject<'_>) -> Vec<Pid> {
    let leaves =
        subject.leaf.into_iter().chain(host.leaves().get(subject.id).map(std::path::PathBuf::as_path));
    let mut pids: Vec<Pid> =
        leaves.filter_map(fingerprints::leaf_members).flat_map(|(_, pids)| pids).collect();
    let marked = host.marked().get(subject.id);
    pids.extend(marked.map(|pids| host.still_marked(pids, subject.id)).unwrap_or_default());
    pids.sort_unstable_by_key(|pid| pid.as_raw_pid());
    pids.dedup();
    pids
}

fn may_be_member(proc: &mut ProcFs, pid: Pid, id: &str) -> io::Result<bool> {
    let Some(groups) = proc.cgroups(pid)? else { return Ok(true) };
    let leaf = LeafName::of(id);
    let in_leaf =
        groups.split(|&byte| matches!(byte, b'/' | b'\n')).any(|part| part == leaf.as_str().as_bytes());
    let names = |found: &[u8]| found.split(|&byte| byte == b':').any(|part| part == id.as_bytes());
    Ok(in_leaf || proc.environ_has(pid, MARKER.as_bytes(), names) != EnvironmentMatch::No)
}

/// Tells whether a member descends from a supervisor that is not younger. A member that has exited does not matter.
///
/// `below` has the processes for which this is known.
fn descends(
    proc: &mut ProcFs,
    member: Pid,
    supervisors: &[Stat],
    below: &mut HashSet<ProcessId>,
) -> io::Result<bool> {
    for _ in 0..LOOKS {
        let Some(stat) = proc.stat(member)?.filter(|stat| !stat.is_dead()) else { return Ok(true) };
        let mut path = vec![stat.id()];
        let mut next = stat.parent;
        loop {
            let Some(pid) = next else { return Ok(false) };
            if supervisors.iter().any(|one| one.pid == pid && one.start <= stat.start) {
                below.extend(path);
                return Ok(true);
            }
            // An ancestor has exited since: the kernel has given its children to another process.
            let Some(above) = proc.stat(pid)? else { break };
            // The parent has exited since, and another process has its pid.
            if above.start > stat.start {
                break;
            }
            if below.contains(&above.id()) {
                below.extend(path);
                return Ok(true);
            }
            path.push(above.id());
            if path.len() > MOST_ANCESTORS {
                return Ok(false);
            }
            next = above.parent;
        }
    }
    Ok(false)
}
