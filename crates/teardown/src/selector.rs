//! Selects members among all processes of the host, when they are not the children of this process.

mod marker;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use penfold_cgroup::{Leaf, v1group};
use penfold_process::{Completeness, EnvironmentMatch, Pid, ProcFs, ProcessId, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use self::marker::Carriers;
pub use self::marker::{MARKER, Marker, unified_cgroup};
use crate::report::raw_pid;

/// The rule that makes a process a member, together with its descendants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// This process. What had left its descendants before the first look, such as a daemon, is no member.
    Process(ProcessId),
    /// These processes.
    Processes(HashSet<ProcessId>),
    /// The processes of this process group.
    Group(i32),
    /// The processes of this session.
    Session(i32),
    /// The processes in this cgroup and below.
    Cgroup(PathBuf),
    /// The processes with a thread in this cgroup v1 directory and below.
    CgroupV1(PathBuf),
    /// The processes that were started with this variable in their environment.
    Environment {
        /// The name of the variable.
        key: Vec<u8>,
        /// The exact value.
        value: Vec<u8>,
    },
    /// The members left by a sandbox whose supervisor is lost.
    Marker(Marker),
    /// The processes of each of these selectors.
    Any(Vec<Selector>),
}

impl Selector {
    /// Whether only the environment of a process tells that it is a member.
    fn is_by_variable(&self) -> bool {
        match self {
            Selector::Environment { .. } | Selector::Marker(_) => true,
            Selector::Any(several) => several.iter().all(Selector::is_by_variable),
            _ => false,
        }
    }

    /// Whether only the cgroup of a process tells that it is a member.
    pub fn is_by_cgroup(&self) -> bool {
        match self {
            Selector::Cgroup(_) | Selector::CgroupV1(_) => true,
            Selector::Any(several) => several.iter().all(Selector::is_by_cgroup),
            _ => false,
        }
    }

    /// Returns the processes that the selected cgroups list; some may be in it twice.
    fn listed(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        match self {
            Selector::Cgroup(path) => {
                if let Some(leaf) = Leaf::open(path).map_err(io::Error::other)? {
                    leaf.processes(&mut pids).map_err(io::Error::other)?;
                }
            }
            Selector::CgroupV1(path) => {
                v1group::v1_processes(path, &mut pids)?;
            }
            Selector::Any(several) => {
                for one in several {
                    pids.extend(one.listed()?);
                }
            }
            _ => {}
        }
        Ok(pids)
    }

    /// Adds the matching processes to `found`.
    fn matching(
        &self,
        proc: &mut ProcFs,
        all: &[Stat],
        seen: &HashSet<ProcessId>,
        found: &mut Carriers,
    ) -> io::Result<Completeness> {
        let mut add = |matches: &mut dyn FnMut(&Stat) -> bool| {
            found.proven.extend(all.iter().filter(|stat| matches(stat)).map(|stat| stat.pid));
            Completeness::Complete
        };
        Ok(match self {
            Selector::Process(id) => add(&mut |stat| stat.id() == *id),
            Selector::Processes(ids) => add(&mut |stat| ids.contains(&stat.id())),
            Selector::Group(group) => add(&mut |stat| stat.group == *group),
            Selector::Session(session) => add(&mut |stat| stat.session == *session),
            // A process that hides its environment is a member by descent or not at all.
            Selector::Environment { key, value } => add(&mut |stat| {
                proc.environ_has(stat.pid, key, |found| found == value) == EnvironmentMatch::Yes
            }),
            Selector::Cgroup(path) => {
                let mut inside = Vec::new();
                let Some(leaf) = Leaf::open(path).map_err(io::Error::other)? else {
                    return Ok(Completeness::Complete);
                };
                leaf.processes(&mut inside).map_err(io::Error::other)?;
                // Members of a pid namespace that is not visible here have no pid.
                let is_hidden = inside.is_empty() && leaf.populated().map_err(io::Error::other)?;
                let all_read = add(&mut |stat| {
                    inside.binary_search_by_key(&raw_pid(stat.pid), |pid| raw_pid(*pid)).is_ok()
                });
                if is_hidden { Completeness::Incomplete } else { all_read }
            }
            Selector::CgroupV1(path) => {
                let mut inside = Vec::new();
                v1group::v1_processes(path, &mut inside)?;
                add(&mut |stat| inside.binary_search_by_key(&raw_pid(stat.pid), |pid| raw_pid(*pid)).is_ok())
            }
            Selector::Marker(marker) => {
                let carriers = marker.carriers(proc, all, seen);
                found.unproven.extend(carriers.unproven);
                found.proven.extend(carriers.proven);
                Completeness::Complete
            }
            Selector::Any(several) => {
                let mut completeness = Completeness::Complete;
                for one in several {
                    completeness = completeness.and(one.matching(proc, all, seen, found)?);
                }
                completeness
            }
        })
    }
}

