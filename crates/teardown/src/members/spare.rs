//! Decides which members the end of the sandbox leaves alone, and lets go of them.

use std::collections::HashSet;
use std::io;

use penfold_process::{Pid, Process, ProcessId, Stat};

use super::{LeafState, Teardown};
use crate::report::raw_pid;
use crate::spare::{EarlierNotes, SparePolicy, SparedProcess, Verdict};

/// The rules of a sandbox, and the processes that were spared by them.
#[derive(Debug)]
pub(super) struct SpareState {
    pub(super) sparing: SparePolicy,
    /// Set once the earlier notes were read.
    has_earlier: bool,
    /// The leader, by the earlier notes.
    leader: Option<ProcessId>,
    held: Vec<SparedHandle>,
    /// Processes that match a rule and could not be spared: each is decided once.
    refused: HashSet<ProcessId>,
    /// Children that belong to sandboxes outside: their end is none of this sandbox's.
    pub(super) passed: HashSet<Pid>,
}

/// A spared process.
#[derive(Debug)]
struct SparedHandle {
    process: Process,
    spared: SparedProcess,
}

impl SparedHandle {
    /// Tells whether the process lives. A state that cannot be read means that it does not count as spared.
    fn lives(&self) -> bool {
        self.process.has_exited().is_ok_and(|exited| !exited)
    }
}

impl Teardown {
    /// Spares members by rule: the end neither asks nor kills them, and they no longer count as members.
    ///
    /// Each process is decided before it is asked or killed, and nothing is spared once the kill has begun.
    pub fn spare(&mut self, sparing: SparePolicy) {
        self.spare = Some(Box::new(SpareState {
            sparing,
            has_earlier: false,
            leader: None,
            held: Vec::new(),
            refused: HashSet::new(),
            passed: HashSet::new(),
        }));
    }

    /// Spares the members that match a rule now, and returns the reasons why others could not be spared.
    ///
    /// # Errors
    /// When the members cannot be listed. Then nothing new is spared.
    pub(crate) fn decide_spared(&mut self) -> io::Result<Vec<String>> {
        if self.spare.is_none() || self.kills > 0 {
            return Ok(Vec::new());
        }
        let mut reasons = Vec::new();
        let earlier = self.take_earlier();
        if !earlier.is_empty() {
            self.let_go(earlier, &mut reasons);
        }
        let members = self.survey()?.into_seen();
        // An exec and a nested sandbox end what is below them, by their own rules.
        let (ours, below) = self.penfolds(&members);
        let mut chosen = Vec::new();
        for stat in members.iter().filter(|stat| !ours.contains(&stat.pid) && !below.contains(&stat.pid)) {
            let is_asked = self.ledger.get(&stat.id()).is_some_and(|entry| entry.asked);
            let is_leader = self.leader.is_some_and(|leader| leader.pid == stat.pid) && !self.leader_ended
                || self.spare.as_ref().is_some_and(|state| state.leader == Some(stat.id()));
            if !is_asked && !is_leader && !self.is_of_stop_command(stat.pid, Some(stat.session)) {
                self.choose(stat, &mut chosen, &mut reasons);
            }
        }
        if !chosen.is_empty() {
            self.let_go(chosen, &mut reasons);
        }
        Ok(reasons)
    }

    /// Reads the earlier notes, and opens the processes that an earlier teardown has spared. It may have died before it moved
    /// them.
    fn take_earlier(&mut self) -> Vec<SparedHandle> {
        let mut held = Vec::new();
        let Some(state) = self.spare.as_mut().filter(|state| !state.has_earlier) else { return held };
        state.has_earlier = true;
        let EarlierNotes { leader, spared } = state.sparing.notes.earlier();
        state.leader = leader;
        for spared in spared {
            let opened = spared.id().and_then(|id| Process::open_exact(&mut self.proc, id).ok().flatten());
            held.extend(opened.map(|process| SparedHandle { process, spared }));
        }
        held
    }

    /// Compares a member with the rules, and opens it if one matches.
    fn choose(&mut self, stat: &Stat, chosen: &mut Vec<SparedHandle>, reasons: &mut Vec<String>) {
        let Some(state) = self.spare.as_mut().filter(|state| !state.refused.contains(&stat.id())) else {
            return;
        };
        // The pidfd comes first: what is read afterwards is of this process.
        let Ok(Some(process)) = Process::open_exact(&mut self.proc, stat.id()) else { return };
        for rule in &state.sparing.rules {
            match rule.compare(&mut self.proc, stat) {
                Verdict::Other => {}
                Verdict::Hidden => {
                    state.refused.insert(stat.id());
                    reasons.push(format!(
                        "pid {} ({}) is not spared by `{}`: the kernel hides its executable file from this user; a rule \
                         with the name alone can spare it",
                        stat.pid,
                        stat.comm,
                        rule.text()
                    ));
                }
                Verdict::Match => {
                    let command = self.proc.command_line(stat.pid).unwrap_or_else(|| stat.comm.clone());
                    let spared = SparedProcess {
                        pid: raw_pid(stat.pid),
                        start_time: stat.start.0,
                        name: stat.comm.clone(),
                        command,
                        rule: rule.text().to_owned(),
                        cgroup: None,
                    };
                    chosen.push(SparedHandle { process, spared });
                    return;
                }
            }
        }
    }

