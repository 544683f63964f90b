//! The ledger: which members were ended and how, and which are left.

use std::collections::HashSet;
use std::io;

use penfold_cgroup::Cgroup;
use penfold_process::{Completeness, Pid, Stat};
use penfold_sys::child::{self, Exit};
use rustix::process::Signal;

use super::{LedgerEntry, MemberScope, SHOWN, Teardown};
use crate::report::{
    EndedBy, EndedMember, Findings, Survivor, ended_member, left_behind, raw_pid, whole_micros,
};

impl Teardown {
    /// Notes how a child ended, while its name can still be read.
    pub(super) fn note_end(&mut self, pid: Pid, exit: Exit) {
        let killed = self.kills > 0 && exit == Exit::Signal(Signal::KILL.as_raw());
        if self.init == Some(pid) || (self.is_of_stop_command(pid, None) && !self.living.contains_key(&pid)) {
            return;
        }
        let known = self.living.remove(&pid);
        if self.dying_alone.remove(&pid).is_some() && known.is_none() {
            return;
        }
        if known.is_none() && killed {
            if self.shown.contains_key(&pid) || self.has_names_enough() {
                self.left_behind.push(pid);
                return;
            }
            // A child that `/proc` does not show is reaped all the same.
            let Some(stat) = self.proc.stat(pid).ok().flatten() else {
                self.left_behind.push(pid);
                return;
            };
            self.enter(&stat);
            self.living.remove(&pid);
            if let Some(entry) = self.ledger.get_mut(&stat.id()) {
                entry.gone = true;
            }
        }
        if let Some(entry) = known.and_then(|id| self.ledger.get_mut(&id)) {
            entry.gone = true;
            entry.ended.how = if entry.asked && !killed { EndedBy::Term } else { EndedBy::Kill };
        }
    }

    /// Adds a member to the ledger.
    ///
    /// The command line of a stray is read here where every name is wanted, so enter a member before it is signalled.
    pub(super) fn enter(&mut self, stat: &Stat) -> &mut LedgerEntry {
        let why = self.why_stray(stat);
        let is_known = self.commands.contains_key(&stat.pid) || self.ledger.contains_key(&stat.id());
        if why.is_some() && self.wants_commands() && !is_known {
            self.note_command(stat.pid);
        }
        let dies_alone = self.dies_alone(stat.id());
        // A member that is slow to die gets an entry after all.
        let shown = || self.shown.get(&stat.pid).and_then(|shown| shown.command.clone());
        let command = self.commands.get(&stat.pid).cloned().or_else(shown);
        self.commands.remove(&stat.pid);
        self.living.insert(stat.pid, stat.id());
        self.ledger.entry(stat.id()).or_insert_with(|| {
            let mut ended = ended_member(stat.id(), stat.comm.clone(), EndedBy::Kill);
            ended.stray = why.is_some();
            ended.why = why.map(str::to_owned);
            ended.command = command;
            LedgerEntry { ended, asked: false, gone: false, dies_alone, refused: None }
        })
    }

