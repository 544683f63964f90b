//! Stops the launcher with a leader that was stopped without it.

use std::os::fd::OwnedFd;

use penfold_process::{ProcFs, SchedulerState};
use penfold_sys::fork;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal};
use rustix::termios::tcgetpgrp;

use super::Launcher;
use crate::terminal::of_caller::set_foreground_group;
use crate::wire::Request;

impl Launcher {
    /// Stops this process as the leader was stopped, so that the waiting shell gets the terminal.
    ///
    /// Once continued, restores the terminal's foreground group if this job is in the foreground again, and continues
    /// the leader.
    pub(super) fn stop_with(&mut self, leader: i32) {
        let Some(terminal) = &self.settings.terminal else { return };
        // The leader may have been continued, together with this process, before the message was read.
        if !is_stopped(leader) {
            return;
        }
        let Ok(itself) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
        let group = group_to_restore(terminal, leader);
        // For the init of a container, SIGSTOP from its own namespace has no effect, and this continues at once.
        let _ = pidfd_send_signal(&itself, Signal::STOP);
        if let Some(group) = group {
            set_foreground(terminal, group);
        }
        self.pending.push_back(Request::Forward(Signal::CONT.as_raw()));
        self.send_pending();
    }
}

/// Tells whether this process is stopped.
fn is_stopped(pid: i32) -> bool {
    let stat = Pid::from_raw(pid).and_then(|pid| ProcFs::open().ok()?.stat(pid).ok()?);
    stat.is_some_and(|stat| stat.state == SchedulerState::Stopped)
}

/// Returns the process group to which the terminal is given back: the foreground group, or the leader's group if the
/// shell is in the foreground. In the latter case the leader stopped in the background.
fn group_to_restore(terminal: &OwnedFd, leader: i32) -> Option<Pid> {
    let foreground = tcgetpgrp(terminal).ok()?;
    let shell = getppid().and_then(|shell| fork::group_of(shell.as_raw_nonzero().get()));
    if shell == Some(foreground.as_raw_nonzero().get()) {
        return fork::group_of(leader).and_then(Pid::from_raw);
    }
    Some(foreground)
}

/// Makes `group` the foreground group of the terminal, if the foreground group is the one of this process.
fn set_foreground(terminal: &OwnedFd, group: Pid) {
    if tcgetpgrp(terminal).is_ok_and(|foreground| foreground.as_raw_nonzero().get() == fork::own_group()) {
        let _ = set_foreground_group(terminal, group);
    }
}