    /// Notes the chosen processes, then moves them out of the leaf. A process that cannot be moved stays a member.
    ///
    /// The note comes first: a process that is outside of the leaf and not noted would look like one that was left.
    fn let_go(&mut self, chosen: Vec<SparedHandle>, reasons: &mut Vec<String>) {
        let Some(state) = &mut self.spare else { return };
        let first = state.held.len();
        state.held.extend(chosen);
        note(state, false, reasons);
        penfold_sys::crash_point!("spared-noted");
        let leaf = match &self.leaf {
            LeafState::Live(leaf) => Some(leaf),
            LeafState::None | LeafState::Killed(_) => None,
        };
        let mut place = 0;
        state.held.retain_mut(|held| {
            place += 1;
            let (Some(leaf), true) = (leaf, place > first) else { return true };
            let id = held.process.id();
            let inside = |groups: io::Result<Option<Vec<u8>>>| {
                groups.map(|groups| groups.is_some_and(|groups| leaf.holds(&groups)))
            };
            let moved = inside(self.proc.cgroups(id.pid)).and_then(|is_inside| {
                if is_inside {
                    held.spared.cgroup = Some(leaf.move_out(id.pid, state.sparing.home.as_deref())?);
                }
                if inside(self.proc.cgroups(id.pid))? {
                    return Err(io::Error::other("it is still there"));
                }
                Ok(())
            });
            let Err(error) = moved else { return true };
            state.refused.insert(id);
            if held.lives() {
                let SparedProcess { pid, name, .. } = &held.spared;
                reasons.push(format!(
                    "pid {pid} ({name}) is not spared: it cannot be moved out of the cgroup {}: {error}",
                    leaf.path().display()
                ));
            }
            false
        });
        note(state, false, reasons);
        penfold_sys::crash_point!("spared-moved");
    }

    /// Notes that nothing but the spared processes is left of the sandbox.
    pub(crate) fn conclude_spared(&mut self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(state) = &mut self.spare {
            state.held.retain(SparedHandle::lives);
            if !state.sparing.is_partial || !state.held.is_empty() {
                note(state, !state.sparing.is_partial, &mut reasons);
            }
        }
        reasons
    }

    /// Returns the spared processes that live.
    pub(super) fn spared(&self) -> Vec<SparedProcess> {
        let held = self.spare.iter().flat_map(|state| &state.held);
        held.filter(|held| held.lives()).map(|held| held.spared.clone()).collect()
    }

    /// Tells whether children may be no members, so that the kernel's "no child" is no longer the proof.
    pub(super) fn has_spared(&self) -> bool {
        self.allows_outside() || self.spare.as_ref().is_some_and(|state| !state.held.is_empty())
    }

    /// Tells whether exactly this process was spared.
    pub(super) fn is_spared(&self, id: ProcessId) -> bool {
        self.spare.as_ref().is_some_and(|state| state.held.iter().any(|held| held.process.id() == id))
    }

    /// Tells whether the process that has this pid now is a spared one. An ended one is a child to be reaped like others.
    pub(super) fn is_spared_pid(&self, pid: Pid) -> bool {
        self.spare
            .as_ref()
            .is_some_and(|state| state.held.iter().any(|held| held.process.id().pid == pid && held.lives()))
    }

    /// Tells whether this unreaped child was spared, and has ended by itself.
    pub(super) fn was_spared(&self, pid: Pid) -> bool {
        self.spare.as_ref().is_some_and(|state| {
            state.passed.contains(&pid) || state.held.iter().any(|held| held.process.id().pid == pid)
        })
    }

    /// Forgets a spared child that was reaped: its pid may be reused.
    pub(super) fn forget_spared(&mut self, pid: Pid) {
        if let Some(state) = &mut self.spare {
            state.held.retain(|held| held.process.id().pid != pid);
            state.passed.remove(&pid);
        }
    }
}

fn note(state: &mut SpareState, is_over: bool, reasons: &mut Vec<String>) {
    let spared: Vec<SparedProcess> = state.held.iter().map(|held| held.spared.clone()).collect();
    if let Err(error) = state.sparing.notes.write(&spared, is_over) {
        reasons.push(format!("the spared processes cannot be noted: {error}"));
    }
}
