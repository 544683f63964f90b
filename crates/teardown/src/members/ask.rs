//! Sends the polite signal to members.

use std::collections::HashSet;
use std::io;

use penfold_process::{Pid, Process, Stat};
use penfold_sys::child;
use penfold_sys::signal::pass_on;
use rustix::process::Signal;

use super::{LeafState, MemberScope, SHOWN, Teardown};
use crate::report::EndedBy;

/// The effect of a SIGINT that the terminal has sent to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InterruptEffect {
    /// No effect, or the signal was not sent.
    No,
    /// The member has a handler or reads the signal from a descriptor.
    Handles,
    /// The member dies of the signal.
    Dies,
}

/// A member that is asked to end.
enum AskedMember {
    /// A child of this process: unreaped, so it keeps its pid.
    Child(Pid),
    Member(Process),
}

impl AskedMember {
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    fn signal(&self, signal: Signal) -> io::Result<()> {
        match self {
            AskedMember::Child(pid) => rustix::process::kill_process(*pid, signal).map_err(io::Error::from),
            AskedMember::Member(process) => process.signal(signal).map(drop),
        }
    }
}

impl Teardown {
    /// Sends the polite signal to every member that has not had it, children before parents, and continues the stopped.
    ///
    /// Members of `spared_group` have received SIGINT from their terminal. Members that die of it or handle it get no
    /// further signal. Background jobs of a shell ignore SIGINT, and get the polite signal.
    ///
    /// # Errors
    /// When the members cannot be listed. A member that could not be signalled is a survivor later on, if it stays.
    pub fn ask(&mut self, signal: Signal, spared_group: Option<i32>) -> io::Result<()> {
        let first = self.ledger.is_empty();
        if matches!(self.scope, MemberScope::Host(_)) {
            // Frozen members could not stop.
            self.thaw();
        }
        let members = match self.scope {
            // The children of a member that dies are reparented to strangers: stop all members until all have the
            // signal.
            MemberScope::Host(_) if first => self.stand_still()?,
            MemberScope::Host(_) | MemberScope::Children => self.survey()?.into_seen(),
        };
        if matches!(self.scope, MemberScope::Children) {
            self.note_strays_among(&members)?;
        }
        self.ask_unseen(signal)?;
        let (relays, relayed) = self.relayed(&members);
        let mut unnamed = SHOWN;
        let mut woken = Vec::new();
        for stat in members.iter().rev().filter(|stat| !relayed.contains(&stat.pid)) {
            if self.ledger.get(&stat.id()).is_some_and(|entry| entry.asked) {
                continue;
            }
            let is_relay = relays.contains(&stat.pid);
            let Some(asked) = self.open(stat, is_relay) else { continue };
            if (unnamed > 0 || self.wants_commands()) && self.why_stray(stat).is_some() {
                unnamed = unnamed.saturating_sub(1);
                self.note_command(stat.pid);
            }
            let has =
                if spared_group == Some(stat.group) { self.interrupted(stat)? } else { InterruptEffect::No };
            if has == InterruptEffect::Dies {
                woken.push(asked);
                continue;
            }
            // A penfold process handles SIGINT in its own way, but still needs the polite signal that is requested
            // here.
            let has_it = has == InterruptEffect::Handles && !(is_relay && signal != Signal::INT);
            let sent = match &asked {
                _ if has_it => Ok(()),
                AskedMember::Member(process) if is_relay => pass_on(process.pidfd(), signal),
                _ => asked.signal(signal),
            };
            let entry = self.enter(stat);
            entry.asked = true;
            entry.ended.how = EndedBy::Term;
            entry.ended.signal = Some(if has_it { Signal::INT.as_raw() } else { signal.as_raw() });
            entry.refused = sent.err();
            woken.push(asked);
        }
        // Frozen members take the signal as soon as they run.
        self.thaw();
        for asked in woken {
            // A member that refused the signal refuses this one too, and is reported for it.
            let _ = asked.signal(Signal::CONT);
        }
        self.watch_some(&members);
        Ok(())
    }

    /// Thaws the leaf, if its members are frozen: a paused sandbox ends as politely as another one.
    pub(crate) fn thaw(&mut self) {
        if let LeafState::Live(leaf) = &self.leaf
            && leaf.frozen().unwrap_or(false)
        {
            // Members that stay frozen die of SIGKILL later on.
            let _ = leaf.thaw();
        }
    }

    /// Opens a member for signals; `None` if it has ended. A member that is hidden since the look is left to the kill.
    fn open(&mut self, stat: &Stat, is_relay: bool) -> Option<AskedMember> {
        let own = rustix::process::getpid();
        let children = matches!(self.scope, MemberScope::Children);
        if children && !is_relay && stat.parent == Some(own) && child::is_child(stat.pid) {
            return Some(AskedMember::Child(stat.pid));
        }
        Process::open_exact(&mut self.proc, stat.id()).ok().flatten().map(AskedMember::Member)
    }

    /// Notes the members that have lost their parent, and the names of the first of them.
    fn note_strays_among(&mut self, members: &[Stat]) -> io::Result<()> {
        if self.proc.is_blind() {
            return self.note_strays(&[]).map(drop);
        }
        let parent = self.init.unwrap_or_else(rustix::process::getpid);
        let children = members.iter().filter(|stat| stat.parent == Some(parent));
        let mut strays = children.map(|stat| stat.pid).collect();
        self.note_reparented(&mut strays);
        for &pid in strays.iter().take(SHOWN) {
            self.note_command(pid);
        }
        Ok(())
    }

    /// Returns the effect of the SIGINT that was sent to a member.
    fn interrupted(&mut self, stat: &Stat) -> io::Result<InterruptEffect> {
        Ok(match self.proc.status(stat.pid)? {
            Some(status) if status.ignores(Signal::INT) => InterruptEffect::No,
            Some(status) if !status.dies_of(Signal::INT) => InterruptEffect::Handles,
            Some(_) | None => InterruptEffect::Dies,
        })
    }

    /// Returns the members that pass the signal on, and the members below them; parents come before children.
    fn relayed(&mut self, members: &[Stat]) -> (HashSet<Pid>, HashSet<Pid>) {
        if self.launchers { self.penfolds(members) } else { (HashSet::new(), HashSet::new()) }
    }

    /// Returns the members that run this program, and the members below them.
    pub(super) fn penfolds(&mut self, members: &[Stat]) -> (HashSet<Pid>, HashSet<Pid>) {
        let mut relays = HashSet::new();
        let own = self.proc.program(rustix::process::getpid());
        let mut relayed = HashSet::new();
        for stat in members {
            let below =
                stat.parent.is_some_and(|parent| relays.contains(&parent) || relayed.contains(&parent));
            if below {
                relayed.insert(stat.pid);
            } else if own.is_some() && self.proc.program(stat.pid) == own {
                relays.insert(stat.pid);
            }
        }
        (relays, relayed)
    }
}