/// The result of a [`Search`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchResult {
    /// Whether everything could be read.
    pub completeness: Completeness,
    /// Whether a protected process matched: pid 1, this process or one of its ancestors. These are never members.
    pub spared: bool,
}

/// A selector together with the members that it has found so far.
///
/// A member stays a member when it no longer matches. The child of a member that dies between two looks is found by the
/// session or group that the member led: see [`Search::find`].
#[derive(Debug)]
pub struct Search {
    selector: Selector,
    seen: HashSet<ProcessId>,
    /// Sessions and groups whose processes are members, because a member led them.
    led: HashSet<i32>,
    /// Groups that a member leads and that held a stranger when they were first seen.
    shared: HashSet<i32>,
    spared: HashSet<Pid>,
    left_out: Vec<Stat>,
    /// Children of members that `/proc` hides (`hidepid`), with their pidfds.
    hidden: Vec<(Pid, OwnedFd)>,
    unproven: HashSet<Pid>,
    /// Whether only the processes that the selected cgroups list are looked at.
    is_inside: bool,
    /// Whether only the descendants of this process, and members that were found elsewhere, are looked at.
    is_below: bool,
}

impl Search {
    /// Makes a search that has found nothing yet.
    ///
    /// # Errors
    /// When the ancestors of this process, which are never members, cannot be read.
    pub fn new(selector: Selector, proc: &mut ProcFs) -> io::Result<Search> {
        let mut spared = HashSet::from([Pid::INIT]);
        let mut next = Some(rustix::process::getpid());
        while let Some(pid) = next {
            spared.insert(pid);
            let stat = match proc.stat(pid) {
                // With `hidepid` an ancestor of another user cannot be read; nor could this user signal it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
                stat => stat?,
            };
            next = stat.and_then(|stat| stat.parent).filter(|parent| !spared.contains(parent));
        }
        Ok(Search {
            selector,
            seen: HashSet::new(),
            led: HashSet::new(),
            shared: HashSet::new(),
            spared,
            left_out: Vec::new(),
            hidden: Vec::new(),
            unproven: HashSet::new(),
            is_inside: false,
            is_below: false,
        })
    }

    /// Looks only at the processes that the selected cgroups list, which is quick on a full host. A process that has left the cgroups
    /// is no member then, whoever started it. The [`Teardown`](crate::Teardown) keeps those that it has asked or killed.
    #[must_use]
    pub fn inside_only(self) -> Search {
        Search { is_inside: true, ..self }
    }

    /// Looks only at the descendants of this process, and at members that were found elsewhere with all below them: quick on a full
    /// host. For members that are always below this process, because it is a subreaper or because they are also in a leaf.
    #[must_use]
    pub fn below_only(self) -> Search {
        Search { is_below: true, ..self }
    }

    /// Adds a process that was found to be a member before, whatever it has become since.
    pub fn add_member(&mut self, id: ProcessId) {
        self.seen.insert(id);
    }

    /// Returns all members that were found so far, alive or not.
    pub fn seen(&self) -> impl Iterator<Item = ProcessId> {
        self.seen.iter().copied()
    }

    /// Adds a member that `/proc` hides, by its pidfd.
    pub fn add_hidden(&mut self, pid: Pid, pidfd: OwnedFd) {
        self.hidden.push((pid, pidfd));
    }

    /// Tells whether a process is never a member: pid 1, this process or one of its ancestors.
    pub fn spares(&self, pid: Pid) -> bool {
        self.spared.contains(&pid)
    }

    /// Returns the protected processes that matched at the last look.
    pub fn left_out(&self) -> &[Stat] {
        &self.left_out
    }

    /// Returns the living children of members that `/proc` hides.
    pub fn hidden(&self) -> impl Iterator<Item = Pid> {
        self.hidden.iter().map(|(pid, _)| *pid)
    }

