//! The traces of a sandbox that do not depend on its record: its leaf, its supervisor's socket, its marker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use penfold_cgroup::{Leaf, mountinfo};
use penfold_process::{EnvironmentMatch, Pid, ProcFs, ProcessId};
use penfold_teardown::{MARKER, SparedMark};
use rustix::io::Errno;

use super::{Listing, record_holders};
use crate::id::Id;
use crate::leaf_name::LeafName;
use crate::spared;
use crate::survivors::{self, LivingSurvivor};

/// The most cgroups to visit.
const MOST_CGROUPS: usize = 100_000;
/// More ancestors than any process has.
const MOST_ANCESTORS: usize = 10_000;

/// The state root that has a sandbox's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordHome {
    /// The state root of this command.
    Here,
    /// Another state root: this command neither shows nor ends the sandbox.
    Elsewhere,
    /// The state root is unknown.
    Unknown,
}

/// The traces of sandboxes besides their records. Each kind is read once, at its first use.
#[derive(Debug)]
pub struct Fingerprints {
    root: PathBuf,
    leaves: OnceLock<Listing<PathBuf>>,
    sockets: OnceLock<Listing<PathBuf>>,
    marked: OnceLock<Listing<Vec<Pid>>>,
    elsewhere: OnceLock<Listing<Vec<ProcessId>>>,
    survivors: OnceLock<Listing<Vec<LivingSurvivor>>>,
}

impl Fingerprints {
    /// Makes a value that reads the host on demand, for this state root.
    pub fn below(root: &Path) -> Fingerprints {
        Fingerprints {
            root: root.to_owned(),
            leaves: OnceLock::new(),
            sockets: OnceLock::new(),
            marked: OnceLock::new(),
            elsewhere: OnceLock::new(),
            survivors: OnceLock::new(),
        }
    }

    /// Makes a value from traces that were already read.
    pub fn looked_at(
        root: &Path,
        leaves: Listing<PathBuf>,
        sockets: Listing<PathBuf>,
        marked: Listing<Vec<Pid>>,
    ) -> Fingerprints {
        Fingerprints {
            root: root.to_owned(),
            leaves: OnceLock::from(leaves),
            sockets: OnceLock::from(sockets),
            marked: OnceLock::from(marked),
            elsewhere: OnceLock::new(),
            survivors: OnceLock::new(),
        }
    }

    /// Tells whether a supervisor of this sandbox listens below this state root.
    pub fn has_socket(&self, id: &str) -> bool {
        self.sockets().get(id).is_some_and(|root| is_same_root(root, &self.root))
    }

    /// Returns the leaves of this user.
    pub fn leaves(&self) -> &Listing<PathBuf> {
        self.leaves.get_or_init(find_leaves)
    }

    /// Returns the control sockets with a listener, each with its state root.
    pub fn sockets(&self) -> &Listing<PathBuf> {
        self.sockets.get_or_init(find_sockets)
    }

    /// Returns the processes that carry a marker: this reads all processes of the host.
    pub fn marked(&self) -> &Listing<Vec<Pid>> {
        self.marked.get_or_init(|| find_marked_processes(Some(&self.root), |_| false))
    }

    /// Filters processes that still carry the marker of a sandbox: earlier findings may be gone.
    pub fn still_marked(&self, pids: &[Pid], id: &str) -> Vec<Pid> {
        let Ok(mut proc) = ProcFs::open() else { return pids.to_vec() };
        let spared = spared::spared_marks(&self.root);
        // A process that can no longer be read may still carry the marker.
        let mut carries =
            |pid| marks(&mut proc, pid, &spared).map_or(true, |ids| ids.iter().any(|mark| mark == id));
        pids.iter().copied().filter(|&pid| carries(pid)).collect()
    }

    /// Returns the members that could not be ended before, of the sandboxes of this state root.
    pub fn survivors(&self) -> &Listing<Vec<LivingSurvivor>> {
        let unread = |error| Listing::blind(&format!("`{}/survivors`", self.root.display()), &error);
        self.survivors
            .get_or_init(|| survivors::all_living_survivors(&self.root).map_or_else(unread, Listing::from))
    }

    /// Returns the processes of penfold in other mount namespaces that hold records.
    pub(super) fn elsewhere(&self) -> &Listing<Vec<ProcessId>> {
        self.elsewhere.get_or_init(record_holders::holders_elsewhere)
    }
}