    pub(super) fn why_stray(&self, stat: &Stat) -> Option<&'static str> {
        if self.dies_alone(stat.id()) { None } else { self.why(stat.pid, stat.session) }
    }

    fn why(&self, pid: Pid, session: i32) -> Option<&'static str> {
        let leader = self.leader?;
        if pid == leader.pid || self.is_of_stop_command(pid, Some(session)) {
            return None;
        }
        if session == raw_pid(pid) {
            Some("setsid")
        } else if session != leader.session {
            Some("daemon")
        } else if self.leader_outlived {
            Some("left behind")
        } else if self.reparented.contains(&pid) {
            Some("reparented")
        } else {
            None
        }
    }

    /// Tells whether the next killed member needs no name.
    pub(super) fn has_names_enough(&self) -> bool {
        !self.wants_names() && self.ledger.len() + self.shown.len() >= SHOWN
    }

    /// Tells whether every killed member gets a name, not only the first.
    pub(super) fn wants_names(&self) -> bool {
        // After the leader's exit every remaining member is a stray, whatever its name. Reading a name costs as much as
        // reaping.
        self.details || !self.leader_outlived
    }

    /// Notes the names of the first strays, before a kill makes all look alike, and returns all strays.
    ///
    /// After the leader's exit these are all members `inside` the leaf, if there are any. Before, they are the processes that lost
    /// their parent: the children of this process, or of our init, except the leader.
    pub(super) fn note_strays(&mut self, inside: &[Pid]) -> io::Result<Vec<Pid>> {
        let mut strays = Vec::new();
        if self.leader_outlived && !inside.is_empty() {
            strays.extend(inside);
        } else {
            match self.init {
                Some(init) => self.proc.children(init, &mut strays)?,
                None => strays = self.children()?,
            }
            self.note_reparented(&mut strays);
        }
        if self.leader_outlived {
            // A cgroup does not list a process that exits, and it may be reparented to this one already.
            let mut members = self.children()?;
            let others: HashSet<Pid> = strays.iter().copied().chain(self.init).collect();
            members.retain(|pid| !others.contains(pid));
            members.extend(&strays);
            self.note_dying(&members);
            strays.retain(|pid| !self.dying_alone.contains_key(pid));
        }
        // The others in the namespace of our init get entries in the ledger.
        let shown = !self.wants_names() && (self.init.is_none() || !inside.is_empty());
        for &pid in strays.iter().take(SHOWN) {
            self.note_command(pid);
            if shown {
                self.show(pid);
            }
        }
        Ok(strays)
    }

    /// Notes the processes that have lost their parent: these children of ours, or of our init, except the leader.
    pub(super) fn note_reparented(&mut self, children: &mut Vec<Pid>) {
        children.retain(|&pid| {
            self.leader.is_none_or(|leader| leader.pid != pid) && !self.is_of_stop_command(pid, None)
        });
        self.reparented.extend(&*children);
    }

    /// Notes the details of a stray that gets no ledger entry: that takes half the time of an entry.
    fn show(&mut self, pid: Pid) {
        if let (Some(command), Some(session)) =
            (self.commands.remove(&pid), penfold_sys::fork::session_of(pid))
        {
            let mut ended = left_behind(pid);
            ended.why = self.why(pid, session).map(str::to_owned);
            ended.command = Some(command);
            self.shown.insert(pid, ended);
        }
    }

    /// Tells whether each stray that a search finds gets its command line.
    pub(super) fn wants_commands(&self) -> bool {
        self.details && matches!(self.scope, MemberScope::Host(_))
    }

    /// Reads the command line of a member, before the member is ended.
    pub(super) fn note_command(&mut self, pid: Pid) {
        if self.proc.is_blind() {
            self.commands.insert(pid, "?".to_owned());
        } else if let Some(command) = self.proc.command_line(pid) {
            self.commands.insert(pid, command);
        }
    }

    /// Returns the survivors with the reason for each.
    ///
    /// # Errors
    /// When the members could not be read.
    pub fn survivors(&mut self) -> io::Result<Vec<Survivor>> {
        let survey = self.survey()?;
        let mut survivors = Vec::new();
        for stat in survey.seen() {
            let (state, wait_channel) = self.proc.waits(stat);
            let state = state.letter();
            let refused = self.ledger.get(&stat.id()).and_then(|entry| entry.refused.as_ref());
            let reason = match refused {
                Some(error) => format!("cannot be signalled: {error}"),
                None if state == 'D' => "was sent SIGKILL and is stuck in the kernel".to_owned(),
                None => "was sent SIGKILL and has not ended".to_owned(),
            };
            survivors.push(Survivor::Process {
                pid: raw_pid(stat.pid),
                start_time: stat.start.0,
                name: stat.comm.clone(),
                state,
                wait_channel,
                reason,
            });
        }
        let unseen = self.unseen()?;
        if !unseen.is_empty() {
            survivors.extend(unseen);
            return Ok(survivors);
        }
        let unseen = match survey.completeness() {
            Completeness::Complete => None,
            Completeness::OwnOnly => Some("`/proc` does not show the processes of other users (hidepid)"),
            Completeness::Incomplete => Some("some processes could not be looked at"),
        };
        survivors.extend(unseen.map(|reason| Survivor::Unknown { reason: reason.to_owned() }));
        Ok(survivors)
    }

    /// Returns living members that `/proc` hides from this process: its own children, and those found by descent.
    fn unseen(&mut self) -> io::Result<Vec<Survivor>> {
        let pids = match &self.scope {
            MemberScope::Host(search) => search.hidden().collect(),
            MemberScope::Children => self.children()?,
        };
        let is_blind = self.proc.is_blind();
        let hidden = pids.into_iter().filter(|&pid| !matches!(self.proc.stat(pid), Ok(Some(_))));
        Ok(hidden.map(|pid| Survivor::hidden(pid, is_blind)).collect())
    }

    /// Fills in the ledger and the kernel's accounts.
    pub fn account(&mut self, findings: &mut Findings) {
        let left: HashSet<(i32, u64)> = findings
            .survivors
            .iter()
            .filter_map(|survivor| match survivor {
                Survivor::Process { pid, start_time, .. } => Some((*pid, *start_time)),
                Survivor::Resource { .. } | Survivor::Unknown { .. } => None,
            })
            .collect();
        let known: HashSet<Pid> = self.ledger.keys().map(|id| id.pid).collect();
        let is_survivor = |pid: Pid| left.iter().any(|(survivor, _)| *survivor == raw_pid(pid));
        let counted = self.counted.iter().filter(|&&pid| !known.contains(&pid) && !is_survivor(pid));
        let (mut shown, others): (Vec<Pid>, Vec<Pid>) =
            self.left_behind.iter().chain(counted).partition(|pid| self.shown.contains_key(pid));
        shown.sort_unstable_by_key(|pid| pid.as_raw_pid());
        findings.ended = self
            .ledger
            .values()
            .filter(|entry| entry.asked || !entry.dies_alone)
            .map(|entry| &entry.ended)
            .filter(|ended| self.init.is_none_or(|init| raw_pid(init) != ended.pid))
            .filter(|ended| !left.contains(&(ended.pid, ended.start_time)))
            .cloned()
            .chain(shown.iter().filter_map(|pid| self.shown.get(pid).cloned()))
            .chain(others.into_iter().map(left_behind))
            .map(|ended| match ended.how {
                EndedBy::Kill => EndedMember { signal: Some(Signal::KILL.as_raw()), ..ended },
                EndedBy::Term => ended,
            })
            .collect();
        findings.spared = self.spared();
        findings.outside = self.outside();
        let reaped = child::children_usage().unwrap_or_default();
        let counted = &self.leaf_usage;
        findings.cpu_us = whole_micros(counted.cpu.unwrap_or_default().max(reaped.cpu));
        findings.peak_memory_bytes = counted.memory_peak.unwrap_or(0).max(reaped.peak_memory);
    }

    pub(super) fn read_accounts(&mut self, leaf: &Cgroup) {
        if self.details {
            self.leaf_usage = leaf.usage();
        }
    }

    /// Requests complete findings: every member's name, and the leaf's own accounts, which count members reaped
    /// elsewhere.
    ///
    /// Without details, the end of many alike processes costs no reading of their names.
    pub fn want_details(&mut self) {
        self.details = true;
    }
}
