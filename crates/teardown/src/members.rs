//! Who belongs to a sandbox, and the acts upon them: ask, kill, reap, look.

mod ask;
mod children;
mod kill;
mod ledger;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use penfold_cgroup::{KilledLeaf, Leaf};
use penfold_process::{Pid, ProcFs, Process, ProcessId, Stat};
use penfold_sys::child::{self, Exit, Peek};
use rustix::process::Signal;

use crate::report::Ended;
use crate::selector::Search;
use crate::survey::{Population, Survey};

/// Where to look for members outside the leaf.
#[derive(Debug)]
pub enum Scope {
    /// All children of this process, which is a subreaper and has no other children. Descendants of a subreaper cannot
    /// leave it while it lives, and its unreaped children keep their pids: no stranger can be hit.
    Children,
    /// What a search over the whole host finds.
    Host(Box<Search>),
}

/// The first process of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// Its pid.
    pub pid: Pid,
    /// The session it was started in: who has another one has left the tree.
    pub session: i32,
}

/// How many strays are shown to people if nobody wants details. To read what one is called takes a third as long as to
/// end it.
const SHOWN: usize = 3;
/// How many pidfds are watched at a time; more are found when the first of them end.
const WATCHED: usize = 64;
/// How often one kill looks again for members that are new. Who moves faster than that is met by the next kill.
const ROUNDS: usize = 16;
/// How many looks over the host must find nobody until nobody is there.
const LOOKS: usize = 4;
/// From which kill on members are looked for in v1 freezers: whoever is not frozen is gone by then.
const FREEZER_FROM: u32 = 3;
/// From which kill on a child that is not reaped may be one that is dead for everybody but its tracer.
const TRACED_FROM: u32 = 3;

#[derive(Debug)]
enum LeafState {
    None,
    Live(Leaf),
    Killed(KilledLeaf),
}

/// What is known of a member that was asked or killed.
#[derive(Debug)]
struct Entry {
    ended: Ended,
    asked: bool,
    gone: bool,
    refused: Option<io::Error>,
}

/// The members of one sandbox and what has been done to them.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct Teardown {
    proc: ProcFs,
    leaf: LeafState,
    scope: Scope,
    leader: Option<Leader>,
    leader_exit: Option<Exit>,
    leader_ended: bool,
    /// Our init in a pid namespace: it reaps there in our place and is not a member.
    keeper: Option<Pid>,
    /// Keyed by identity: a successor of a pid is another member.
    ledger: BTreeMap<ProcessId, Entry>,
    /// The members of the ledger that have not ended, as far as is known.
    living: HashMap<Pid, ProcessId>,
    /// Strays that ended and of which nobody wants more than is shown.
    left_behind: Vec<Pid>,
    reparented: HashSet<Pid>,
    commands: HashMap<Pid, String>,
    watched: Vec<Process>,
    kills: u32,
    /// How long the members of a killed leaf are left to die before they are reaped.
    dying: Option<Duration>,
    /// What is shown of the first strays, from before they were killed.
    shown: HashMap<Pid, Ended>,
    /// Children that were sent SIGKILL and are not reaped yet.
    killed: HashSet<Pid>,
    /// Children that were asked to end and could not be looked at.
    asked_unseen: HashSet<Pid>,
    /// Something has ended since the last kill.
    moved: bool,
    leader_outlived: bool,
    /// Whether every name and the leaf's own accounts are wanted.
    details: bool,
    /// Members that run this program ask those below them.
    fronts: bool,
    leaf_usage: penfold_cgroup::Usage,
}

impl Teardown {
    /// The members in `leaf`, if there is one, and in `scope`.
    pub fn new(proc: ProcFs, leaf: Option<Leaf>, scope: Scope) -> Teardown {
        Teardown {
            proc,
            leaf: leaf.map_or(LeafState::None, LeafState::Live),
            scope,
            leader: None,
            leader_exit: None,
            leader_ended: false,
            keeper: None,
            ledger: BTreeMap::new(),
            living: HashMap::new(),
            left_behind: Vec::new(),
            reparented: HashSet::new(),
            commands: HashMap::new(),
            watched: Vec::new(),
            kills: 0,
            dying: None,
            shown: HashMap::new(),
            killed: HashSet::new(),
            asked_unseen: HashSet::new(),
            moved: false,
            leader_outlived: false,
            details: false,
            fronts: false,
            leaf_usage: penfold_cgroup::Usage::default(),
        }
    }

    /// Wants members that run this very program, which are told by [`pass_on`](penfold_sys::signal::pass_on), to pass a polite
    /// signal on to those below them. Those are not asked over their heads: who gets two such signals takes the second for
    /// impatience. A sandbox in this one is asked at its front.
    pub fn ask_at_fronts(&mut self) {
        self.fronts = true;
    }

    /// Names the first process, whose exit is the end of the sandbox.
    pub fn lead_by(&mut self, leader: Leader) {
        self.leader = Some(leader);
    }

    /// Names our init in a pid namespace, whose end is the end of all in there.
    pub fn kept_by(&mut self, keeper: Pid) {
        self.keeper = Some(keeper);
    }

    /// Notes that whoever is left has outlived the leader, which ended by itself.
    pub fn outlived(&mut self) {
        self.leader_outlived = self.kills == 0 && self.ledger.is_empty();
    }

