//! Describes the processes that the leader leaves behind, while they can still be looked at.
//!
//! A process whose parent has ended does not know any more where it comes from. The members are therefore looked at now and then
//! while the leader runs, and the parents of each are remembered. A parent that lived between two looks is not known.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_process::{FileId, Listeners, Pid, ProcFs, ProcessId, Stat};
use penfold_state::{DescribedProcess, FormerParent, LeakedObject, Spec};
use penfold_teardown::{EndedMember, Findings};

use crate::engine_clients::{self, Executions};
use crate::left_objects::{SocketFiles, SysvObjects};

/// The shortest time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// The first look; many processes are started at the begin.
const FIRST: Duration = Duration::from_millis(10);
/// A look takes at most this part of the time of a processor: 1 %.
const SHARE: u32 = 100;
/// The most members that are remembered, and the most that are described.
const REMEMBERED: usize = 4096;
const DESCRIBED: usize = 256;
/// The most parents, and the most open files, of one process.
const PARENTS: usize = 16;
const FILES: usize = 16;
/// The most characters of the name of a test, which a member chooses.
const TEST_NAME: usize = 256;
/// The standard streams of a process.
const STREAMS: [&str; 3] = ["fd/0", "fd/1", "fd/2"];
/// The variables that name a test, with the runner that sets each.
const TESTS: [&str; 4] = [
    "PENFOLD_TEST",
    // pytest
    "PYTEST_CURRENT_TEST",
    // cargo-nextest
    "NEXTEST_TEST_NAME",
    // bazel
    "TEST_TARGET",
];

/// A member as it was seen last.
#[derive(Debug)]
struct MemberSighting {
    parent: Option<ProcessId>,
    name: String,
    command: String,
    /// Whether it is a process of penfold: of an inner sandbox, or one that has not executed its program yet.
    is_own: bool,
    /// Whether it was seen a second time, and after its exec. Between fork and exec it has the command of the parent.
    is_settled: bool,
}

/// The members of a sandbox and their parents.
#[derive(Debug)]
pub(crate) struct Genealogy {
    proc: ProcFs,
    seen: HashMap<ProcessId, MemberSighting>,
    /// When the next look is due, if nothing happens before.
    next: Option<Instant>,
    interval: Duration,
    found: Vec<DescribedProcess>,
    /// The program of penfold.
    own: Option<FileId>,
    /// The files that are the standard streams of the leader, and of all that inherit them.
    streams: Vec<PathBuf>,
    /// Whether the members are described, not only searched for clients of container engines.
    describes: bool,
    clients: BTreeSet<&'static str>,
    executions: Option<Executions>,
    /// The number of looks since then.
    following: usize,
    sockets: SocketFiles,
    sysv: SysvObjects,
}

/// The pauses between the looks after the file of a client was opened: the process gets its name a little later.
const FOLLOWING: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(5), Duration::from_millis(25)];

impl Genealogy {
    /// Starts to look at the members; `None` if nothing asks for it, or there is no `/proc`.
    pub(crate) fn start(spec: &Spec) -> Option<Genealogy> {
        let describes = spec.leaks_after.is_some();
        if !describes && !spec.seeks_clients {
            return None;
        }
        let path = spec.environment.iter().find(|(key, _)| key == "PATH").filter(|_| spec.seeks_clients);
        let executions = path.and_then(|(_, path)| Executions::watch(path));
        if !describes && executions.is_none() {
            return None;
        }
        Some(Genealogy { executions, ..Genealogy::begin(describes)? })
    }

    fn begin(describes: bool) -> Option<Genealogy> {
        let mut proc = ProcFs::open().ok()?;
        // A search for clients alone wakes up only for their executions.
        let next = Instant::now().checked_add(FIRST).filter(|_| describes);
        let this = rustix::process::getpid();
        let own = proc.program(this);
        // The supervisor closes its copies soon after the start.
        let streams = STREAMS.iter().filter_map(|fd| std::fs::read_link(path(this, fd)).ok()).collect();
        let (seen, found) = (HashMap::new(), Vec::new());
        let (sockets, sysv) =
            if describes { (SocketFiles::start(), SysvObjects::start()) } else { Default::default() };
        Some(Genealogy {
            proc,
            seen,
            next,
            interval: FIRST,
            found,
            own,
            streams,
            describes,
            clients: BTreeSet::new(),
            executions: None,
            following: FOLLOWING.len(),
            sockets,
            sysv,
        })
    }

    /// Tells whether the members are described.
    pub(crate) fn describes(&self) -> bool {
        self.describes
    }

