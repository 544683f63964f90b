//! Follows a leader that stops without its launcher, such as a shell with a process group of its own that suspends
//! itself.

use std::os::fd::AsFd;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::{EventLoop, LeaderSource};
use crate::wire::{self, Answer};

impl EventLoop {
    /// Checks whether the leader was stopped or continued. In a pid namespace our init reports this, because the leader
    /// is not a child of this process.
    pub(super) fn follow_leader(&mut self) {
        if !self.can_follow() {
            return;
        }
        let (LeaderSource::Child(_), Some(leader)) = (&self.leader, &self.sandbox.leader) else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // The exit is left to the driver: these flags exclude WEXITED.
        let Ok(Some(change)) = waitid(WaitId::PidFd(leader.as_fd()), options) else { return };
        match change.stopping_signal() {
            Some(signal) => self.leader_stopped(signal),
            None => self.wake_launcher(),
        }
    }

    fn can_follow(&self) -> bool {
        self.sandbox.parts.setup.keys && self.launcher.is_some() && !self.sandbox.policy.is_ending()
    }

    /// Makes the launcher stop if the leader was stopped alone, so that the waiting shell gets the terminal, as without
    /// penfold. The launcher is continued when another process continues the leader.
    pub(super) fn leader_stopped(&mut self, signal: i32) {
        let Some(pid) = self.sandbox.leader_pid.filter(|_| self.can_follow()) else { return };
        let pid = pid.as_raw_nonzero().get();
        let in_other_group = penfold_sys::fork::group_of(pid) != Some(self.sandbox.parts.setup.group);
        // Otherwise the terminal has sent the signal to the group of both.
        if signal == Signal::STOP.as_raw() || in_other_group {
            self.suspended |=
                wire::offer_message(&self.sandbox.parts.setup.channel, &Answer::Suspended(pid)).is_ok();
        }
    }

    /// Continues a launcher that stopped together with the leader.
    pub(super) fn wake_launcher(&mut self) {
        if std::mem::take(&mut self.suspended)
            && let Some(launcher) = &self.launcher
        {
            let _ = rustix::process::pidfd_send_signal(launcher, Signal::CONT);
        }
    }
}