    /// Returns the processes that carried the marker at the last look without another proof: they are not members.
    pub fn unproven(&self) -> &HashSet<Pid> {
        &self.unproven
    }

    /// Keeps the members found so far and forgets the sessions and groups that they led.
    ///
    /// Call this before a long pause: by the next look the numbers may belong to other sessions and groups.
    pub fn forget_led(&mut self) {
        self.led.clear();
        self.shared.clear();
    }

    /// Finds the members that live now.
    ///
    /// Besides the matching processes and their descendants, these are members:
    /// - the processes of a session that a member led: a process enters a session only by fork(2), so all processes of
    ///   the session descend from its leader;
    /// - the processes of a group that a member led, if a member had started that member: then a member also put the
    ///   others into the group. A stranger may have started the leader, as with the first command of a shell's
    ///   pipeline. Then the group counts only if it held no stranger when it was first seen.
    ///
    /// Both rules hold after the leader's death as well. The kernel does not reuse such a number while the session or
    /// group exists. A group that was empty at the last look is forgotten.
    ///
    /// # Errors
    /// When /proc, or the selected cgroup, cannot be read at all.
    pub fn find(&mut self, proc: &mut ProcFs, out: &mut Vec<Stat>) -> io::Result<SearchResult> {
        out.clear();
        self.left_out.clear();
        let mut all = Vec::new();
        let scanned = self.scan(proc, &mut all)?;
        let (matched, matching) = self.matching(proc, &all)?;
        self.close(&all, &matched, out);
        for stat in out.iter() {
            self.unproven.remove(&stat.pid);
        }
        self.seen.extend(out.iter().map(Stat::id));
        self.learn(&all, out);
        let completeness = match scanned.and(matching) {
            Completeness::OwnOnly => self.look_below(proc, out)?,
            completeness => completeness,
        };
        Ok(SearchResult { completeness, spared: !self.left_out.is_empty() })
    }

    /// Reads the processes among which the members are.
    fn scan(&self, proc: &mut ProcFs, all: &mut Vec<Stat>) -> io::Result<Completeness> {
        if self.is_below {
            return self.scan_below(proc, all);
        }
        if self.is_inside {
            let mut pids = self.selector.listed()?;
            pids.sort_unstable_by_key(|pid| raw_pid(*pid));
            pids.dedup();
            for pid in pids {
                all.extend(proc.stat(pid)?);
            }
            return Ok(Completeness::Complete);
        }
        proc.scan(|stat| {
            if !stat.is_kernel_thread() {
                all.push(stat);
            }
        })
    }

    fn scan_below(&self, proc: &mut ProcFs, all: &mut Vec<Stat>) -> io::Result<Completeness> {
        let mut completeness = proc.descendants(rustix::process::getpid(), all)?;
        let known: HashSet<Pid> = all.iter().map(|stat| stat.pid).collect();
        let mut below = Vec::new();
        for id in self.seen.iter().filter(|id| !known.contains(&id.pid)) {
            match proc.stat(id.pid) {
                Ok(Some(stat)) if stat.id() == *id && !stat.is_dead() => {
                    completeness = completeness.and(proc.descendants(id.pid, &mut below)?);
                    all.push(stat);
                    all.append(&mut below);
                }
                Ok(_) => {}
                Err(_) => completeness = completeness.and(Completeness::Incomplete),
            }
        }
        Ok(completeness)
    }

    /// Looks for members on the whole host once, also where [`Search::find`] looks at less.
    ///
    /// # Errors
    /// Those of [`Search::find`].
    pub fn find_on_host(&mut self, proc: &mut ProcFs) -> io::Result<()> {
        let (is_below, is_inside) = (self.is_below, self.is_inside);
        (self.is_below, self.is_inside) = (false, false);
        let found = self.find(proc, &mut Vec::new());
        (self.is_below, self.is_inside) = (is_below, is_inside);
        found.map(drop)
    }

