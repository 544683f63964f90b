//! The members of a sandbox, and the actions upon them: ask, kill, reap, look.

mod ask;
mod children;
mod dying;
mod kill;
mod ledger;
mod outside;
mod spare;
mod stop_command;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use penfold_cgroup::{KilledLeaf, Leaf, Shortages};
use penfold_process::{Completeness, Pid, ProcFs, Process, ProcessId, Stat};
use penfold_sys::child::{self, Exit, PeekResult};
use rustix::process::Signal;

use self::spare::SpareState;
pub use self::stop_command::Completion;
use self::stop_command::StopCommand;
pub(crate) use self::stop_command::StopCommandState;
use crate::report::EndedMember;
use crate::selector::Search;
use crate::survey::{Population, Survey};

/// Where members are searched for, besides the leaf.
#[derive(Debug)]
pub enum MemberScope {
    /// All children of this process, which is a subreaper and has no other children.
    ///
    /// Descendants of a subreaper cannot leave it while it lives. Its unreaped children keep their pids, so a signal
    /// cannot hit a stranger.
    Children,
    /// The result of a search over the whole host.
    Host(Box<Search>),
}

/// The first process of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// The pid of the leader.
    pub pid: Pid,
    /// The session in which the leader was started. A member with another session has left the tree.
    pub session: i32,
}

/// The most strays that are named for people unless details are requested. Reading a name takes a third of the time of
/// ending a process.
const SHOWN: usize = 3;
/// The most pidfds that are watched at a time; more are found when the first of them end.
const WATCHED: usize = 64;
/// The most looks for new members in one kill. Members that fork faster are killed by the next kill.
const ROUNDS: usize = 16;
/// The number of consecutive looks over the host that must find no member before the sandbox counts as empty.
const LOOKS: usize = 4;
/// The first kill that searches v1 freezers for members: members that are not frozen are gone by then.
const FREEZER_FROM: u32 = 3;
/// The first kill after which an unreaped child may be a zombie that only its tracer can reap.
const TRACED_FROM: u32 = 3;

#[derive(Debug)]
enum LeafState {
    None,
    Live(Leaf),
    Killed(KilledLeaf),
}

/// The ledger's entry for a member that was asked or killed.
#[derive(Debug)]
struct LedgerEntry {
    ended: EndedMember,
    asked: bool,
    gone: bool,
    /// Whether it was ending before the first kill.
    dies_alone: bool,
    refused: Option<io::Error>,
}

/// The members of one sandbox and the record of all actions upon them.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Teardown {
    proc: ProcFs,
    leaf: LeafState,
    scope: MemberScope,
    leader: Option<Leader>,
    leader_exit: Option<Exit>,
    leader_ended: bool,
    /// Our init in a pid namespace: it reaps there in our place and is not a member.
    init: Option<Pid>,
    /// The key is the identity: a process that reuses a pid is another member.
    ledger: BTreeMap<ProcessId, LedgerEntry>,
    /// The members of the ledger that have not ended, as far as known: members until they have, wherever they are.
    living: HashMap<Pid, ProcessId>,
    /// Strays that ended and are not reported in detail.
    left_behind: Vec<Pid>,
    /// Strays that were killed with our init, which reaps them, and have no entry in the ledger.
    counted: Vec<Pid>,
    reparented: HashSet<Pid>,
    /// The members that were ending when the leader had ended, before the first kill.
    dying_alone: HashMap<Pid, ProcessId>,
    commands: HashMap<Pid, String>,
    watched: Vec<Process>,
    kills: u32,
    /// The time that killed members get to die before they are reaped.
    dying: Option<Duration>,
    /// The child that was sent SIGKILL last.
    killed_last: Option<Pid>,
    /// The details of the first strays, read before they were killed.
    shown: HashMap<Pid, EndedMember>,
    /// Children that were sent SIGKILL and are not yet reaped.
    killed: HashSet<Pid>,
    /// Children that were asked to end and whose `/proc` entry could not be read.
    asked_unseen: HashSet<Pid>,
    /// Whether a member has ended since the last kill.
    moved: bool,
    leader_outlived: bool,
    /// Whether every name and the leaf's own accounts are requested.
    details: bool,
    /// Whether members that run this program ask the processes below them.
    launchers: bool,
    leaf_usage: penfold_cgroup::LeafUsage,
    stop_command: Option<StopCommand>,
    spare: Option<Box<SpareState>>,
}

