//! The processes of a command.

use std::collections::HashSet;

use penfold_process::{Completeness, Pid, ProcFs, ProcessId, StartTime, Stat};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use penfold_process::Process;

/// The most looks in one round of [`CommandFamily::kill`]: against a tree that forks faster than it can be read.
const MOST_LOOKS: usize = 32;

/// The facts that separate a command's processes from older background jobs of the same session.
#[derive(Debug)]
pub(crate) struct CommandFamily {
    own: Pid,
    /// The processes, besides the shell, that lived when the shell was last ready.
    elders: HashSet<ProcessId>,
}

impl CommandFamily {
    pub(crate) fn new() -> CommandFamily {
        CommandFamily { own: rustix::process::getpid(), elders: HashSet::new() }
    }

    /// Notes the processes that live now: none of them belongs to a later command.
    pub(crate) fn note_elders(&mut self, proc: &mut ProcFs) {
        let mut all = Vec::new();
        let _ = proc.descendants(self.own, &mut all);
        self.elders = all.iter().map(Stat::id).collect();
    }

    /// Returns the living processes of the command that began at `since`: descendants of the shell, and orphans, that are
    /// not older than the command and do not descend from an older process.
    pub(crate) fn members(
        &self,
        proc: &mut ProcFs,
        shell: Option<Pid>,
        since: StartTime,
    ) -> (Vec<Stat>, Completeness) {
        let mut all = Vec::new();
        let completeness = proc.descendants(self.own, &mut all).unwrap_or(Completeness::Incomplete);
        let mut older = HashSet::new();
        // Parents come before their children.
        all.retain(|stat| {
            if Some(stat.pid) == shell {
                return false;
            }
            let is_older = stat.start < since
                || self.elders.contains(&stat.id())
                || stat.parent.is_some_and(|parent| older.contains(&parent));
            if is_older {
                older.insert(stat.pid);
            }
            !is_older && !stat.is_dead()
        });
        (all, completeness)
    }

    /// Kills the members: stops them until a look finds no other, then kills all.
    pub(crate) fn kill(&self, proc: &mut ProcFs, shell: Option<Pid>, since: StartTime) {
        let mut stopped = HashSet::new();
        for _ in 0..MOST_LOOKS {
            let (members, _) = self.members(proc, shell, since);
            let before = stopped.len();
            for member in members {
                if stopped.insert(member.id()) {
                    send_signal(proc, member.id(), Signal::STOP);
                }
            }
            if stopped.len() == before {
                break;
            }
        }
        for id in stopped {
            send_signal(proc, id, Signal::KILL);
        }
    }
}

/// Sends a signal to exactly this process, if it still exists.
pub(crate) fn send_signal(proc: &mut ProcFs, id: ProcessId, signal: Signal) {
    if let Ok(Some(process)) = Process::open_exact(proc, id) {
        let _ = process.signal(signal);
    }
}

/// Returns the time now, in the unit of start times.
pub(crate) fn start_time_now() -> StartTime {
    let time = clock_gettime(ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    StartTime(seconds * per_second + nanos * per_second / 1_000_000_000)
}