    /// Looks for children of members that `/proc` hides, and returns the completeness of the look.
    ///
    /// A user can read the environment only of their own processes, even where others are shown. A process that hides
    /// its environment is a member by descent or not at all. So if none of these children lives, everything that could
    /// show a member has been read. The same holds for a search below this process.
    fn look_below(&mut self, proc: &mut ProcFs, members: &[Stat]) -> io::Result<Completeness> {
        let mut children = Vec::new();
        for member in members {
            proc.children(member.pid, &mut children)?;
            for &pid in &children {
                let known = self.hidden.iter().any(|(hidden, _)| *hidden == pid);
                if !known && matches!(proc.stat(pid), Ok(None) | Err(_)) {
                    self.hidden.extend(pidfd_open(pid, PidfdFlags::empty()).ok().map(|pidfd| (pid, pidfd)));
                }
            }
        }
        let mut failed = None;
        self.hidden.retain(|(_, pidfd)| {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&Timespec::default())) {
                Ok(ready) => ready == 0,
                Err(errno) => {
                    failed = Some(errno);
                    true
                }
            }
        });
        let by_variable = self.selector.is_by_variable();
        match failed {
            Some(errno) => Err(errno.into()),
            None if (by_variable || self.is_below) && self.hidden.is_empty() => Ok(Completeness::Complete),
            None => Ok(Completeness::OwnOnly),
        }
    }

    /// Returns the processes that the selector itself matches.
    fn matching(&mut self, proc: &mut ProcFs, all: &[Stat]) -> io::Result<(HashSet<Pid>, Completeness)> {
        let mut found = Carriers::default();
        let completeness = self.selector.matching(proc, all, &self.seen, &mut found)?;
        self.unproven = found.unproven;
        Ok((found.proven, completeness))
    }

    /// Adds the descendants, and the processes of sessions and groups that a member led; parents before children.
    fn close(&mut self, all: &[Stat], matched: &HashSet<Pid>, out: &mut Vec<Stat>) {
        let mut children: HashMap<Pid, Vec<&Stat>> = HashMap::new();
        let mut sessions: HashMap<i32, Vec<&Stat>> = HashMap::new();
        for stat in all {
            if let Some(parent) = stat.parent {
                children.entry(parent).or_default().push(stat);
            }
            sessions.entry(stat.session).or_default().push(stat);
            // The kernel does not reuse such a number, but in another namespace's `/proc` the number may mean another
            // process.
            if self.led.contains(&raw_pid(stat.pid)) && !self.seen.contains(&stat.id()) {
                self.led.remove(&raw_pid(stat.pid));
            }
        }
        let mut queue: Vec<&Stat> = all
            .iter()
            .filter(|stat| {
                matched.contains(&stat.pid)
                    || self.seen.contains(&stat.id())
                    || self.led.contains(&stat.session)
                    || self.led.contains(&stat.group)
            })
            .collect();
        let mut taken = HashSet::new();
        while let Some(stat) = queue.pop() {
            if !taken.insert(stat.pid) {
                continue;
            }
            if self.spared.contains(&stat.pid) {
                self.left_out.push(stat.clone());
                continue;
            }
            if stat.session == raw_pid(stat.pid) {
                self.led.insert(stat.session);
                queue.extend(sessions.get(&stat.session).into_iter().flatten());
            }
            // The children of a dead process have been reparented, so nothing is below it.
            if !stat.is_dead() {
                out.push(stat.clone());
                queue.extend(children.get(&stat.pid).into_iter().flatten());
            }
        }
        // A parent is never younger than its child, even after reparenting.
        out.sort_unstable_by_key(Stat::id);
    }

    /// Learns which groups, besides the sessions, prove membership at the next look.
    fn learn(&mut self, all: &[Stat], members: &[Stat]) {
        let pids: HashSet<Pid> = members.iter().map(|stat| stat.pid).collect();
        let foreign: HashSet<i32> =
            all.iter().filter(|s| !s.is_dead() && !pids.contains(&s.pid)).map(|s| s.group).collect();
        for stat in members {
            let number = raw_pid(stat.pid);
            if stat.group == number && !self.led.contains(&number) && !self.shared.contains(&number) {
                let started_by_member = stat.parent.is_some_and(|parent| pids.contains(&parent));
                let to = if started_by_member || !foreign.contains(&number) {
                    &mut self.led
                } else {
                    &mut self.shared
                };
                to.insert(number);
            }
        }
        let living: HashSet<i32> = members.iter().flat_map(|stat| [stat.session, stat.group]).collect();
        self.led.retain(|number| living.contains(number));
        self.shared.retain(|number| foreign.contains(number));
    }
}