impl Teardown {
    /// The members in `leaf`, if there is a leaf, and in `scope`.
    pub fn new(proc: ProcFs, leaf: Option<Leaf>, scope: MemberScope) -> Teardown {
        Teardown {
            proc,
            leaf: leaf.map_or(LeafState::None, LeafState::Live),
            scope,
            leader: None,
            leader_exit: None,
            leader_ended: false,
            init: None,
            ledger: BTreeMap::new(),
            living: HashMap::new(),
            left_behind: Vec::new(),
            counted: Vec::new(),
            reparented: HashSet::new(),
            dying_alone: HashMap::new(),
            commands: HashMap::new(),
            watched: Vec::new(),
            kills: 0,
            dying: None,
            killed_last: None,
            shown: HashMap::new(),
            killed: HashSet::new(),
            asked_unseen: HashSet::new(),
            moved: false,
            leader_outlived: false,
            details: false,
            launchers: false,
            leaf_usage: penfold_cgroup::LeafUsage::default(),
            stop_command: None,
            spare: None,
        }
    }

    /// Lets launchers and supervisors among the members pass a polite signal on to the processes below them.
    ///
    /// Members that run this program are such processes: they get the signal by
    /// [`pass_on`](penfold_sys::signal::pass_on). Processes below them are not asked directly. Two signals would look
    /// like the repeated request of an impatient user. A nested sandbox is asked through its launcher.
    pub fn ask_at_launchers(&mut self) {
        self.launchers = true;
    }

    /// Sets the leader, whose exit is the end of the sandbox.
    pub fn lead_by(&mut self, leader: Leader) {
        self.leader = Some(leader);
    }

    /// Sets our init in a pid namespace, whose end is the end of all processes in the namespace.
    pub fn led_by_init(&mut self, init: Pid) {
        self.init = Some(init);
    }

    /// Notes that the remaining members have outlived the leader, which ended by itself.
    pub fn outlived(&mut self) {
        self.leader_outlived = self.kills == 0 && self.ledger.is_empty();
    }

    /// Returns the living members that can be seen; none where they cannot be listed.
    ///
    /// With [`MemberScope::Host`], a member that was found once stays a member, also without its parent.
    pub fn members(&mut self) -> Vec<Stat> {
        self.survey().map(Survey::into_seen).unwrap_or_default()
    }

    /// Returns how the leader ended, if it was reaped here and the exit is known.
    pub fn leader_exit(&self) -> Option<Exit> {
        self.leader_exit
    }

    /// Tells whether the leader, or our init in its place, was reaped here.
    pub(crate) fn has_leader_ended(&self) -> bool {
        self.leader_ended
    }

    /// Returns how often the members of the leaf were short of memory.
    pub fn shortages(&self) -> Shortages {
        match &self.leaf {
            LeafState::None => Shortages::default(),
            LeafState::Live(leaf) => leaf.shortages(),
            LeafState::Killed(leaf) => leaf.shortages(),
        }
    }

    /// Prepares the end while there is time.
    pub(crate) fn make_ready(&mut self) {
        if let LeafState::Live(leaf) = &mut self.leaf {
            leaf.make_ready();
        }
    }

