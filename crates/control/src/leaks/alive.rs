//! Finds processes with a supervisor by descent: members descend from their supervisor while it lives.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use penfold_process::names::LAUNCHER;
use penfold_process::{Completeness, Evidence, Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::spare::binding;
use penfold_teardown::{MARKER, SparedMark};

use super::{Member, directory_lock};
use penfold_state::{Id, LeafName, spared};

/// Whether a process has a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// The process descends from a penfold process that is not itself in the sandbox.
    Guarded,
    /// The process does not.
    Unguarded,
    /// An ancestor is gone, hidden or unknown: the sandbox may be alive.
    Unknown,
}

/// The processes of this host.
#[derive(Debug)]
pub(super) struct Host {
    proc: ProcFs,
    completeness: Completeness,
    marked: HashMap<Pid, Vec<String>>,
    /// The sandboxes that have spared processes.
    spared: Vec<SparedMark>,
    penfolds: HashMap<ProcessId, Option<bool>>,
    own: Option<(u64, u64)>,
}

impl Host {
    /// Makes a value that has read no process yet.
    fn empty() -> io::Result<Host> {
        let own = std::fs::metadata("/proc/self/exe").ok().map(|meta| (meta.dev(), meta.ino()));
        Ok(Host {
            proc: ProcFs::open()?,
            completeness: Completeness::Complete,
            marked: HashMap::new(),
            spared: Vec::new(),
            penfolds: HashMap::new(),
            own,
        })
    }

    /// Reads all processes. The notes below the state root name those that were spared.
    pub(super) fn look(state_root: &Path) -> io::Result<Host> {
        let mut host = Host { spared: spared::marks(state_root), ..Host::empty()? };
        let mut found = Vec::new();
        host.completeness = host.proc.scan(|stat| {
            if !stat.is_kernel_thread() {
                found.push(stat.id());
            }
        })?;
        for id in found {
            let ids = host.marks(id.pid);
            let (ids, pid) = (binding(&ids, id, &mut host.proc, &host.spared).to_vec(), id.pid);
            if !ids.is_empty() && pid != rustix::process::getpid() {
                host.marked.insert(pid, ids);
            }
        }
        Ok(host)
    }

    /// Tells whether all processes could be read.
    pub(super) fn complete(&self) -> bool {
        self.completeness.is_complete()
    }

    /// Returns the processes with a marker, and the sandboxes in it, outermost first.
    pub(super) fn marked(&self) -> HashMap<Pid, Vec<String>> {
        self.marked.clone()
    }

