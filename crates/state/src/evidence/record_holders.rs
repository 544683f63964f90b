//! Finds the processes of penfold that hold records: [`elsewhere`](super::elsewhere) judges those in other mount namespaces.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use penfold_process::{Pid, ProcFs, ProcessId};

use super::Listing;
use crate::id::Id;
use crate::lock;

/// Finds the processes of penfold in other mount namespaces that hold records, by the ids of these.
///
/// Processes whose descriptors are not readable belong to other users and are left out.
pub(super) fn holders_elsewhere() -> Listing<Vec<ProcessId>> {
    let found = match ours() {
        Ok(found) => found,
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

/// Tells whether a process of penfold holds a record of this id, below any state root and in any mount namespace. True if the
/// processes cannot be read.
pub fn is_held_anywhere(id: &str) -> bool {
    let holds = |process: &ProcessId| held(process.pid).is_ok_and(|ids| ids.iter().any(|other| other == id));
    ours().map_or(true, |found| found.iter().any(holds))
}

/// Returns the processes with a name of penfold.
fn ours() -> io::Result<Vec<ProcessId>> {
    let mut found = Vec::new();
    let _ = ProcFs::open()?.scan(|stat| {
        if stat.has_our_name() && !stat.is_dead() {
            found.push(stat.id());
        }
    })?;
    Ok(found)
}

/// Returns the ids of the records that a process has locked.
fn held(pid: Pid) -> io::Result<Vec<String>> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()))? {
        let entry = entry?;
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if let Some(id) = recorded(&target)
            && lock::is_held_through(pid.as_raw_pid(), &entry.file_name())
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
