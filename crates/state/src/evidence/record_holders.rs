//! Finds the processes of penfold that hold records: [`elsewhere`](super::elsewhere) judges those in other mount namespaces.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use penfold_process::{Completeness, Pid, ProcFs, ProcessId, ProcessStatus};

use super::Listing;
use crate::id::Id;
use crate::lock;

/// Finds the processes of penfold in other mount namespaces that hold records, by the ids of these.
///
/// Processes whose descriptors are not readable belong to other users and are left out.
pub(super) fn holders_elsewhere() -> Listing<Vec<ProcessId>> {
    let found = match ProcFs::open().and_then(|mut proc| ours(&mut proc)) {
        Ok((found, _)) => found,
        Err(error) => return Listing::blind("the list of processes", &error),
    };
    let mut listing: Listing<Vec<ProcessId>> = Listing::default();
    let Ok(own) = std::fs::read_link("/proc/self/ns/mnt") else { return listing };
    for process in found {
        let pid = process.pid.as_raw_pid();
        let is_there = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|other| other != own);
        if is_there {
            for id in held(process.pid).unwrap_or_default() {
                listing.found_mut().entry(id).or_default().push(process);
            }
        }
    }
    listing
}

/// Tells whether a process of penfold holds a record of this id, below any state root and in any mount namespace. True if a
/// process of this user cannot be read.
pub fn is_held_anywhere(id: &str) -> bool {
    let Ok(mut proc) = ProcFs::open() else { return true };
    let Ok((found, completeness)) = ours(&mut proc) else { return true };
    let mut holds = |process: &ProcessId| match held(process.pid) {
        Ok(ids) => ids.iter().any(|other| other == id),
        Err(error) => may_be_ours(&mut proc, *process, &error),
    };
    !completeness.covers_own() || found.iter().any(&mut holds)
}

/// Tells whether a process whose descriptors cannot be read may hold a record of this user: it lives, and is not another user's.
fn may_be_ours(proc: &mut ProcFs, process: ProcessId, error: &io::Error) -> bool {
    if proc.presence(process).is_gone() {
        return false;
    }
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |status: Option<ProcessStatus>| status.is_some_and(|status| status.uids[1] == user);
    error.kind() != io::ErrorKind::PermissionDenied || proc.status(process.pid).map_or(true, is_ours)
}

/// Returns the processes with a name of penfold.
fn ours(proc: &mut ProcFs) -> io::Result<(Vec<ProcessId>, Completeness)> {
    let mut found = Vec::new();
    let completeness = proc.scan(|stat| {
        if stat.has_our_name() && !stat.is_dead() {
            found.push(stat.id());
        }
    })?;
    Ok((found, completeness))
}

/// Returns the ids of the records that a process has locked.
fn held(pid: Pid) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()))? {
        let entry = entry?;
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if let Some(id) = recorded(&target)
            && lock::is_held_through(pid.as_raw_pid(), &entry.file_name())?
        {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Returns the id if a path is that of a record.
fn recorded(path: &Path) -> Option<String> {
    let id = path.file_name()?.to_str().filter(|id| Id::is_short(id))?;
    (path.parent()?.file_name()?.as_bytes() == b"sandboxes").then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_told_from_other_directories() {
        let of = |path: &str| recorded(Path::new(path));
        assert_eq!(of("/run/pen fold/sandboxes/3f9a1c2b7d04").as_deref(), Some("3f9a1c2b7d04"));
        for path in [
            "/run/sandboxes/3f9a1c2b7d04 (deleted)",
            "/run/records/3f9a1c2b7d04",
            "/run/sandboxes/3f9a1c2b7d0",
            "/sandboxes/3f9a1c2b7d04/execs",
            "/3f9a1c2b7d04",
            "socket:[4711]",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
