//! Stops with a leader that its terminal has not stopped together with this process.

use std::os::fd::OwnedFd;

use penfold_process::{ProcFs, State};
use penfold_sys::fork;
use penfold_sys::signal::{self, SignalSet};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::Launcher;
use crate::wire::Request;

impl Launcher {
    /// Stops this process as the leader was stopped, so that who waits for it gets the terminal. Once continued, gives the
    /// terminal back to who had it, if it is this job's again, and continues the leader.
    pub(super) fn stop_as(&mut self, leader: i32) {
        let Some(terminal) = &self.settings.terminal else { return };
        // It may have been continued, together with this process, before this was heard.
        if !is_stopped(leader) {
            return;
        }
        let Ok(itself) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
        let had = holder(terminal, leader);
        // The init of a container cannot stop itself, and goes on at once.
        let _ = pidfd_send_signal(&itself, Signal::STOP);
        if let Some(had) = had {
            give_back(terminal, had);
        }
        self.pending.push_back(Request::Forward(Signal::CONT.as_raw()));
        self.say_pending();
    }
}

/// Whether this process is stopped.
fn is_stopped(pid: i32) -> bool {
    let stat = Pid::from_raw(pid).and_then(|pid| ProcFs::open().ok()?.stat(pid).ok()?);
    stat.is_some_and(|stat| stat.state == State::Stopped)
}

/// The process group that the terminal is to be given back to: the one in front, or that of the leader where the launcher is the
/// shell's, since the leader has stopped in the background.
fn holder(terminal: &OwnedFd, leader: i32) -> Option<Pid> {
    let launcher = tcgetpgrp(terminal).ok()?;
    let shell = getppid().and_then(|shell| fork::group_of(shell.as_raw_nonzero().get()));
    if shell == Some(launcher.as_raw_nonzero().get()) {
        return fork::group_of(leader).and_then(Pid::from_raw);
    }
    Some(launcher)
}

/// Makes a process group the terminal's, if that is now of this process.
fn give_back(terminal: &OwnedFd, group: Pid) {
    if !tcgetpgrp(terminal).is_ok_and(|launcher| launcher.as_raw_nonzero().get() == fork::group()) {
        return;
    }
    // Once it is no more the terminal's, this process would be stopped for it.
    let Ok(mask) = signal::block(&SignalSet::of([Signal::TTOU.as_raw()])) else { return };
    let _ = tcsetpgrp(terminal, group);
    let _ = signal::set_mask(&mask);
}