    /// Returns the events of the leaf, if they are open.
    pub(crate) fn leaf_events(&self) -> Option<BorrowedFd<'_>> {
        match &self.leaf {
            LeafState::Live(leaf) => leaf.events(),
            LeafState::None | LeafState::Killed(_) => None,
        }
    }

    /// Returns the reader of /proc.
    pub fn proc(&mut self) -> &mut ProcFs {
        &mut self.proc
    }

    /// Returns the pidfds of members that are not children of this process: they become readable when the member ends.
    pub fn watch(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(Process::pidfd)
    }

    /// Reaps every child that has ended and returns their number.
    ///
    /// # Errors
    /// None that a caller can act on.
    pub fn reap(&mut self) -> io::Result<usize> {
        let mut reaped = 0;
        if !matches!(self.scope, MemberScope::Children) {
            return Ok(reaped);
        }
        loop {
            // If no name is needed, a child can be reaped without reading `/proc` first.
            let nameless = self.kills > 0 && self.has_names_enough();
            let PeekResult::Ended(pid, exit) =
                (if nameless { child::reap_any() } else { child::peek_child() })?
            else {
                return Ok(reaped);
            };
            if self.init == Some(pid) {
                self.leader_ended = true;
                // A member that kills our init kills the leader too. An exit code of init says nothing about the
                // leader, which ended before or is killed with init.
                self.leader_exit = Some(exit).filter(|exit| matches!(exit, Exit::Signal(_)));
            } else if self.leader.is_some_and(|leader| leader.pid == pid) {
                (self.leader_ended, self.leader_exit) = (true, Some(exit));
            }
            if self.was_spared(pid) {
                self.forget_spared(pid);
            } else {
                self.note_end(pid, exit);
            }
            self.note_stop_command(pid, exit);
            if !nameless {
                child::reap_child(pid)?;
            }
            self.killed.remove(&pid);
            self.asked_unseen.remove(&pid);
            self.moved = true;
            reaped += 1;
        }
    }

    /// Kills our init once no other process is left in its namespace; true if it was killed. Init does not exit by itself,
    /// because its exit kills the namespace.
    ///
    /// # Errors
    /// When the namespace could not be examined.
    pub fn dismiss_init(&mut self) -> io::Result<bool> {
        match self.init_to_dismiss() {
            Some(init) if self.survey()?.population() == Population::Nobody => self.kill_init(init),
            _ => Ok(false),
        }
    }

    /// As [`Teardown::dismiss_init`], by a quick look: our init has no child, and the leaf no other member.
    ///
    /// # Errors
    /// When the namespace could not be examined.
    pub(crate) fn dismiss_idle_init(&mut self) -> io::Result<bool> {
        let Some(init) = self.init_to_dismiss() else { return Ok(false) };
        let mut others = Vec::new();
        self.proc.children(init, &mut others)?;
        if others.is_empty()
            && let LeafState::Live(leaf) = &self.leaf
        {
            leaf.processes(&mut others).map_err(io::Error::other)?;
        }
        if others.iter().all(|&pid| pid == init) { self.kill_init(init) } else { Ok(false) }
    }

    /// Returns our init, if it may have to be killed before anything else was.
    fn init_to_dismiss(&self) -> Option<Pid> {
        self.init.filter(|init| self.kills == 0 && !self.leader_ended && !self.killed.contains(init))
    }

    /// Kills our init, if it is still a child of this process.
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    fn kill_init(&mut self, init: Pid) -> io::Result<bool> {
        if !child::is_child(init) {
            return Ok(false);
        }
        rustix::process::kill_process(init, Signal::KILL)?;
        self.killed.insert(init);
        Ok(true)
    }

    /// Tells whether nothing is left: no living member, no populated leaf.
    ///
    /// # Errors
    /// When this could not be verified; that does not mean "nothing".
    pub fn is_empty(&mut self) -> io::Result<bool> {
        let mut children =
            matches!(self.scope, MemberScope::Children) && child::peek_child()? != PeekResult::NoChild;
        if children && self.has_spared() {
            children = self.has_other_children()?;
        }
        // A child that is traced from outside stays a zombie that only its tracer can reap; other members show as
        // alive.
        if children && (self.kills < TRACED_FROM || self.survey()?.population() != Population::Nobody) {
            return Ok(false);
        }
        // A child that has died since the first look must be reaped: it may be the leader.
        if children && matches!(child::peek_child()?, PeekResult::Ended(..)) {
            return Ok(false);
        }
        let populated = match &self.leaf {
            LeafState::None => false,
            LeafState::Live(leaf) => leaf.populated().map_err(io::Error::other)?,
            LeafState::Killed(leaf) => leaf.populated().map_err(io::Error::other)?,
        };
        if populated {
            return Ok(false);
        }
        match self.scope {
            MemberScope::Children => Ok(true),
            // A single look can miss a member that forks and exits while `/proc` is read; several looks hardly can.
            MemberScope::Host(_) => {
                for _ in 0..LOOKS {
                    if self.survey()?.population() != Population::Nobody {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Tells whether this process has a child besides those that were spared, or a member is alive.
    ///
    /// The kernel's answer "no child" is out of reach while a spared child lives. Several looks take its place: one can miss a
    /// child while another one exits.
    fn has_other_children(&mut self) -> io::Result<bool> {
        for _ in 0..LOOKS {
            if matches!(child::peek_child()?, PeekResult::Ended(..)) || !self.children()?.is_empty() {
                return Ok(true);
            }
            match self.survey()?.population() {
                Population::Nobody => {}
                Population::Somebody => return Ok(true),
                Population::Unknown => return Err(io::Error::other("some processes could not be looked at")),
            }
        }
        Ok(false)
    }

    /// Looks for living members.
    fn survey(&mut self) -> io::Result<Survey> {
        let mut members = Vec::new();
        let mut completeness = match &mut self.scope {
            MemberScope::Children => self.proc.descendants(rustix::process::getpid(), &mut members)?,
            MemberScope::Host(search) => search.find(&mut self.proc, &mut members)?.completeness,
        };
        let known: HashSet<Pid> = members.iter().map(|stat| stat.pid).collect();
        let mut pids = Vec::new();
        match &self.leaf {
            LeafState::None => {}
            LeafState::Live(leaf) => leaf.processes(&mut pids).map_err(io::Error::other)?,
            LeafState::Killed(leaf) => leaf.processes(&mut pids).map_err(io::Error::other)?,
        }
        for pid in pids {
            if !known.contains(&pid)
                && let Some(stat) = self.proc.stat(pid)?
            {
                members.push(stat);
            }
        }
        if matches!(self.scope, MemberScope::Host(_)) {
            completeness = completeness.and(self.add_dying(&mut members));
        }
        let outside = self.are_outside(&members)?;
        members.retain(|stat| {
            !stat.is_dead()
                && (self.kills > 0 || self.init != Some(stat.pid))
                && !self.is_spared(stat.id())
                && !outside.contains(&stat.pid)
        });
        Ok(Survey::new(members, completeness))
    }

    /// Adds the members that were asked or killed and are found no more by what made them members.
    ///
    /// A process that dies leaves its cgroup and loses its environment some time before it has ended. A member that handles the polite
    /// signal can leave by itself.
    fn add_dying(&mut self, members: &mut Vec<Stat>) -> Completeness {
        let found: HashSet<Pid> = members.iter().map(|stat| stat.pid).collect();
        let mut completeness = Completeness::Complete;
        self.living.retain(|pid, id| {
            if found.contains(pid) {
                return true;
            }
            let Ok(stat) = self.proc.stat(*pid) else {
                completeness = Completeness::Incomplete;
                return true;
            };
            let living = stat.filter(|stat| stat.id() == *id && !stat.is_dead());
            let is_alive = living.is_some();
            members.extend(living);
            is_alive
        });
        completeness
    }

    /// Returns the members of the leaf, as far as they can be read.
    pub(crate) fn inside_leaf(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        let _ = match &self.leaf {
            LeafState::None => Ok(()),
            LeafState::Live(leaf) => leaf.processes(&mut pids),
            LeafState::Killed(leaf) => leaf.processes(&mut pids),
        };
        pids
    }

    /// Watches members whose end causes no SIGCHLD here.
    fn watch_some(&mut self, members: &[Stat]) {
        self.watched.clear();
        let own = rustix::process::getpid();
        let children = matches!(self.scope, MemberScope::Children);
        for stat in members.iter().filter(|stat| !(children && stat.parent == Some(own))).take(WATCHED) {
            // A member that has become hidden cannot be watched; the next look finds it.
            self.watched.extend(Process::open_exact(&mut self.proc, stat.id()).ok().flatten());
        }
    }

    /// Drops the pidfds of members that have ended; true if there was one.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn drop_ended(&mut self) -> io::Result<bool> {
        let before = self.watched.len();
        let mut failed = None;
        self.watched.retain(|process| match process.has_exited() {
            Ok(exited) => !exited,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        let ended = self.watched.len() < before;
        self.moved |= ended;
        failed.map_or(Ok(ended), Err)
    }

    /// Removes the leaf. True once the leaf is gone; false while the kernel still holds it.
    ///
    /// # Errors
    /// All errors but `EBUSY`.
    pub fn remove_leaf(&mut self) -> io::Result<bool> {
        match std::mem::replace(&mut self.leaf, LeafState::None) {
            LeafState::None => Ok(true),
            LeafState::Live(leaf) => {
                self.read_accounts(&leaf);
                match leaf.remove() {
                    Ok(()) => Ok(true),
                    Err(failed) => {
                        self.leaf = LeafState::Live(failed.leaf);
                        busy(failed.source)
                    }
                }
            }
            LeafState::Killed(leaf) => {
                self.read_accounts(&leaf);
                match leaf.remove() {
                    Ok(()) => Ok(true),
                    Err(failed) => {
                        self.leaf = LeafState::Killed(failed.leaf);
                        busy(failed.source)
                    }
                }
            }
        }
    }

    /// Tells whether members had to be asked or killed, because the leader was not alone.
    pub fn was_forced(&self) -> bool {
        self.kills > 0 || !self.ledger.is_empty()
    }

    /// Returns the leaf's directory, for the report.
    pub fn leaf_path(&self) -> Option<&std::path::Path> {
        match &self.leaf {
            LeafState::None => None,
            LeafState::Live(leaf) => Some(leaf.path()),
            LeafState::Killed(leaf) => Some(leaf.path()),
        }
    }
}

fn busy(error: io::Error) -> io::Result<bool> {
    if error.kind() == io::ErrorKind::ResourceBusy { Ok(false) } else { Err(error) }
}
