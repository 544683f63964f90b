//! The execs of a sandbox, as its supervisor knows them.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::execs::{MAX_NUMBER, leaf_name};
use penfold_state::wire::UnwrittenEnd;
use penfold_state::{ExecFiles, Files, state};
use penfold_teardown::{Cause, EndedMember, Level};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::ended_execs::{EndedExecs, RecordOfExec};
use crate::exec_request::ExecRequest;

/// The execs of a sandbox.
#[derive(Default)]
pub(crate) struct Execs {
    running: Vec<RunningExec>,
    /// The number of the last exec.
    count: u32,
    /// The exec supervisors; after the end has begun, those that lived then.
    supervisors: Vec<ProcessId>,
    /// The members of execs when the end began.
    members: HashSet<i32>,
    ending: bool,
    /// The recorded execs whose end is not on disk so far.
    ended: EndedExecs,
}

/// A running exec.
pub(crate) struct RunningExec {
    /// The entry in `state.json`.
    pub(crate) state: state::ExecState,
    /// A pidfd of the exec supervisor.
    pub(crate) pidfd: OwnedFd,
    /// The leaf of the exec, below the sandbox's leaf.
    pub(crate) leaf: Option<PathBuf>,
    /// The record of a recorded exec.
    pub(crate) recorded: Option<RecordOfExec>,
}

