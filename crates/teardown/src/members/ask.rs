//! Asks members to end.

use std::collections::HashSet;
use std::io;

use penfold_process::{Pid, Process, Stat};
use penfold_sys::signal::pass_on;
use rustix::process::Signal;

use super::{SHOWN, Scope, Teardown};
use crate::report::How;

impl Teardown {
    /// Sends the polite signal to every member that has not had it, children before parents, and wakes the stopped.
    ///
    /// Members of `spared_group` got the signal from their terminal already.
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
            Scope::Host(_) | Scope::Children => self.survey()?.0,
        };
        let (relays, relayed) = self.relayed(&members);
        let mut unnamed = SHOWN;
        let mut woken = Vec::new();
        for stat in members.iter().rev().filter(|stat| !relayed.contains(&stat.pid)) {
            if self.ledger.get(&stat.id()).is_some_and(|entry| entry.asked) {
                continue;
            }
            let Some(process) = Process::open_exact(&mut self.proc, stat.id())? else { continue };
            if unnamed > 0 && self.why_stray(stat).is_some() {
                unnamed -= 1;
                self.note_command(stat.pid);
            }
            let has_it = spared_group == Some(stat.group);
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
            entry.refused = sent.err();
            woken.push(process);
        }
        for process in woken {
            // Who refused the signal refuses this as well, and is named for it.
            let _ = process.signal(Signal::CONT);
        }
        self.watch_some(&members)
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
