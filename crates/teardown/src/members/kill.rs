//! Kills members: the cheap way first, and more as long as it does not end.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use penfold_cgroup::v1freezer::V1Freezer;
use penfold_process::{Pid, Process, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{FREEZER_FROM, LeafState, ROUNDS, Scope, Teardown};
use crate::report::How;

/// How long the members of a killed leaf may take to die until they are reaped one by one, and how much longer for each.
/// A usual member takes half of that.
const LET_DIE: Duration = Duration::from_millis(1);
const LET_DIE_EACH: Duration = Duration::from_micros(150);

impl Teardown {
    /// Kills every member, by the strongest means there is; call it again while something is left.
    ///
    /// The first kill is cheap and nearly always enough: the leaf's own, or SIGKILL to the children, whose children are
    /// ours then. Later ones do more as long as it does not end: see `kill_rest`.
    ///
    /// # Errors
    /// When the members cannot be listed or the leaf cannot be killed. What could be killed has been.
    pub fn kill(&mut self) -> io::Result<()> {
        self.settle_asked()?;
        self.kills = self.kills.saturating_add(1);
        if self.kills > 1 {
            return self.kill_rest();
        }
        let children = matches!(self.scope, Scope::Children);
        let inside = self.step_out()?;
        let strays = if children { self.note_strays(&inside)? } else { Vec::new() };
        if self.keeper.is_some() {
            self.enter_all()?;
        } else if self.details {
            self.enter_leaf(inside)?;
        }
        let leaf_killed = self.kill_leaf();
        if !children {
            self.kill_each()?;
        } else if self.keeper.is_some() || matches!(self.leaf, LeafState::None) {
            self.kill_children()?;
        } else if leaf_killed.is_ok() {
            let members = u32::try_from(strays.len()).unwrap_or(u32::MAX);
            self.dying = LET_DIE.checked_add(LET_DIE_EACH.saturating_mul(members));
        }
        leaf_killed
    }

    /// Leaves the members of a killed leaf to die, if it tells at once when they are dead: who is woken by each of them
    /// stands in the way of those that die, and each look for a dead child passes by all that live. Nothing that is asked
    /// for meanwhile could do more.
    pub(crate) fn let_die(&mut self) {
        if let Some(most) = self.dying.take()
            && let LeafState::Killed(leaf) = &self.leaf
            && let Some(events) = leaf.prompt_events()
        {
            let mut fds = [PollFd::from_borrowed_fd(events, PollFlags::PRI)];
            let _ = poll(&mut fds, Timespec::try_from(most).ok().as_ref());
        }
    }

    /// Kills what the first kill has left.
    ///
    /// Members of a killed leaf may still be dying: while there is progress they are given time. Children that have come
    /// to us since are killed. Only if there are such children again and again, or nothing moves, the tree is stopped
    /// and killed member by member.
    fn kill_rest(&mut self) -> io::Result<()> {
        let moved = std::mem::take(&mut self.moved);
        let dying = match &self.leaf {
            LeafState::Killed(leaf) => moved && leaf.populated().map_err(io::Error::other)?,
            LeafState::Live(_) | LeafState::None => false,
        };
        if dying {
            return Ok(());
        }
        if matches!(self.scope, Scope::Children) {
            let fresh = self.kill_children()?;
            if self.kills == 2 && fresh || !fresh && moved {
                return Ok(());
            }
        }
        self.step_out()?;
        let leaf_killed = self.kill_leaf();
        self.kill_each()?;
        leaf_killed
    }

    /// Lists who is in the leaf before it is killed, without us: a member may have put us among them.
    fn step_out(&mut self) -> io::Result<Vec<Pid>> {
        let mut inside = Vec::new();
        if let LeafState::Live(leaf) = &self.leaf {
            let own = rustix::process::getpid();
            // A list that cannot be had keeps nobody alive.
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

    /// Writes down who is in the leaf. Once it is killed, some are reaped by a parent that dies a little later itself.
    fn enter_leaf(&mut self, inside: Vec<Pid>) -> io::Result<()> {
        for pid in inside {
            if let Some(stat) = self.proc.stat(pid)?.filter(|stat| !stat.is_dead()) {
                self.enter(&stat);
            }
        }
        Ok(())
    }

    /// Writes down all members. A list of children may miss some while others exit, so looks until nobody new appears.
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

    /// Members that went after being asked did so by the polite signal.
    fn settle_asked(&mut self) -> io::Result<()> {
        if self.kills > 0 {
            return Ok(());
        }
        for (id, entry) in &mut self.ledger {
            if !entry.gone && entry.asked {
                let alive = self.proc.stat(id.pid)?.is_some_and(|stat| stat.id() == *id && !stat.is_dead());
                entry.gone = !alive;
                entry.ended.how = if alive { How::Kill } else { How::Term };
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

    /// SIGKILL to each child of this process that has not had it. They are unreaped, so their pids are theirs. True if
    /// there was one.
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    fn kill_children(&mut self) -> io::Result<bool> {
        let mut fresh = false;
        for pid in self.children()? {
            if self.killed.insert(pid) {
                fresh = true;
                // What refuses (a member that became root) is named by the look at the deadline.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        Ok(fresh)
    }

    /// SIGKILL to each member by pidfd: who left the leaf, whom `cgroup.kill` missed, who sits in a frozen cgroup.
    ///
    /// First all are stopped, until two looks agree: nobody forks while others die, and nobody who dies gives away its
    /// children unseen.
    fn kill_each(&mut self) -> io::Result<()> {
        let members = self.stand_still()?;
        for stat in members.iter().rev() {
            self.kill_one(stat)?;
        }
        self.watch_some(&members);
        Ok(())
    }

    /// Stops all members, until a look brings nobody new, and lists them. The last look sees them all stopped, or dying.
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
        Ok(members)
    }

    fn kill_one(&mut self, stat: &Stat) -> io::Result<()> {
        let process = match Process::open_exact(&mut self.proc, stat.id()) {
            Ok(Some(process)) => process,
            Ok(None) => return Ok(()),
            // It keeps nobody else alive: it is named if it stays.
            Err(error) => {
                self.enter(stat).refused = Some(error);
                return Ok(());
            }
        };
        let sent = process.signal(Signal::KILL).map(drop);
        if sent.is_ok()
            && self.kills >= FREEZER_FROM
            && let Some(freezer) = V1Freezer::find_here()?
        {
            // A member in a v1 freezer dies only once it is thawed. Where that fails it is named as a survivor.
            let _ = freezer.release(&mut self.proc, &process);
        }
        let entry = self.enter(stat);
        entry.ended.how = How::Kill;
        entry.refused = sent.err();
        Ok(())
    }
}
