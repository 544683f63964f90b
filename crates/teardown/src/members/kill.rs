//! Kills members: first by the cheap way, then by stronger means until they are gone.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use penfold_cgroup::v1freezer::V1Freezer;
use penfold_process::{Pid, Process, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open};

use super::{FREEZER_FROM, LeafState, MemberScope, ROUNDS, Teardown};
use crate::report::EndedBy;

/// The time that killed members get to die before they are reaped one by one: a base and an addition for each member. A usual
/// member takes half of the addition.
const LET_DIE: Duration = Duration::from_millis(1);
const LET_DIE_EACH: Duration = Duration::from_micros(150);

/// Returns the time that this many killed members get.
fn time_to_die(members: usize) -> Option<Duration> {
    let each = LET_DIE_EACH.saturating_mul(u32::try_from(members).unwrap_or(u32::MAX));
    LET_DIE.checked_add(each)
}

impl Teardown {
    /// Kills every member; call this again while something is left.
    ///
    /// The first kill is cheap and nearly always enough. It writes `cgroup.kill`, or sends SIGKILL to the children,
    /// whose own children then become ours. Later kills do more: see `kill_rest`.
    ///
    /// # Errors
    /// When the members cannot be listed or the leaf cannot be killed. All members that could be killed have been.
    pub fn kill(&mut self) -> io::Result<()> {
        self.settle_asked()?;
        self.kills = self.kills.saturating_add(1);
        if self.kills > 1 {
            return self.kill_rest();
        }
        let children = matches!(self.scope, MemberScope::Children);
        let mut inside = self.step_out()?;
        let named = self.init.is_some() && !self.counts_only(&mut inside);
        if named {
            inside.clear();
        }
        let strays = if children { self.note_strays(&inside)? } else { self.note_dying_found()? };
        let mut members = strays.len();
        if named {
            self.enter_all()?;
            members = self.ledger.len();
        } else if self.init.is_some() && !inside.is_empty() {
            // A child of this process is reaped here.
            let own = self.children()?;
            self.counted.extend(strays.iter().filter(|pid| !own.contains(pid)));
        } else if self.details {
            self.enter_leaf(inside)?;
        }
        let leaf_killed = self.kill_leaf();
        if !children {
            self.kill_each()?;
            return leaf_killed;
        }
        if self.init.is_some() || matches!(self.leaf, LeafState::None) {
            members = self.kill_children()?.max(members);
        }
        self.dying = time_to_die(members).filter(|_| leaf_killed.is_ok());
        leaf_killed
    }

    /// Waits while killed members die; true if members that were reparented since then may be left.
    ///
    /// A wake-up for each death would slow the dying members down, and each waitid call passes over all living
    /// children. No request could do more meanwhile. The last death is shown by the leaf, if it notifies promptly; without a
    /// leaf by the child that was killed last; in a pid namespace by our init, which reaps the others before its own end.
    pub(crate) fn let_die(&mut self) -> bool {
        let Some(most) = self.dying.take() else { return false };
        let most = Timespec::try_from(most).ok();
        let init = self.init.filter(|init| self.killed.contains(init));
        if let Some(pid) = init.or(self.killed_last.take()) {
            // An unreaped child keeps its pid, and none was reaped since the kill.
            if let Ok(last) = pidfd_open(pid, PidfdFlags::empty()) {
                let _ = poll(&mut [PollFd::new(&last, PollFlags::IN)], most.as_ref());
            }
            return self.init.is_none();
        }
        if let LeafState::Killed(leaf) = &self.leaf
            && let Some(events) = leaf.prompt_events()
        {
            let _ = poll(&mut [PollFd::from_borrowed_fd(events, PollFlags::PRI)], most.as_ref());
        }
        false
    }

    /// Tells whether the members in the namespace of our init need no entry in the ledger, and leaves only them in the list of the
    /// leaf.
    ///
    /// Our init reaps them, so their ends are not seen here, and the list must be complete: a member may have left the leaf.
    fn counts_only(&mut self, inside: &mut Vec<Pid>) -> bool {
        let Some(init) = self.init.filter(|_| !self.wants_names() && matches!(self.leaf, LeafState::Live(_)))
        else {
            return false;
        };
        inside.retain(|&pid| pid != init);
        self.holds_all(init, inside).unwrap_or(false)
    }

