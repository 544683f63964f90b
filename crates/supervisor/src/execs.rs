//! The commands that were put into a sandbox, as its supervisor knows them.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_state::state;
use penfold_teardown::Ended;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open};

use crate::poll::poll;

/// A larger number of an exec is none of ours.
const MOST: u32 = 1 << 30;

/// The commands that were put into a sandbox.
#[derive(Default)]
pub(crate) struct Execs {
    running: Vec<Running>,
    /// How many there were.
    count: u32,
    /// The processes that look after them, and once the sandbox is being ended those that did so then.
    supervisors: Vec<ProcessId>,
    /// Their members when the sandbox was ended.
    members: HashSet<i32>,
    ending: bool,
}

/// One that runs.
pub(crate) struct Running {
    /// As `state.json` has it.
    pub(crate) state: state::Exec,
    /// A handle to the process that looks after it.
    pub(crate) pidfd: OwnedFd,
    /// Its leaf, below that of the sandbox.
    pub(crate) leaf: Option<PathBuf>,
}

impl Execs {
    /// How many run.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// What tells that one has ended.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.running.iter().map(|running| PollFd::new(&running.pidfd, PollFlags::IN))
    }

    /// For those who look.
    pub(crate) fn states(&self) -> Vec<state::Exec> {
        self.running.iter().map(|running| running.state.clone()).collect()
    }

    /// The sandbox is being ended.
    pub(crate) fn ends(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            self.note_members();
        }
    }

    /// Adds one that runs.
    pub(crate) fn register(&mut self, running: Running) {
        self.supervisors.push(running.state.supervisor);
        self.running.push(running);
    }

    /// Takes on those that a supervisor that was killed has `written` down. They are believed of our own children only.
    pub(crate) fn recall(&mut self, written: Vec<state::Exec>, sandbox: Option<&Path>) {
        let Ok(mut proc) = ProcFs::open() else { return };
        for state in written.into_iter().filter(|state| state.number < MOST) {
            let pid = state.supervisor.pid;
            // In this order: an unreaped child of ours keeps its number.
            let stat = proc.stat(pid).ok().flatten();
            if stat.is_none_or(|stat| stat.id() != state.supervisor || stat.parent != Some(getpid())) {
                continue;
            }
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
                let leaf = sandbox.map(|path| path.join(leaf_name(state.number)));
                self.count = self.count.max(state.number);
                self.register(Running { state, pidfd, leaf });
            }
        }
        self.note_members();
    }

    /// Notes who belongs to them, before the end of the sandbox, or of its supervisor, makes orphans of all.
    fn note_members(&mut self) {
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

    /// Those who looked after them are ours and no members, and nobody whom they looked after was a stray.
    pub(crate) fn vouch(&self, ended: &mut Vec<Ended>) {
        let is_supervisor = |ended: &Ended| {
            let mut supervisors = self.supervisors.iter();
            supervisors.any(|id| id.pid.as_raw_pid() == ended.pid && id.start.0 == ended.start_time)
        };
        ended.retain(|ended| !is_supervisor(ended));
        for ended in ended.iter_mut().filter(|ended| self.members.contains(&ended.pid)) {
            (ended.stray, ended.why, ended.command) = (false, None, None);
        }
    }

    /// The next number, and the leaf that goes with it below that of the sandbox. A supervisor before this one may have
    /// used some.
    pub(crate) fn number(&mut self, sandbox: Option<&Path>) -> (u32, Option<PathBuf>) {
        loop {
            self.count = self.count.saturating_add(1);
            let leaf = sandbox.map(|path| path.join(leaf_name(self.count)));
            let taken = leaf.as_deref().is_some_and(|leaf| leaf.symlink_metadata().is_ok());
            if !taken || self.count > MOST {
                return (self.count, leaf);
            }
        }
    }

    /// Ends one politely. False if there is none of this number.
    pub(crate) fn stop(&self, number: u32) -> bool {
        self.running.iter().any(|running| {
            running.state.number == number
                && rustix::process::pidfd_send_signal(&running.pidfd, Signal::TERM).is_ok()
        })
    }

    /// Forgets those whose supervisor has exited. One that was killed could not end its tree: then its leaf does, and what
    /// is not in there ends with the sandbox.
    pub(crate) fn reap(&mut self) {
        self.running.retain(|running| {
            let mut fds = [PollFd::new(&running.pidfd, PollFlags::IN)];
            let over = poll(&mut fds, Some(&Timespec::default())) != Ok(0);
            if over && let Some(Ok(Some(leaf))) = running.leaf.as_deref().map(Leaf::open) {
                let _ = leaf.kill();
            }
            // The report of the end leaves out those who ended with it.
            if over && !self.ending {
                self.supervisors.retain(|supervisor| *supervisor != running.state.supervisor);
            }
            !over
        });
    }
}

/// The name of the leaf of an exec.
fn leaf_name(number: u32) -> String {
    format!("exec-{number}")
}