/// Finds the leaves of this user, by the ids in their names.
pub fn find_leaves() -> Listing<PathBuf> {
    let mounts = std::fs::read("/proc/self/mountinfo")
        .and_then(|text| mountinfo::parse_mountinfo(&text).map_err(io::Error::other));
    let mounts = match mounts {
        Ok(mounts) => mounts,
        Err(error) => return Listing::blind("the list of mounts", &error),
    };
    let user = rustix::process::geteuid().as_raw();
    let mut queue: Vec<PathBuf> = mounts
        .into_iter()
        .filter(|mount| mount.fs_type == "cgroup2")
        .map(|mount| mount.mount_point)
        .collect();
    let mut mounted: Vec<(u64, u64)> = Vec::new();
    queue.retain(|mount| {
        // One hierarchy may be mounted several times.
        let Ok(meta) = std::fs::symlink_metadata(mount) else { return false };
        let key = (meta.dev(), meta.ino());
        let fresh = !mounted.contains(&key);
        mounted.push(key);
        fresh
    });
    let mut listing = Listing::default();
    let mut seen = 0;
    while let Some(path) = queue.pop() {
        seen += 1;
        if seen > MOST_CGROUPS {
            listing.note_unread(|| format!("there are more than {MOST_CGROUPS} cgroups"));
            return listing;
        }
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) => {
                note(&mut listing, &path, &error);
                continue;
            }
        };
        // The kernel counts the cgroups below in the links of the directory.
        if meta.nlink() > 2 {
            match std::fs::read_dir(&path) {
                Ok(entries) => queue.extend(
                    entries
                        .filter_map(Result::ok)
                        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                        .map(|entry| entry.path()),
                ),
                Err(error) => note(&mut listing, &path, &error),
            }
        }
        if let Some(id) = LeafName::id_at(&path).filter(|_| meta.uid() == user) {
            listing.found_mut().insert(id, path);
        }
    }
    listing
}

/// Notes a cgroup that could not be read. A cgroup that vanished, or is closed to this user, has no leaf of this user.
fn note(listing: &mut Listing<PathBuf>, path: &Path, error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) {
        listing.note_unread(|| format!("`{}` cannot be read: {error}", path.display()));
    }
}

/// Returns the control sockets with a listener: the ids, with the state roots from their paths.
pub fn find_sockets() -> Listing<PathBuf> {
    match std::fs::read("/proc/net/unix") {
        Ok(text) => {
            let found = text.split(|&byte| byte == b'\n').filter_map(socket);
            Listing::from(found.collect::<HashMap<_, _>>())
        }
        Err(error) => Listing::blind("the list of sockets", &error),
    }
}

/// Parses a line of `/proc/net/unix`: the path is everything after the seventh word.
fn socket(line: &[u8]) -> Option<(String, PathBuf)> {
    let start = line.windows(2).position(|pair| pair == b" /")? + 1;
    let path = Path::new(std::ffi::OsStr::from_bytes(line.get(start..)?));
    if path.file_name()? != "control.sock" {
        return None;
    }
    let record = path.parent()?;
    let id = record.file_name()?.to_str().filter(|id| Id::is_short(id))?;
    let sandboxes =
        record.parent().filter(|path| path.file_name().is_some_and(|name| name == "sandboxes"))?;
    Some((id.to_owned(), sandboxes.parent()?.to_owned()))
}

/// Finds the processes of this user that carry a marker, by each id in the marker. Below the state root `root`, notes name the
/// processes that were spared: their markers do not count.
pub fn find_marked_processes(root: Option<&Path>, is_passed_over: impl Fn(Pid) -> bool) -> Listing<Vec<Pid>> {
    let user = rustix::process::geteuid().as_raw();
    let own = rustix::process::getpid();
    let mut pids = Vec::new();
    let opened = ProcFs::open().and_then(|mut proc| proc.processes(&mut pids).map(|()| proc));
    let mut proc = match opened {
        Ok(proc) => proc,
        Err(error) => return Listing::blind("the list of processes", &error),
    };
    let mut listing: Listing<Vec<Pid>> = Listing::default();
    let spared = root.map(spared::spared_marks).unwrap_or_default();
    for pid in pids.into_iter().filter(|pid| *pid != own && !is_passed_over(*pid)) {
        let ids = marks(&mut proc, pid, &spared).unwrap_or_else(|errno| {
            // A process that hides its environment, or belongs to another user, cannot be a member by its marker.
            if !matches!(errno, Errno::PERM | Errno::ACCESS) {
                let pid = pid.as_raw_pid();
                listing.note_unread(|| format!("the environment of process {pid} cannot be read: {errno}"));
            }
            Vec::new()
        });
        for id in ids {
            let owner = std::fs::metadata(format!("/proc/{}", pid.as_raw_pid())).map(|meta| meta.uid());
            if owner.is_ok_and(|owner| owner == user) {
                listing.found_mut().entry(id).or_default().push(pid);
            }
        }
    }
    listing
}

fn marks(proc: &mut ProcFs, pid: Pid, spared: &[SparedMark]) -> Result<Vec<String>, Errno> {
    let Some(value) = variable(proc, pid, MARKER.as_bytes())? else { return Ok(Vec::new()) };
    let ids = value.split(|&byte| byte == b':').filter_map(|id| std::str::from_utf8(id).ok());
    let ids = ids.filter(|id| Id::is_short(id)).map(str::to_owned).collect();
    Ok(spared::still_binding(ids, pid, proc, spared))
}

