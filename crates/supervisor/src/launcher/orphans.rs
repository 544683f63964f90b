//! Sandboxes of others that lost all their processes: the launcher has them cleaned up beside its own.

use std::os::fd::AsFd;
use std::time::Duration;

use penfold_state::{Nested, Registry, recovery};
use penfold_sys::{Forked, child, fork};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::exit::EXIT_TIMEOUT;
use super::{Launcher, SupervisorHandle};
use crate::poll::poll;

/// How long the leftovers of others may take to die.
const ORPHANS_PATIENCE: Duration = Duration::from_secs(10);

impl Launcher {
    /// Ends, beside this sandbox, what was left by others that nobody looks after.
    ///
    /// In a process of its own: it may take a while, and who waits for this sandbox must not wait for that. Gives that
    /// process where nobody else reaps it.
    pub(super) fn look_for_orphans(&self) -> Option<Pid> {
        let opened;
        let registry = match &self.supervisor {
            SupervisorHandle::Direct { prepared: Some(prepared), .. } => {
                prepared.nested.as_ref().map(Nested::registry)
            }
            SupervisorHandle::Standby { .. } => {
                opened = Registry::open_existing(&self.settings.state_root).ok().flatten();
                opened.as_ref()
            }
            SupervisorHandle::Direct { prepared: None, .. }
            | SupervisorHandle::Remote
            | SupervisorHandle::Refused(_) => None,
        };
        let registry = registry?;
        if !recovery::has_orphans(registry, &self.id()).unwrap_or(false) {
            return None;
        }
        match fork().ok()? {
            Forked::Parent(pid) => matches!(self.supervisor, SupervisorHandle::Direct { .. }).then_some(pid),
            Forked::Child => {
                let _ = rustix::process::setsid();
                let _ = penfold_sys::descriptors::drop_inherited();
                // Above all not the lock of this sandbox: it would count as looked after for as long as this takes.
                if penfold_sys::descriptors::keep_only(&[registry.as_fd()]).is_ok() {
                    let _ = recovery::sweep(registry, ORPHANS_PATIENCE);
                }
                penfold_sys::fork::exit_now(0)
            }
        }
    }

    /// Ends who ends what others have left: to who takes over, all children of this process are members. The rest of it
    /// is for the next command.
    pub(super) fn dismiss_sweeper(&mut self) {
        // Not reaped so far, so that the number is its own.
        if let Some(pid) = self.sweeper.take()
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            let timeout = Timespec::try_from(EXIT_TIMEOUT).ok();
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
            let _ = child::reap(pid);
        }
    }
}
