//! Processes by handle, and what /proc says of them.

use std::path::Path;

use penfold_testkit::proc::{self, Handle, Identity};
use rustix::process::Signal;

use super::{DEADLINE, entries, wait_until};

/// A process that no other can be taken for.
#[derive(Debug)]
pub struct Process(Handle);

impl Process {
    /// Opens the process that has this pid now; none if there is none.
    pub fn find(pid: i32) -> Option<Process> {
        Process::open(proc::stat(pid)?.id)
    }

    /// Opens a process; none if it is gone.
    pub fn open(id: Identity) -> Option<Process> {
        Handle::open(id).unwrap().map(Process)
    }

    pub fn pid(&self) -> i32 {
        self.0.id.pid
    }

    pub fn id(&self) -> Identity {
        self.0.id
    }

    /// Sends a signal; one that is gone takes it, too.
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal).unwrap();
    }

    /// Whether its last thread has ended.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Waits until it has ended.
    #[track_caller]
    pub fn await_end(&self) {
        assert!(self.0.wait(Some(DEADLINE)), "process {} `{}` has not ended", self.id(), self.command_line());
    }

    /// The state letter of its main thread; none if it is gone.
    pub fn state(&self) -> Option<char> {
        proc::stat(self.pid()).filter(|stat| stat.id == self.id()).map(|stat| stat.state)
    }

    /// Its arguments with a space after each.
    pub fn command_line(&self) -> String {
        command_line(self.pid())
    }

    /// Stops it, and waits until it has stopped, or has ended before.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        wait_until("it has stopped", || matches!(self.state(), Some('T' | 'Z' | 'X') | None));
    }
}

/// The arguments of a process with a space after each.
pub fn command_line(pid: i32) -> String {
    let line = proc::read_proc_file(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// The children of a process, over all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in entries(Path::new(&format!("/proc/{pid}/task"))) {
        let children = proc::read_proc_file(&format!("{}/children", task.display())).unwrap_or_default();
        let children = String::from_utf8_lossy(&children);
        found.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    found
}

/// The pids below a process, parents first. Those of a moving tree may be missed.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid));
        next += 1;
    }
    found
}

/// SIGKILL to all of these in one instant, the oldest first in the list: none can act on the death of another.
#[track_caller]
pub fn kill_at_once(processes: &[&Process]) {
    if processes.len() > 1 {
        for process in processes {
            process.signal(Signal::STOP);
        }
        let are_stopped = || processes.iter().all(|process| matches!(process.state(), Some('T') | None));
        wait_until("all are stopped", are_stopped);
    }
    // The youngest first: the death of a parent wakes its child.
    for process in processes.iter().rev() {
        process.signal(Signal::KILL);
    }
    for process in processes {
        process.await_end();
    }
}