    /// Returns the descriptor that shows that a client was executed.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.executions.as_ref().map(|executions| executions.source().as_fd())
    }

    /// Returns the clients of container engines that were seen.
    pub(crate) fn clients(&self) -> &BTreeSet<&'static str> {
        &self.clients
    }

    /// Returns what members have left besides processes.
    pub(crate) fn objects(&self) -> Vec<LeakedObject> {
        if !self.describes {
            return Vec::new();
        }
        let members: HashMap<i32, String> =
            self.seen.iter().map(|(id, seen)| (id.pid.as_raw_pid(), seen.command.clone())).collect();
        let mut objects = self.sockets.left();
        objects.extend(self.sysv.left(&members));
        objects
    }

    /// Returns the time until the next look, if one is due.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Looks at the members if it is time.
    pub(crate) fn look_if_due(&mut self) {
        let begun = Instant::now();
        let is_executed = self.executions.as_ref().is_some_and(Executions::take);
        if !is_executed && self.next.is_none_or(|next| begun < next) {
            return;
        }
        // Not the time that passes: on a busy host most of that belongs to others.
        let used = processor_time();
        let mut members = Vec::new();
        if self.proc.descendants(rustix::process::getpid(), &mut members).is_ok() {
            engine_clients::note_engine_clients(&members, &mut self.clients);
            if self.describes {
                self.remember(&members);
                self.sockets.look(&mut self.proc, &members);
            }
        }
        let used = processor_time().saturating_sub(used);
        if is_executed {
            self.following = 0;
        }
        let pause = FOLLOWING.get(self.following).copied();
        self.following = self.following.saturating_add(1).min(FOLLOWING.len());
        if pause.is_none() {
            self.interval = (self.interval * 2).min(INTERVAL).max(used * SHARE);
        }
        let pause = pause.or(self.describes.then_some(self.interval));
        self.next = pause.map(|pause| begun.checked_add(pause).unwrap_or(begun));
    }

    fn remember(&mut self, members: &[Stat]) {
        let living: HashMap<Pid, ProcessId> = members.iter().map(|stat| (stat.pid, stat.id())).collect();
        let mut room = REMEMBERED.saturating_sub(self.seen.len());
        for stat in members {
            let parent = stat.parent.and_then(|parent| living.get(&parent)).copied();
            match self.seen.get_mut(&stat.id()) {
                // The first parent counts: later ones are those of an orphan. Another name is another program.
                Some(seen) if seen.name == stat.comm && seen.is_settled => {}
                Some(seen) => {
                    // A process may take long from fork to exec.
                    seen.is_settled = !stat.is_unexecuted();
                    seen.name.clone_from(&stat.comm);
                    seen.command = self.proc.command_line(stat.pid).unwrap_or_else(|| stat.comm.clone());
                    seen.is_own = self.own.is_some() && self.proc.program(stat.pid) == self.own;
                }
                None if room > 0 => {
                    room -= 1;
                    let command = self.proc.command_line(stat.pid).unwrap_or_else(|| stat.comm.clone());
                    let is_own = self.own.is_some() && self.proc.program(stat.pid) == self.own;
                    let name = stat.comm.clone();
                    self.seen.insert(
                        stat.id(),
                        MemberSighting { parent, name, command, is_own, is_settled: false },
                    );
                }
                None => {}
            }
        }
        if room == 0 {
            self.forget(&living);
        }
    }

    /// Forgets the members that have ended and are no parents of living ones.
    fn forget(&mut self, living: &HashMap<Pid, ProcessId>) {
        let mut kept: HashSet<ProcessId> = HashSet::new();
        for id in living.values() {
            let mut next = Some(*id);
            while let Some(id) = next.filter(|id| kept.insert(*id)) {
                next = self.seen.get(&id).and_then(|seen| seen.parent);
            }
        }
        self.seen.retain(|id, _| kept.contains(id));
    }

    /// Describes members that are about to be ended. penfold's own processes of inner sandboxes are left out.
    pub(crate) fn describe(&mut self, members: &[Stat]) {
        self.remember(members);
        self.sockets.look(&mut self.proc, members);
        engine_clients::note_engine_clients(members, &mut self.clients);
        let mut listeners = Listeners::default();
        for stat in members {
            if self.found.len() >= DESCRIBED {
                return;
            }
            if stat.is_dead() || self.own.is_some() && self.proc.program(stat.pid) == self.own {
                continue;
            }
            self.found.push(DescribedProcess {
                parents: self.parents(stat.id()),
                files: files(stat.pid, &self.streams),
                ..describe_process(&mut self.proc, &mut listeners, stat)
            });
        }
    }

    fn parents(&self, id: ProcessId) -> Vec<FormerParent> {
        let mut parents = Vec::new();
        let mut next = self.seen.get(&id).and_then(|seen| seen.parent);
        while let Some(id) = next.filter(|_| parents.len() < PARENTS) {
            let Some(seen) = self.seen.get(&id) else { break };
            if !seen.is_own {
                parents.push(FormerParent { pid: id.pid.as_raw_pid(), command: seen.command.clone() });
            }
            next = seen.parent;
        }
        parents
    }

    /// Returns all strays: with its description, if a stray was there to be described.
    pub(crate) fn leaks(&self, findings: &Findings) -> Vec<DescribedProcess> {
        if !self.describes {
            return Vec::new();
        }
        let described: HashMap<(i32, u64), &DescribedProcess> =
            self.found.iter().map(|found| ((found.pid, found.start_time), found)).collect();
        let describe = |stray: &EndedMember| match described.get(&(stray.pid, stray.start_time)) {
            Some(&found) => found.clone(),
            None => DescribedProcess::of(stray),
        };
        findings.strays().map(describe).collect()
    }
}