    /// How the leader ended, once it has been reaped here, if that is known.
    pub fn leader_exit(&self) -> Option<Exit> {
        self.leader_exit
    }

    /// Whether the leader, or our init in its place, has been reaped here.
    pub(crate) fn has_leader_ended(&self) -> bool {
        self.leader_ended
    }

    /// Whether the kernel has killed a member of the leaf for want of memory.
    pub fn has_oom_killed(&self) -> bool {
        match &self.leaf {
            LeafState::None => false,
            LeafState::Live(leaf) => leaf.oom_kills() > 0,
            LeafState::Killed(leaf) => leaf.oom_kills() > 0,
        }
    }

    /// Makes ready for the end while there is time for it.
    pub(crate) fn make_ready(&mut self) {
        if let LeafState::Live(leaf) = &mut self.leaf {
            leaf.make_ready();
        }
    }

    /// The reader of /proc.
    pub fn proc(&mut self) -> &mut ProcFs {
        &mut self.proc
    }

    /// What may become readable when a member ends that is not a child of this process.
    pub fn watch(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(Process::pidfd)
    }

    /// Reaps every child that has ended and says how many.
    ///
    /// # Errors
    /// None that a caller can act on.
    pub fn reap(&mut self) -> io::Result<usize> {
        let mut reaped = 0;
        if !matches!(self.scope, Scope::Children) {
            return Ok(reaped);
        }
        loop {
            // Where no name is wanted of the next one there is nothing to look at before it is reaped.
            let nameless = self.kills > 0 && self.has_names_enough();
            let Peek::Ended(pid, exit) = (if nameless { child::reap_any() } else { child::peek() })? else {
                return Ok(reaped);
            };
            if self.keeper == Some(pid) {
                self.leader_ended = true;
                // Who kills our init kills the leader. A code of its own says nothing of the leader, which ended before or
                // is killed by that.
                self.leader_exit = Some(exit).filter(|exit| matches!(exit, Exit::Signal(_)));
            } else if self.leader.is_some_and(|leader| leader.pid == pid) {
                (self.leader_ended, self.leader_exit) = (true, Some(exit));
            }
            self.note_end(pid, exit);
            if !nameless {
                child::reap(pid)?;
            }
            self.killed.remove(&pid);
            self.asked_unseen.remove(&pid);
            self.moved = true;
            reaped += 1;
        }
    }

    /// Ends our init once nobody is left in its namespace: it does not end by itself, for its end would be theirs.
    ///
    /// # Errors
    /// When it could not be looked.
    pub fn dismiss_keeper(&mut self) -> io::Result<()> {
        if self.kills > 0 {
            return Ok(());
        }
        if let Some(keeper) = self.keeper
            && self.survey()?.population() == Population::Nobody
            && let Some(process) = Process::open(&mut self.proc, keeper)?
        {
            process.signal(Signal::KILL)?;
        }
        Ok(())
    }

    /// Looks whether nothing is left: no member alive, no leaf populated.
    ///
    /// # Errors
    /// When it could not be seen; that is not "nothing".
    pub fn is_empty(&mut self) -> io::Result<bool> {
        let children = matches!(self.scope, Scope::Children) && child::peek()? != Peek::NoChild;
        // A child that is traced from outside stays a zombie that is not ours to reap; whoever else is left shows as alive.
        if children && (self.kills < TRACED_FROM || self.survey()?.population() != Population::Nobody) {
            return Ok(false);
        }
        // One that has died since the first look is to be reaped: it may be the leader.
        if children && matches!(child::peek()?, Peek::Ended(..)) {
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
            Scope::Children => Ok(true),
            // One look can miss who moves on from pid to pid while it is taken; several in a row hardly can.
            Scope::Host(_) => {
                for _ in 0..LOOKS {
                    if self.survey()?.population() != Population::Nobody {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Looks for the members that are alive.
    fn survey(&mut self) -> io::Result<Survey> {
        let mut members = Vec::new();
        let completeness = match &mut self.scope {
            Scope::Children => self.proc.descendants(rustix::process::getpid(), &mut members)?,
            Scope::Host(search) => search.find(&mut self.proc, &mut members)?.completeness,
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
        members.retain(|stat| !stat.is_dead() && (self.kills > 0 || self.keeper != Some(stat.pid)));
        Ok(Survey::new(members, completeness))
    }

    /// Watches members whose end no SIGCHLD will tell.
    fn watch_some(&mut self, members: &[Stat]) {
        self.watched.clear();
        let own = rustix::process::getpid();
        let children = matches!(self.scope, Scope::Children);
        for stat in members.iter().filter(|stat| !(children && stat.parent == Some(own))).take(WATCHED) {
            // One that hides since the look cannot be watched; it is looked at again.
            self.watched.extend(Process::open_exact(&mut self.proc, stat.id()).ok().flatten());
        }
    }

    /// Drops the handles of those that have ended; true if there was one.
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

    /// Removes the leaf. True once it is gone; false while the kernel still holds it.
    ///
    /// # Errors
    /// Anything but "busy".
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

    /// Whether members had to be asked or killed: the leader was not alone.
    pub fn was_forced(&self) -> bool {
        self.kills > 0 || !self.ledger.is_empty()
    }

    /// The leaf's directory, for the report.
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