    /// Tells whether `inside` has all living processes below `init`.
    fn holds_all(&mut self, init: Pid, inside: &[Pid]) -> io::Result<bool> {
        let known: HashSet<Pid> = inside.iter().copied().collect();
        let mut children = Vec::new();
        for &parent in [init].iter().chain(inside) {
            self.proc.children(parent, &mut children)?;
            for pid in children.iter().filter(|pid| !known.contains(pid)) {
                // A leaf does not list zombies.
                if self.proc.stat(*pid)?.is_some_and(|stat| !stat.is_dead()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Kills the members that the first kill has left.
    ///
    /// Members of a killed leaf may still be dying: while there is progress they get time. Children reparented to us
    /// since then are killed. If more such children keep coming, or nothing changes, the tree is stopped and killed
    /// member by member.
    fn kill_rest(&mut self) -> io::Result<()> {
        let moved = std::mem::take(&mut self.moved);
        let dying = match &self.leaf {
            LeafState::Killed(leaf) => moved && leaf.populated().map_err(io::Error::other)?,
            LeafState::Live(_) | LeafState::None => false,
        };
        if dying {
            return Ok(());
        }
        if matches!(self.scope, MemberScope::Children) {
            let fresh = self.kill_children()?;
            self.dying = time_to_die(fresh).filter(|_| fresh > 0);
            if self.kills == 2 && fresh > 0 || fresh == 0 && moved {
                return Ok(());
            }
        }
        self.step_out()?;
        let leaf_killed = self.kill_leaf();
        self.kill_each()?;
        leaf_killed
    }

    /// Lists the members of the leaf before its kill, without this process. A member may have moved this process into
    /// the leaf: then it moves out.
    fn step_out(&mut self) -> io::Result<Vec<Pid>> {
        let mut inside = Vec::new();
        if let LeafState::Live(leaf) = &self.leaf {
            let own = rustix::process::getpid();
            // A list that cannot be read must not stop the kill.
            let within = match leaf.processes(&mut inside) {
                Ok(()) => inside.contains(&own),
                Err(_) => self.proc.cgroups(own)?.is_some_and(|text| leaf.holds(&text)),
            };
            if within {
                inside.retain(|&pid| pid != own);
                leaf.leave()?;
            }
        }
        Ok(inside)
    }

    /// Adds the members of the leaf to the ledger. After the kill, some are reaped by a parent that dies a little
    /// later.
    fn enter_leaf(&mut self, inside: Vec<Pid>) -> io::Result<()> {
        for pid in inside {
            if let Some(stat) = self.proc.stat(pid)?.filter(|stat| !stat.is_dead()) {
                self.enter(&stat);
            }
        }
        Ok(())
    }

    /// Adds all members to the ledger. A list of children may miss some while others exit, so repeat until none is new.
    fn enter_all(&mut self) -> io::Result<()> {
        for _ in 0..ROUNDS {
            let known = self.ledger.len();
            for stat in self.survey()?.seen() {
                self.enter(stat);
            }
            if self.ledger.len() == known {
                break;
            }
        }
        Ok(())
    }

    /// Notes that members which ended after being asked ended by the polite signal.
    fn settle_asked(&mut self) -> io::Result<()> {
        if self.kills > 0 {
            return Ok(());
        }
        for (id, entry) in &mut self.ledger {
            if !entry.gone && entry.asked {
                let alive = self.proc.stat(id.pid)?.is_some_and(|stat| stat.id() == *id && !stat.is_dead());
                entry.gone = !alive;
                entry.ended.how = if alive { EndedBy::Kill } else { EndedBy::Term };
            }
        }
        Ok(())
    }

    fn kill_leaf(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.leaf, LeafState::None) {
            LeafState::None => Ok(()),
            LeafState::Live(leaf) => match leaf.kill() {
                Ok(killed) => {
                    self.leaf = LeafState::Killed(killed);
                    Ok(())
                }
                Err(failed) => {
                    self.leaf = LeafState::Live(failed.leaf);
                    Err(io::Error::other(failed.source))
                }
            },
            LeafState::Killed(leaf) => {
                let again = leaf.kill_again(&mut self.proc).map_err(io::Error::other);
                self.leaf = LeafState::Killed(leaf);
                again.map(drop)
            }
        }
    }

    /// Sends SIGKILL to each child of this process that has not had it, and returns their number.
    ///
    /// The children are unreaped, so their pids cannot be reused.
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    fn kill_children(&mut self) -> io::Result<usize> {
        let mut fresh = 0;
        for pid in self.children()? {
            if self.killed.insert(pid) {
                fresh += 1;
                self.killed_last = Some(pid);
                // A member that became root refuses the signal; the look at the deadline reports it as a survivor.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        Ok(fresh)
    }

    /// Sends SIGKILL to each member by pidfd: also to members outside the leaf, missed by `cgroup.kill`, or frozen.
    ///
    /// First all members are stopped, until two looks agree. Then no member forks while others die, and no dying
    /// member's children are reparented unseen.
    fn kill_each(&mut self) -> io::Result<()> {
        let members = self.stand_still()?;
        for stat in members.iter().rev() {
            self.kill_one(stat)?;
        }
        self.watch_some(&members);
        Ok(())
    }

    /// Stops all members until a look finds no new one, and lists them. The last look finds all of them stopped or
    /// dying.
    pub(super) fn stand_still(&mut self) -> io::Result<Vec<Stat>> {
        let mut seen = HashSet::new();
        let mut members = Vec::new();
        for _ in 0..ROUNDS {
            members = self.survey()?.into_seen();
            let mut fresh = false;
            for stat in &members {
                if seen.insert(stat.id()) {
                    fresh = true;
                    if let Ok(Some(process)) = Process::open_exact(&mut self.proc, stat.id()) {
                        let _ = process.signal(Signal::STOP);
                    }
                }
            }
            if !fresh {
                break;
            }
        }
        if self.allows_outside() {
            // A supervisor that was stopped just before it noted that it is outside would stay stopped.
            seen.retain(|id| !members.iter().any(|stat| stat.id() == *id));
            for id in seen {
                if let Ok(Some(process)) = Process::open_exact(&mut self.proc, id) {
                    let _ = process.signal(Signal::CONT);
                }
            }
        }
        Ok(members)
    }

    fn kill_one(&mut self, stat: &Stat) -> io::Result<()> {
        let process = match Process::open_exact(&mut self.proc, stat.id()) {
            Ok(Some(process)) => process,
            Ok(None) => return Ok(()),
            // The failure must not keep other members alive: the member is reported if it stays.
            Err(error) => {
                self.enter(stat).refused = Some(error);
                return Ok(());
            }
        };
        self.enter(stat);
        let sent = process.signal(Signal::KILL).map(drop);
        if sent.is_ok()
            && self.kills >= FREEZER_FROM
            && let Some(freezer) = V1Freezer::find_here()?
        {
            // A member in a v1 freezer dies only once it is thawed. If that fails, the member is reported as a
            // survivor.
            let _ = freezer.release(&mut self.proc, &process);
        }
        let entry = self.enter(stat);
        entry.ended.how = EndedBy::Kill;
        entry.refused = sent.err();
        Ok(())
    }
}
