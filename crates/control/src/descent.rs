//! Finds the supervisor of a process by descent: members descend from their supervisor while it lives.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use penfold_process::names::LAUNCHER;
use penfold_process::{EnvironmentMatch, Pid, ProcFs, ProcessId, Stat};
use penfold_state::lock::is_directory_free;
use penfold_state::{Id, LeafName};
use penfold_teardown::MARKER;

/// Whether a process has a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisionState {
    /// The process descends from a penfold process that is not itself in the sandbox.
    Guarded,
    /// The process does not.
    Unguarded,
    /// An ancestor is gone, hidden or unknown: the sandbox may be alive.
    Unknown,
}

/// Reads ancestors, and remembers which of them run penfold.
#[derive(Debug)]
pub struct Descent {
    proc: ProcFs,
    penfolds: HashMap<ProcessId, Option<bool>>,
    /// The device and inode of this program.
    own: Option<(u64, u64)>,
}

impl Descent {
    /// Makes a value that has read no process yet.
    ///
    /// # Errors
    /// When /proc cannot be opened.
    pub fn new() -> io::Result<Descent> {
        let own = std::fs::metadata("/proc/self/exe").ok().map(|meta| (meta.dev(), meta.ino()));
        Ok(Descent { proc: ProcFs::open()?, penfolds: HashMap::new(), own })
    }

    /// Returns the sandboxes in the marker of a process, outermost first.
    pub fn marks(&mut self, pid: Pid) -> Vec<String> {
        let value = RefCell::new(Vec::new());
        let found = self.proc.environ_has(pid, MARKER.as_bytes(), |marker| {
            value.borrow_mut().extend_from_slice(marker);
            true
        });
        if found != EnvironmentMatch::Yes {
            return Vec::new();
        }
        let ids = value.into_inner();
        ids.split(|&byte| byte == b':')
            .filter_map(|id| std::str::from_utf8(id).ok())
            .filter(|id| Id::is_short(id))
            .map(str::to_owned)
            .collect()
    }

    /// Tells whether this process has a supervisor as a member of sandbox `id`.
    ///
    /// Ancestors are read anew: a process of an older reading may have been replaced.
    pub fn guard(&mut self, pid: Pid, id: &str) -> SupervisionState {
        /// More ancestors than any process has.
        const MOST: usize = 100_000;
        let Ok(Some(mut stat)) = self.proc.stat(pid) else { return SupervisionState::Unknown };
        for _ in 0..MOST {
            if stat.pid.is_init() {
                // An adopted process does not descend from its supervisor.
                if leaf_of(&mut self.proc, pid).is_some_and(|(_, held)| held) {
                    return SupervisionState::Guarded;
                }
                // This pid namespace was made inside the sandbox: the supervisor is outside the namespace.
                let inside = self.marks(stat.pid).iter().any(|mark| mark == id);
                return if inside { SupervisionState::Unknown } else { SupervisionState::Unguarded };
            }
            // Without a parent, the process was started from outside this pid namespace.
            let Some(parent) = stat.parent else { return SupervisionState::Unknown };
            let Ok(Some(above)) = self.proc.stat(parent) else { return SupervisionState::Unknown };
            match self.is_penfold(&above) {
                None => return SupervisionState::Unknown,
                Some(true) if !self.marks(parent).iter().any(|mark| mark == id) => {
                    return SupervisionState::Guarded;
                }
                Some(_) => {}
            }
            stat = above;
        }
        SupervisionState::Unknown
    }

    /// Tells whether a process runs penfold; `None` if unknown.
    fn is_penfold(&mut self, stat: &Stat) -> Option<bool> {
        if let Some(known) = self.penfolds.get(&stat.id()) {
            return *known;
        }
        let answer = if stat.has_our_name() { Some(true) } else { self.runs_penfold(stat) };
        self.penfolds.insert(stat.id(), answer);
        answer
    }