impl Execs {
    /// Returns the number of running execs.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the pidfds to poll for the end of an exec; [`Execs::reap`] takes the results in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.running.iter().map(|running| PollFd::new(&running.pidfd, PollFlags::IN))
    }

    /// Returns the entries for `state.json`.
    pub(crate) fn states(&self) -> Vec<state::ExecState> {
        self.running.iter().map(|running| running.state.clone()).collect()
    }

    /// Marks the beginning of the sandbox's end.
    pub(crate) fn mark_ending(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            self.record_members();
        }
    }

    /// Adds a running exec.
    pub(crate) fn register(&mut self, running: RunningExec) {
        self.supervisors.push(running.state.supervisor);
        self.running.push(running);
    }

    /// Restores the execs in `written`, the state file of a killed supervisor. An entry is trusted only if its process
    /// is a child of this process. Recorded execs without such an entry and without a report are lost.
    pub(crate) fn restore(&mut self, written: Vec<state::ExecState>, sandbox: Option<&Path>, files: &Files) {
        let directories = ExecFiles::numbers(files).unwrap_or_default();
        let Ok(mut proc) = ProcFs::open() else { return };
        for state in written.into_iter().filter(|state| state.number < MAX_NUMBER) {
            let pid = state.supervisor.pid;
            // This order is safe: an unreaped child keeps its pid.
            let stat = proc.stat(pid).ok().flatten();
            if stat.is_none_or(|stat| stat.id() != state.supervisor || stat.parent != Some(getpid())) {
                continue;
            }
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                let leaf = sandbox.map(|path| path.join(leaf_name(state.number)));
                self.count = self.count.max(state.number);
                let recorded = directories.contains(&state.number);
                let recorded = recorded.then_some(RecordOfExec { number: state.number, cell: None });
                self.register(RunningExec { state, pidfd, leaf, recorded });
            }
        }
        for number in directories {
            let is_running = self.running.iter().any(|running| running.state.number == number);
            if !is_running && matches!(ExecFiles::open(files, number), Ok(Some(exec)) if !exec.is_reported())
            {
                let leaf = sandbox.map(|path| path.join(leaf_name(number)));
                self.ended.add(RecordOfExec { number, cell: None }, leaf.as_deref());
            }
        }
        self.record_members();
    }

    /// Records the members of all execs, before the end of the sandbox or of its supervisor reparents them.
    fn record_members(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let Ok(mut proc) = ProcFs::open() else { return };
        let mut open: Vec<Pid> = self.running.iter().map(|running| running.state.supervisor.pid).collect();
        let mut found = Vec::new();
        for leaf in self.running.iter().filter_map(|running| running.leaf.as_deref()) {
            if let Ok(Some(leaf)) = Leaf::open(leaf)
                && leaf.processes(&mut found).is_ok()
            {
                open.append(&mut found);
            }
        }
        while let Some(pid) = open.pop() {
            if self.members.insert(pid.as_raw_nonzero().get()) && proc.children(pid, &mut found).is_ok() {
                open.append(&mut found);
            }
        }
    }

    /// Removes exec supervisors from the list of ended members, and clears the mark of strays from members of execs.
    pub(crate) fn unmark_strays(&self, ended: &mut Vec<EndedMember>) {
        let is_supervisor = |ended: &EndedMember| {
            let mut supervisors = self.supervisors.iter();
            supervisors.any(|id| id.pid.as_raw_pid() == ended.pid && id.start.0 == ended.start_time)
        };
        ended.retain(|ended| !is_supervisor(ended));
        for ended in ended.iter_mut().filter(|ended| self.members.contains(&ended.pid)) {
            (ended.stray, ended.why, ended.command) = (false, None, None);
        }
    }

    /// Returns the next number and its leaf below the sandbox's leaf. Numbers of an earlier supervisor are skipped.
    pub(crate) fn number(&mut self, sandbox: Option<&Path>, files: &Files) -> (u32, Option<PathBuf>) {
        loop {
            self.count = self.count.saturating_add(1);
            let leaf = sandbox.map(|path| path.join(leaf_name(self.count)));
            let taken = leaf.as_deref().is_some_and(|leaf| leaf.symlink_metadata().is_ok())
                || ExecFiles::is_taken(files, self.count);
            if !taken || self.count > MAX_NUMBER {
                return (self.count, leaf);
            }
        }
    }

    /// Sends a request to the exec supervisor of this number.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn request(&self, number: u32, request: ExecRequest) -> Result<(), String> {
        let running = self.running.iter().find(|running| running.state.number == number);
        let running = running.ok_or_else(|| format!("no exec {number} runs in this sandbox"))?;
        request.send(running.pidfd.as_fd()).map_err(|error| format!("exec {number} cannot be asked: {error}"))
    }

    /// Returns the numbers of the execs whose end is not verified, or not on disk.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.running.iter().map(|running| running.state.number).chain(self.ended.numbers()).collect()
    }

    /// Returns the verified ends that could not be written so far.
    pub(crate) fn unwritten(&self) -> Vec<UnwrittenEnd> {
        self.ended.unwritten()
    }

    /// Returns the time until [`Execs::settle`] should be called; `None` if nothing is due.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        self.ended.next_look()
    }

    /// Writes the ends of recorded execs whose supervisor has exited.
    pub(crate) fn settle(&mut self, files: &Files, level: Level, patience: Duration) {
        self.ended.settle(files, level, patience);
    }

    /// Writes the ends of all recorded execs, after the verified end of the sandbox, which had this cause.
    pub(crate) fn conclude(&mut self, files: &Files, cause: Cause, level: Level) {
        for running in self.running.drain(..) {
            if let Some(recorded) = running.recorded {
                self.ended.add_gone(recorded);
            }
        }
        self.ended.conclude(files, cause, level);
    }

    /// Removes execs whose supervisor has exited: `ended` has the results of poll(2), in the order of
    /// [`Execs::sources`]. A killed exec supervisor could not end its tree: its leaf is killed here. Members outside of
    /// that leaf end with the sandbox.
    pub(crate) fn reap(&mut self, ended: &[bool]) {
        let mut ended = ended.iter();
        self.running.retain_mut(|running| {
            let exited = ended.next() == Some(&true);
            if exited && let Some(recorded) = running.recorded.take() {
                self.ended.add(recorded, running.leaf.as_deref());
            } else if exited && let Some(Ok(Some(leaf))) = running.leaf.as_deref().map(Leaf::open) {
                let _ = leaf.kill();
            }
            // During the end, the supervisor stays listed so that the report leaves it out.
            if exited && !self.ending {
                self.supervisors.retain(|supervisor| *supervisor != running.state.supervisor);
            }
            !exited
        });
    }
}