/// Returns the value of a variable in a process's environment, or the error when the environment cannot be read.
fn variable(proc: &mut ProcFs, pid: Pid, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let value = RefCell::new(Vec::new());
    let found = proc.environ_has(pid, key, |text| {
        value.borrow_mut().extend_from_slice(text);
        true
    });
    match found {
        EnvironmentMatch::Yes => Ok(Some(value.into_inner())),
        EnvironmentMatch::No => Ok(None),
        EnvironmentMatch::Hidden(errno) => Err(errno),
    }
}

/// Returns the scratch directory of a sandbox from the environment of these processes, which carry its marker.
///
/// This is for sandboxes without any other source. A directory that is not named after the sandbox does not count.
pub fn scratch_of_processes(pids: &[Pid], id: &str) -> Option<PathBuf> {
    let mut proc = ProcFs::open().ok()?;
    pids.iter().find_map(|&pid| {
        let path = PathBuf::from(OsString::from_vec(variable(&mut proc, pid, b"TMPDIR").ok()??));
        (path.is_absolute() && LeafName::id_at(&path).as_deref() == Some(id)).then_some(path)
    })
}

/// Returns whether a leaf is populated, and its processes; `None` when the leaf is gone.
pub fn leaf_members(path: &Path) -> Option<(bool, Vec<Pid>)> {
    // Unknown means alive.
    let Ok(leaf) = Leaf::open(path) else { return Some((true, Vec::new())) };
    let leaf = leaf?;
    let mut pids = Vec::new();
    let _ = leaf.processes(&mut pids);
    Some((leaf.populated().unwrap_or(true), pids))
}

/// Returns whether all processes of a leaf are frozen.
pub fn is_frozen(leaf: &Path) -> bool {
    // The kernel returns the few short lines in one piece.
    let mut events = [0_u8; 256];
    let read = File::open(leaf.join("cgroup.events")).and_then(|mut file| file.read(&mut events));
    let text = read.map_or(&[][..], |length| events.get(..length).unwrap_or_default());
    text.split(|&byte| byte == b'\n').any(|line| line == b"frozen 1")
}

/// Returns the state root of sandbox `id` if an ancestor of a member holds its record, even a deleted one.
///
/// Supervisors are ancestors of all members while they live.
pub fn held_below(member: Pid, id: &str) -> Option<PathBuf> {
    let mut proc = ProcFs::open().ok()?;
    let mut next = proc.stat(member).ok()??.parent;
    for _ in 0..MOST_ANCESTORS {
        let pid = next?;
        if let Some(root) = holds(pid, id) {
            return Some(root);
        }
        next = proc.stat(pid).ok()??.parent;
    }
    None
}

/// Returns the state root with the note of what sandbox `id` has spared, by the environment of these carriers of its marker.
pub fn spared_below(carriers: &[Pid], id: &str) -> Option<PathBuf> {
    let mut proc = ProcFs::open().ok()?;
    carriers.iter().find_map(|&pid| {
        let root = variable(&mut proc, pid, spared::ROOT_VARIABLE.as_bytes()).ok()??;
        let root = PathBuf::from(OsString::from_vec(root));
        (root.is_absolute() && spared::is_noted(&root, id)).then_some(root)
    })
}

fn holds(pid: Pid, id: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let bytes = target.as_os_str().as_bytes();
        let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
        let record = Path::new(std::ffi::OsStr::from_bytes(bytes));
        let sandboxes = record.parent().filter(|_| record.file_name().is_some_and(|name| name == id))?;
        let root =
            sandboxes.parent().filter(|_| sandboxes.file_name().is_some_and(|name| name == "sandboxes"))?;
        Some(root.to_owned())
    })
}

/// Tells whether two paths mean the same state root, which need not exist any more.
pub fn is_same_root(one: &Path, other: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    one == other || absolute(one) == absolute(other) || file(one).is_some_and(|one| Some(one) == file(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_supervisors_are_told_from_others() {
        let head = "0000000000000000: 00000002 00000000 00010000 0005 01 4711 ";
        let of = |path: &str| socket(format!("{head}{path}").as_bytes());
        assert_eq!(
            of("/run/pen fold/sandboxes/3f9a1c2b7d04/control.sock"),
            Some(("3f9a1c2b7d04".to_owned(), PathBuf::from("/run/pen fold")))
        );
        for path in [
            "",
            "@/run/sandboxes/3f9a1c2b7d04/control.sock",
            "/run/sandboxes/../control.sock",
            "/run/sandboxes/3f9a1c2b7d0/control.sock",
            "/run/records/3f9a1c2b7d04/control.sock",
            "/control.sock",
            "/",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