    fn runs_penfold(&self, stat: &Stat) -> Option<bool> {
        let link = format!("/proc/{}/exe", stat.pid.as_raw_pid());
        let target = match std::fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(false),
            // The init of a host hides its executable from ordinary users, but its name is known.
            Err(_) if stat.pid.is_init() => return Some(false),
            Err(_) => return None,
        };
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name == LAUNCHER || name.strip_suffix(" (deleted)") == Some(LAUNCHER) {
            return Some(true);
        }
        let file = std::fs::metadata(&link).ok().map(|meta| (meta.dev(), meta.ino()));
        Some(file.is_some() && file == self.own)
    }

    /// Tells whether it is certain that a process has no supervisor as a member of sandbox `id`.
    pub fn is_unguarded(&mut self, pid: Pid, id: &str) -> bool {
        self.guard(pid, id) == SupervisionState::Unguarded
    }

    /// Returns the penfold processes among a process and its ancestors, the nearest first.
    pub fn penfolds(&mut self, pid: Pid) -> Vec<Stat> {
        let mut found: Vec<Stat> = Vec::new();
        let mut seen = HashSet::new();
        let mut next = Some(pid);
        while let Some(pid) = next.filter(|pid| seen.insert(*pid)) {
            let Ok(Some(stat)) = self.proc.stat(pid) else { break };
            next = stat.parent;
            if self.is_penfold(&stat) == Some(true) {
                found.push(stat);
            }
        }
        found
    }

    /// Returns the sandbox in whose leaf a process is, if a penfold process holds that leaf.
    pub fn held_leaf(&mut self, pid: Pid) -> Option<String> {
        leaf_of(&mut self.proc, pid).and_then(|(id, held)| held.then_some(id))
    }
}

/// The sandbox to which a process belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessSandbox {
    /// None, as far as known.
    Nobody,
    /// A sandbox with a supervisor; its id if known.
    Sandbox(Option<String>),
    /// The process is a penfold process.
    Penfold,
    /// This could not be determined.
    Unknown,
}

/// Returns the sandbox to which a process belongs.
///
/// A member of a living sandbox descends from a penfold process or is in a leaf whose lock is held.
///
/// # Errors
/// When /proc cannot be read at all.
pub fn find_owner(pid: Pid) -> io::Result<ProcessSandbox> {
    let mut descent = Descent::new()?;
    let Some(stat) = descent.proc.stat(pid)? else { return Ok(ProcessSandbox::Unknown) };
    if descent.is_penfold(&stat) == Some(true) {
        return Ok(ProcessSandbox::Penfold);
    }
    if let Some((id, true)) = leaf_of(&mut descent.proc, pid) {
        return Ok(ProcessSandbox::Sandbox(Some(id)));
    }
    let id = descent.marks(pid).pop();
    Ok(match descent.guard(pid, "") {
        SupervisionState::Guarded => ProcessSandbox::Sandbox(id),
        SupervisionState::Unguarded => ProcessSandbox::Nobody,
        SupervisionState::Unknown => ProcessSandbox::Unknown,
    })
}

/// Returns the sandboxes around a process, outermost first: by its cgroup, else by its marker. A process that was handed over has the
/// marker of a sandbox to which it no longer belongs.
///
/// # Errors
/// When the process cannot be read.
pub fn list_sandboxes_around(pid: Pid) -> io::Result<Vec<String>> {
    let mut descent = Descent::new()?;
    let groups = descent.proc.cgroups(pid)?.unwrap_or_default();
    let path = penfold_teardown::unified_cgroup(&groups).unwrap_or_default();
    let leaves: Vec<String> = path.split('/').filter_map(LeafName::id_in).map(str::to_owned).collect();
    let marks = descent.marks(pid);
    // A sandbox without a leaf is known by the marker alone, and may be inside of the others.
    match leaves.last() {
        Some(last) if marks.contains(last) => Ok(marks),
        Some(_) => Ok(leaves),
        None => Ok(marks),
    }
}

/// Returns the sandbox in whose leaf a process is, and whether the lock of that leaf is held.
fn leaf_of(proc: &mut ProcFs, pid: Pid) -> Option<(String, bool)> {
    let text = proc.cgroups(pid).ok()??;
    let path = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    let path = std::str::from_utf8(path).ok()?;
    let (at, id) =
        path.split('/').enumerate().find_map(|(at, part)| Some((at, LeafName::id_in(part)?.to_owned())))?;
    let below: Vec<&str> = path.split('/').skip(1).take(at).collect();
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let held = penfold_cgroup::mountinfo::parse_mountinfo(&mounts).ok()?.into_iter().any(|mount| {
        let Ok(rest) = Path::new("/").join(below.join("/")).strip_prefix(&mount.root).map(Path::to_owned)
        else {
            return false;
        };
        let leaf = mount.mount_point.join(rest);
        mount.fs_type == "cgroup2" && leaf.is_dir() && !is_directory_free(&leaf)
    });
    Some((id, held))
}