/// Describes a process as it is now, without its parents and its files.
pub(crate) fn describe_process(
    proc: &mut ProcFs,
    listeners: &mut Listeners,
    stat: &Stat,
) -> DescribedProcess {
    DescribedProcess {
        pid: stat.pid.as_raw_pid(),
        start_time: stat.id().start.0,
        command: proc.command_line(stat.pid).unwrap_or_else(|| stat.comm.clone()),
        age_ms: Some(age(stat.id())),
        directory: std::fs::read_link(path(stat.pid, "cwd")).ok(),
        parents: Vec::new(),
        test: test(stat.pid),
        ports: listeners.of(&[stat.pid]).iter().map(ToString::to_string).collect(),
        files: Vec::new(),
    }
}

fn path(pid: Pid, file: &str) -> PathBuf {
    format!("/proc/{}/{file}", pid.as_raw_pid()).into()
}

/// Returns the time that this thread has used a processor.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// Returns the age of a process in milliseconds.
fn age(id: ProcessId) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default();
    u64::try_from(now.saturating_sub(id.start.since_boot()).as_millis()).unwrap_or(u64::MAX)
}

/// Returns the test that the environment of a process names.
fn test(pid: Pid) -> Option<String> {
    let environment = std::fs::read(path(pid, "environ")).ok()?;
    let value = |key: &str| {
        let entries = environment.split(|&byte| byte == 0);
        let mut values = entries.filter_map(|entry| entry.strip_prefix(key.as_bytes())?.strip_prefix(b"="));
        values
            .next()
            .map(|value| String::from_utf8_lossy(value).into_owned())
            .filter(|value| !value.is_empty())
    };
    let name = TESTS.into_iter().find_map(value)?;
    // pytest adds the phase: `tests/test_a.py::test_b (call)`.
    let phases = [" (setup)", " (call)", " (teardown)"];
    let name = phases.iter().find_map(|phase| name.strip_suffix(phase)).unwrap_or(&name);
    Some(name.chars().take(TEST_NAME).collect())
}

/// Returns the first open files that are no devices, pipes or sockets, and no standard streams that the leader has, too.
fn files(pid: Pid, streams: &[PathBuf]) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path(pid, "fd")) else { return Vec::new() };
    let is_inherited = |entry: &Path, target: &PathBuf| {
        STREAMS.iter().any(|stream| entry.ends_with(stream)) && streams.contains(target)
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?.path();
            std::fs::read_link(&entry).ok().filter(|target| !is_inherited(&entry, target))
        })
        .filter(|target| target.is_absolute() && !target.starts_with("/dev") && !target.starts_with("/proc"))
        .collect();
    files.sort_unstable();
    files.dedup();
    files.truncate(FILES);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_that_has_ended_is_remembered() {
        let mut genealogy = Genealogy::begin(true).unwrap();
        let own = genealogy.proc.stat(rustix::process::getpid()).unwrap().unwrap();
        let parent = genealogy.proc.stat(rustix::process::getppid().unwrap()).unwrap().unwrap();
        genealogy.remember(&[parent.clone(), own.clone()]);
        // The parent is gone, and the child has another.
        genealogy.remember(&[Stat { parent: Some(Pid::INIT), ..own.clone() }]);
        let parents = genealogy.parents(own.id());
        assert_eq!(parents.first().map(|one| one.pid), Some(parent.pid.as_raw_pid()));
        genealogy.forget(&HashMap::from([(own.pid, own.id())]));
        assert_eq!(genealogy.parents(own.id()), parents);
    }

    #[test]
    fn a_member_that_executes_late_is_known_by_its_program() {
        const FORKED: u32 = 0x40;
        let mut genealogy = Genealogy::begin(true).unwrap();
        let own = genealogy.proc.stat(rustix::process::getpid()).unwrap().unwrap();
        let forked = Stat { flags: own.flags | FORKED, ..own.clone() };
        genealogy.remember(std::slice::from_ref(&forked));
        genealogy.remember(&[forked]);
        let command = &mut genealogy.seen.get_mut(&own.id()).unwrap().command;
        let program = std::mem::replace(command, "that of the parent".to_owned());
        genealogy.remember(&[Stat { flags: own.flags & !FORKED, ..own.clone() }]);
        assert_eq!(genealogy.seen[&own.id()].command, program);
    }
}