    fn marks(&mut self, pid: Pid) -> Vec<String> {
        let value = RefCell::new(Vec::new());
        let found = self.proc.environ_has(pid, MARKER.as_bytes(), |marker| {
            value.borrow_mut().extend_from_slice(marker);
            true
        });
        if found != Evidence::Yes {
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
    pub(super) fn guard(&mut self, pid: Pid, id: &str) -> Guard {
        /// More ancestors than any process has.
        const MOST: usize = 100_000;
        let Ok(Some(mut stat)) = self.proc.stat(pid) else { return Guard::Unknown };
        for _ in 0..MOST {
            if stat.pid.is_init() {
                // An adopted process does not descend from its supervisor.
                if leaf_of(&mut self.proc, pid).is_some_and(|(_, held)| held) {
                    return Guard::Guarded;
                }
                // This pid namespace was made inside the sandbox: the supervisor is outside the namespace.
                let inside = self.marks(stat.pid).iter().any(|mark| mark == id);
                return if inside { Guard::Unknown } else { Guard::Unguarded };
            }
            // Without a parent, the process was started from outside this pid namespace.
            let Some(parent) = stat.parent else { return Guard::Unknown };
            let Ok(Some(above)) = self.proc.stat(parent) else { return Guard::Unknown };
            match self.is_penfold(&above) {
                None => return Guard::Unknown,
                Some(true) if !self.marks(parent).iter().any(|mark| mark == id) => return Guard::Guarded,
                Some(_) => {}
            }
            stat = above;
        }
        Guard::Unknown
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

    /// Tells whether a process has its working directory in this directory or below. Unreadable processes belong to
    /// others.
    pub(super) fn stands_in(&mut self, directory: &Path) -> bool {
        let mut pids = Vec::new();
        if self.proc.processes(&mut pids).is_err() {
            return true;
        }
        pids.into_iter().any(|pid| {
            ["cwd", "root"].into_iter().any(|link| {
                std::fs::read_link(format!("/proc/{}/{link}", pid.as_raw_pid()))
                    .is_ok_and(|place| place.starts_with(directory))
            })
        })
    }

    /// Tells whether a process runs as this user; false for a process that cannot be read.
    pub(super) fn is_own(&mut self, pid: Pid) -> bool {
        let user = rustix::process::geteuid().as_raw();
        self.proc.status(pid).is_ok_and(|status| status.is_some_and(|status| status.uids[1] == user))
    }

    /// Returns the details of these processes, oldest first.
    pub(super) fn members(&mut self, pids: impl IntoIterator<Item = Pid>) -> Vec<Member> {
        let mut members: Vec<Member> = pids
            .into_iter()
            .filter_map(|pid| {
                let stat = self.proc.stat(pid).ok()??;
                let command = self.proc.command_line(pid);
                (!stat.is_dead()).then(|| Member { id: stat.id(), name: stat.comm, command })
            })
            .collect();
        members.sort_unstable_by_key(|member| member.id);
        members
    }
}

/// Finds supervisors of members by descent.
#[derive(Debug)]
pub(crate) struct Descent(Host);

impl Descent {
    pub(crate) fn new() -> io::Result<Descent> {
        Host::empty().map(Descent)
    }

    /// Tells whether it is certain that a process has no supervisor as a member of sandbox `id`.
    pub(crate) fn is_unguarded(&mut self, pid: Pid, id: &str) -> bool {
        self.0.guard(pid, id) == Guard::Unguarded
    }

    /// Returns the penfold processes among a process and its ancestors, the nearest first.
    pub(crate) fn penfolds(&mut self, pid: Pid) -> Vec<Stat> {
        let mut found: Vec<Stat> = Vec::new();
        let mut seen = HashSet::new();
        let mut next = Some(pid);
        while let Some(pid) = next.filter(|pid| seen.insert(*pid)) {
            let Ok(Some(stat)) = self.0.proc.stat(pid) else { break };
            next = stat.parent;
            if self.0.is_penfold(&stat) == Some(true) {
                found.push(stat);
            }
        }
        found
    }

    /// Returns the sandbox in whose leaf a process is, if a penfold process holds that leaf.
    pub(crate) fn held_leaf(&mut self, pid: Pid) -> Option<String> {
        leaf_of(&mut self.0.proc, pid).and_then(|(id, held)| held.then_some(id))
    }
}

/// The sandbox to which a process belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Belongs {
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
pub fn belongs(pid: Pid) -> io::Result<Belongs> {
    let mut host = Host::empty()?;
    let Some(stat) = host.proc.stat(pid)? else { return Ok(Belongs::Unknown) };
    if host.is_penfold(&stat) == Some(true) {
        return Ok(Belongs::Penfold);
    }
    if let Some((id, true)) = leaf_of(&mut host.proc, pid) {
        return Ok(Belongs::Sandbox(Some(id)));
    }
    let id = host.marks(pid).pop();
    Ok(match host.guard(pid, "") {
        Guard::Guarded => Belongs::Sandbox(id),
        Guard::Unguarded => Belongs::Nobody,
        Guard::Unknown => Belongs::Unknown,
    })
}

/// Returns the sandboxes around a process, outermost first: by its cgroup, else by its marker. A process that was handed over has the
/// marker of a sandbox to which it no longer belongs.
///
/// # Errors
/// When the process cannot be read.
pub fn around(pid: Pid) -> io::Result<Vec<String>> {
    let mut host = Host::empty()?;
    let groups = host.proc.cgroups(pid)?.unwrap_or_default();
    let path = penfold_teardown::unified(&groups).unwrap_or_default();
    let leaves: Vec<String> = path.split('/').filter_map(LeafName::id_in).map(str::to_owned).collect();
    let marks = host.marks(pid);
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
    let held = penfold_cgroup::mountinfo::parse(&mounts).ok()?.into_iter().any(|mount| {
        let Ok(rest) = Path::new("/").join(below.join("/")).strip_prefix(&mount.root).map(Path::to_owned)
        else {
            return false;
        };
        let leaf = mount.mount_point.join(rest);
        mount.fs_type == "cgroup2" && leaf.is_dir() && !directory_lock::is_free(&leaf)
    });
    Some((id, held))
}

/// Returns the age of a process, in seconds.
pub(super) fn age(id: ProcessId) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::from_secs(now.tv_sec.unsigned_abs());
    now.saturating_sub(id.start.since_boot()).as_secs()
}
