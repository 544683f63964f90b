//! Asks members to end.

use std::collections::HashSet;
use std::io;

use penfold_process::{Pid, Process, Stat};
use penfold_sys::signal::pass_on;
use rustix::process::Signal;

use super::{SHOWN, Scope, Teardown};
use crate::report::How;

/// What INT does to a member that its terminal sent it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    /// Nothing, or it was not sent.
    No,
    /// It has a handler or takes it from a descriptor.
    Handles,
    /// It ends by itself.
    Dies,
}

impl Teardown {
    /// Sends the polite signal to every member that has not had it, children before parents, and wakes the stopped.
    ///
    /// Members of `spared_group` were sent INT by their terminal: who dies of that is not asked, and who handles it has been
    /// asked. Background jobs of a shell ignore it, and get the polite signal.
    ///
    /// # Errors
    /// When the members cannot be listed. What could not be signalled is a survivor later on, if it stays.
    pub fn ask(&mut self, signal: Signal, spared_group: Option<i32>) -> io::Result<()> {
        if matches!(self.scope, Scope::Children) {
            self.note_strays(&[])?;
        }
        let first = self.ledger.is_empty();
        let members = match self.scope {
            // Who dies of the signal gives its children to strangers: all stand still until all have it.
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
            // One that hides since the look is left to the kill.
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
            // What it makes of INT is a penfold's own business, but what it is asked for here is not.
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
            entry.ended.how = How::Term;
            entry.ended.signal = Some(if has_it { Signal::INT.as_raw() } else { signal.as_raw() });
            entry.refused = sent.err();
            woken.push(process);
        }
        for process in woken {
            // Who refused the signal refuses this as well, and is named for it.
            let _ = process.signal(Signal::CONT);
        }
        self.watch_some(&members);
        Ok(())
    }

    /// What INT, which it was sent, does to a member.
    fn interrupted(&mut self, stat: &Stat) -> io::Result<Interrupted> {
        Ok(match self.proc.status(stat.pid)? {
            Some(status) if status.is_deaf_to(Signal::INT) => Interrupted::No,
            Some(status) if !status.dies_of(Signal::INT) => Interrupted::Handles,
            Some(_) | None => Interrupted::Dies,
        })
    }

    /// The members that pass on what they are asked, and those below them; parents come before children.
    fn relayed(&mut self, members: &[Stat]) -> (HashSet<Pid>, HashSet<Pid>) {
        let mut relays = HashSet::new();
        let own = self.fronts.then(|| self.proc.program(rustix::process::getpid())).flatten();
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
