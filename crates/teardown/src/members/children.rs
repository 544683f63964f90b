//! The children of this process, also where `/proc` does not list them.

use std::io;
use std::os::fd::AsFd as _;

use penfold_process::{Pid, ProcessId};
use penfold_sys::child;
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::{MemberScope, Teardown};

/// This many pids above our own are tried first: most children are younger than their parent.
const NEAR: i32 = 1 << 16;
/// The highest pid that the kernel assigns, `PID_MAX_LIMIT`.
const HIGHEST: i32 = 1 << 22;

impl Teardown {
    /// Returns the children of this process, alive or unreaped, without those that were spared or are outside.
    ///
    /// Without a `/proc`, each pid is tried with waitid(2). Each call finds some of the children, as long as there are
    /// any.
    pub(super) fn children(&mut self) -> io::Result<Vec<Pid>> {
        let own = rustix::process::getpid();
        if self.proc.is_blind() {
            let own = own.as_raw_pid();
            let near = child::children_among(own..=own.saturating_add(NEAR).min(HIGHEST));
            return Ok(if near.is_empty() { child::children_among(1..=HIGHEST) } else { near });
        }
        let mut children = Vec::new();
        self.proc.children(own, &mut children)?;
        if self.has_spared() {
            children.retain(|&pid| !self.is_spared_pid(pid));
            self.without_outside(&mut children)?;
        }
        Ok(children)
    }

    /// Looks for members on the whole host once, also where the search looks only below this process. What is found stays a member.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn look_over_host(&mut self) -> io::Result<()> {
        let MemberScope::Host(search) = &mut self.scope else { return Ok(()) };
        search.find_on_host(&mut self.proc)
    }

    /// Reaps the members that have ended as children of this process, but for the leader, which its starter waits for.
    ///
    /// `also` are members that no look has found alive.
    ///
    /// For a [`MemberScope::Host`] in a subreaper that has other children: these are not touched.
    ///
    /// # Errors
    /// When a member cannot be looked at. Members that could be reaped have been.
    pub fn reap_adopted(&mut self, also: &[ProcessId]) -> io::Result<()> {
        let MemberScope::Host(search) = &self.scope else { return Ok(()) };
        let own = rustix::process::getpid();
        let leader = self.leader.map(|leader| leader.pid);
        let ids: Vec<ProcessId> =
            search.seen().chain(also.iter().copied()).filter(|id| Some(id.pid) != leader).collect();
        let mut failed = None;
        for id in ids {
            match self.proc.stat(id.pid) {
                Ok(Some(stat)) if stat.id() == id && stat.parent == Some(own) && stat.is_dead() => {
                    failed = self.reap_one(id).err().or(failed);
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn reap_one(&mut self, id: ProcessId) -> io::Result<()> {
        let Ok(pidfd) = pidfd_open(id.pid, PidfdFlags::empty()) else { return Ok(()) };
        // Other code of this process may have reaped it just now. Else the pidfd is that of the member.
        if self.proc.stat(id.pid)?.is_some_and(|stat| stat.id() == id) {
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        Ok(())
    }

    /// Sends the polite signal to the children of this process once each, if `/proc` is not available.
    ///
    /// Nothing else is known of the members then. Members further below are reparented to this process when their
    /// parents end. The children are unreaped, so their pids cannot be reused.
    #[expect(clippy::disallowed_methods, reason = "an unreaped child keeps its pid")]
    pub(super) fn ask_unseen(&mut self, signal: Signal) -> io::Result<()> {
        if !self.proc.is_blind() || !matches!(self.scope, MemberScope::Children) {
            return Ok(());
        }
        for pid in self.children()? {
            if self.asked_unseen.insert(pid) {
                // A child that refuses the signal is left to the kill.
                let _ = rustix::process::kill_process(pid, signal);
                let _ = rustix::process::kill_process(pid, Signal::CONT);
            }
        }
        Ok(())
    }
}
