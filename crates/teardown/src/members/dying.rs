//! Members that the leader did not leave behind, since they are ending by themselves.
//!
//! Who ends is still listed for a moment: a process that the leader has killed before its own end, or the init of a pid namespace. The
//! init of bubblewrap tells the leader how the command ended, and only then ends itself, or by the parent-death signal.

use std::io;
use std::time::{Duration, Instant};

use penfold_process::{Pid, Process, ProcessId, SchedulerState, Stat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Teardown;

/// The most members that are looked at. More are not left by an accident of time, and a look costs a third of an end.
const MOST: usize = 16;
/// The most members whose pid namespaces are looked at.
const MOST_NESTED: usize = 256;
/// The most time that an init may take to its end. It is runnable all the time, so only a busy host lets it wait.
const MOMENT: Duration = Duration::from_secs(1);
/// The interval of the looks at such an init.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

impl Teardown {
    /// Tells whether a member was ending before the first kill.
    pub(super) fn dies_alone(&self, id: ProcessId) -> bool {
        self.dying_alone.get(&id.pid) == Some(&id)
    }

    /// Notes which of the members that a search finds are ending by themselves; returns no strays.
    pub(super) fn note_dying_found(&mut self) -> io::Result<Vec<Pid>> {
        if self.leader_outlived {
            let members: Vec<Pid> = self.survey()?.seen().iter().map(|stat| stat.pid).collect();
            self.note_dying(&members);
        }
        Ok(Vec::new())
    }

    /// Notes which of these members are ending by themselves, before the first of them is killed.
    pub(super) fn note_dying(&mut self, members: &[Pid]) {
        let mut inits: Vec<ProcessId> = Vec::new();
        for &pid in members.iter().take(MOST) {
            // A member that cannot be read is killed as the others.
            let Ok(Some(stat)) = self.proc.stat(pid) else { continue };
            if stat.is_ending() {
                self.dying_alone.insert(pid, stat.id());
            } else if is_busy(&stat) && self.is_nested_init(pid) {
                inits.push(stat.id());
            }
        }
        let until = Instant::now() + MOMENT;
        for init in inits {
            if self.ends_by_itself(init, until) {
                self.dying_alone.insert(init.pid, init);
            }
        }
        // Only an init that is ending ends others with it, and the first members are those that were looked at.
        if members.iter().take(MOST).any(|pid| self.dying_alone.contains_key(pid)) {
            self.note_dying_with_init(members);
        }
    }

    /// Notes the members in a pid namespace whose init is ending: the kernel ends them with it.
    fn note_dying_with_init(&mut self, members: &[Pid]) {
        // How many pid namespaces know the process.
        let (mut nested, mut ending, mut living) = (Vec::new(), Vec::new(), Vec::new());
        for &pid in members.iter().take(MOST_NESTED) {
            let Ok(Some(status)) = self.proc.status(pid) else { continue };
            let Ok(Some(stat)) = self.proc.stat(pid) else { continue };
            let depth = status.namespace_pids.len();
            match status.namespace_pids.as_slice() {
                [_, .., last] if last.is_init() && stat.is_ending() => ending.push(depth),
                [_, .., last] if last.is_init() => living.push(depth),
                _ => nested.push((stat.id(), depth)),
            }
        }
        let Some(least) = ending.into_iter().min() else { return };
        // With a namespace that lives beside it, nothing tells to which of both a member belongs.
        if living.iter().all(|&depth| depth < least) {
            let ends = nested.into_iter().filter(|&(_, depth)| depth >= least);
            self.dying_alone.extend(ends.map(|(id, _)| (id.pid, id)));
        }
    }

    /// Waits for the end of an init as long as it is busy.
    fn ends_by_itself(&mut self, init: ProcessId, until: Instant) -> bool {
        let Ok(Some(process)) = Process::open_exact(&mut self.proc, init) else { return true };
        loop {
            match self.proc.stat(init.pid) {
                Ok(Some(stat)) if stat.id() == init && !stat.is_ending() => {
                    if !is_busy(&stat) || Instant::now() >= until {
                        return false;
                    }
                }
                Ok(_) => return true,
                Err(_) => return false,
            }
            let _ = poll(&mut [PollFd::from_borrowed_fd(process.pidfd(), PollFlags::IN)], Some(&LOOK));
        }
    }

    /// Tells whether a process is the init of a pid namespace below that of this process.
    fn is_nested_init(&mut self, pid: Pid) -> bool {
        let status = self.proc.status(pid).ok().flatten();
        status
            .is_some_and(|status| matches!(status.namespace_pids.as_slice(), [_, .., last] if last.is_init()))
    }
}

/// Tells whether a process runs, waits for a processor, or is within a system call that nothing interrupts.
fn is_busy(stat: &Stat) -> bool {
    matches!(stat.state, SchedulerState::Running | SchedulerState::DiskSleep) || stat.is_exiting()
}
