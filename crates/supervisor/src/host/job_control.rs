//! A leader that stops without its launcher: a shell in a process group of its own that suspends itself.

use std::os::fd::AsFd;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::{Host, Leader};
use crate::wire::{self, Answer};

impl Host {
    /// Hears of a leader that was stopped or continued. Below our init in a pid namespace it is not a child of this process:
    /// init tells of it.
    pub(super) fn follow_leader(&mut self) {
        if !self.can_follow() {
            return;
        }
        let (Leader::Child(_), Some(leader)) = (&self.leader, &self.sandbox.leader) else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // Its end is left to the drive.
        let Ok(Some(change)) = waitid(WaitId::PidFd(leader.as_fd()), options) else { return };
        match change.stopping_signal() {
            Some(signal) => self.leader_stopped(signal),
            None => self.wake_launcher(),
        }
    }

    fn can_follow(&self) -> bool {
        self.sandbox.prepared.setup.keys && self.launcher.is_some() && !self.sandbox.policy.is_ending()
    }

    /// Has the launcher stop where the leader was stopped and the terminal has not stopped both: who waits for the launcher gets
    /// the terminal, as without penfold. Has it go on with a leader that somebody else continues.
    pub(super) fn leader_stopped(&mut self, signal: i32) {
        let Some(pid) = self.sandbox.leader_pid.filter(|_| self.can_follow()) else { return };
        let pid = pid.as_raw_nonzero().get();
        let apart = penfold_sys::fork::group_of(pid) != Some(self.sandbox.prepared.setup.group);
        // Else the terminal has sent it to the group of both.
        if signal == Signal::STOP.as_raw() || apart {
            self.suspended |=
                wire::offer(&self.sandbox.prepared.setup.channel, &Answer::Suspended(pid)).is_ok();
        }
    }

    /// Continues a launcher that has stopped as the leader did.
    pub(super) fn wake_launcher(&mut self) {
        if std::mem::take(&mut self.suspended)
            && let Some(launcher) = &self.launcher
        {
            let _ = rustix::process::pidfd_send_signal(launcher, Signal::CONT);
        }
    }
}
