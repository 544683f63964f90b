//! Sends the polite signal to members.

use std::collections::HashSet;
use std::io;

use penfold_process::{Pid, Process, Stat};
use penfold_sys::signal::pass_on;
use rustix::process::Signal;

use super::{SHOWN, Scope, Teardown};
use crate::report::EndedBy;

/// The effect of a SIGINT that the terminal has sent to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    /// No effect, or the signal was not sent.
    No,
    /// The member has a handler or reads the signal from a descriptor.
    Handles,
    /// The member dies of the signal.
    Dies,
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
        if matches!(self.scope, Scope::Children) {
            self.note_strays(&[])?;
        }
        let first = self.ledger.is_empty();
        let members = match self.scope {
            // The children of a member that dies are reparented to strangers: stop all members until all have the
            // signal.
            Scope::Host(_) if first => self.stand_still()?,
            Scope::Host(_) | Scope::Children => self.survey()?.into_seen(),
        };
        self.ask_unseen(signal)?;
        let (relays, relayed) = self.relayed(&members);
        let mut unnamed = SHOWN;
        let mut woken = Vec::new();
        for stat in members.iter().rev().filter(|stat| !relayed.contains(&stat.pid)) {
            if self.ledger.get(&stat.id()).is_some_and(|entry| entry.asked) {
                continue;
            }
            // A member that is hidden since the look is left to the kill.
            let Ok(Some(process)) = Process::open_exact(&mut self.proc, stat.id()) else { continue };
            if unnamed > 0 && self.why_stray(stat).is_some() {
                unnamed -= 1;
                self.note_command(stat.pid);
            }
            let has =
                if spared_group == Some(stat.group) { self.interrupted(stat)? } else { Interrupted::No };
            if has == Interrupted::Dies {
                woken.push(process);
                continue;
            }
            // A penfold process handles SIGINT in its own way, but still needs the polite signal that is requested
            // here.
            let has_it =
                has == Interrupted::Handles && !(relays.contains(&stat.pid) && signal != Signal::INT);
            let sent = if has_it {
                Ok(())
            } else if relays.contains(&stat.pid) {
                pass_on(process.pidfd(), signal)
            } else {
                process.signal(signal).map(drop)
            };
            let entry = self.enter(stat);
            entry.asked = true;
            entry.ended.how = EndedBy::Term;
            entry.ended.signal = Some(if has_it { Signal::INT.as_raw() } else { signal.as_raw() });
            entry.refused = sent.err();
            woken.push(process);
        }
        for process in woken {
            // A member that refused the signal refuses this one too, and is reported for it.
            let _ = process.signal(Signal::CONT);
        }
        self.watch_some(&members);
        Ok(())
    }

    /// Returns the effect of the SIGINT that was sent to a member.
    fn interrupted(&mut self, stat: &Stat) -> io::Result<Interrupted> {
        Ok(match self.proc.status(stat.pid)? {
            Some(status) if status.ignores(Signal::INT) => Interrupted::No,
            Some(status) if !status.dies_of(Signal::INT) => Interrupted::Handles,
            Some(_) | None => Interrupted::Dies,
        })
    }

    /// Returns the members that pass the signal on, and the members below them; parents come before children.
    fn relayed(&mut self, members: &[Stat]) -> (HashSet<Pid>, HashSet<Pid>) {
        let mut relays = HashSet::new();
        let own = self.launchers.then(|| self.proc.program(rustix::process::getpid())).flatten();
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
