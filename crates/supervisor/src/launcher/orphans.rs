//! Cleans up other sandboxes that lost all their processes, beside the launcher's own sandbox.

use std::os::fd::AsFd;
use std::time::Duration;

use penfold_state::{Registry, recovery};
use penfold_sys::{ForkSide, child, fork};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::exit::EXIT_TIMEOUT;
use super::{Launcher, SupervisorHandle};
use crate::nested::NestedSandboxes;
use crate::poll::poll_or_pause;

/// The time that members of other sandboxes may take to die.
const ORPHANS_PATIENCE: Duration = Duration::from_secs(10);

/// The cleanup of other sandboxes, once in the life of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Nobody has looked for orphaned sandboxes so far.
    Due,
    /// They were looked for. The child that ends them, if children of this process may become members.
    Begun(Option<Pid>),
}

impl Launcher {
    /// Ends orphaned sandboxes, beside this sandbox; only the first call does.
    ///
    /// The launcher calls it when the supervisor has nothing to do for the command: once the command has run for a while, or has ended.
    pub(super) fn sweep_orphans(&mut self) {
        if self.sweep == Sweep::Due {
            self.sweep = Sweep::Begun(self.fork_sweeper());
        }
    }

    /// Forks a process that ends orphaned sandboxes.
    ///
    /// The cleanup may take long, and the caller of this sandbox must not wait for it. Returns the pid if this process
    /// must reap it.
    fn fork_sweeper(&self) -> Option<Pid> {
        let opened;
        let registry = match &self.supervisor {
            SupervisorHandle::Direct { parts: Some(parts), .. } => {
                parts.kind.nested().map(NestedSandboxes::registry)
            }
            SupervisorHandle::Standby { .. } => {
                opened = Registry::open_existing(&self.settings.state_root).ok().flatten();
                opened.as_ref()
            }
            SupervisorHandle::Direct { parts: None, .. }
            | SupervisorHandle::Remote
            | SupervisorHandle::Refused(_) => None,
        };
        let registry = registry?;
        let orphans = recovery::find_orphans(registry, &self.id()).unwrap_or_default();
        if orphans.is_empty() {
            return None;
        }
        match fork().ok()? {
            ForkSide::Parent(pid) => {
                matches!(self.supervisor, SupervisorHandle::Direct { .. }).then_some(pid)
            }
            ForkSide::Child => {
                let _ = rustix::process::setsid();
                let _ = penfold_sys::descriptors::drop_inherited();
                // Above all, the lock of this sandbox is closed: the sandbox would count as supervised for the whole
                // cleanup.
                if penfold_sys::descriptors::keep_only(&[registry.as_fd()]).is_ok() {
                    recovery::sweep_orphans(registry, &orphans, ORPHANS_PATIENCE);
                }
                penfold_sys::fork::exit_now(0)
            }
        }
    }

    /// Kills the cleanup process before a takeover, in which all children of this process count as members. The next
    /// command continues the cleanup.
    pub(super) fn kill_sweeper(&mut self) {
        // The child has not been reaped, so its pid cannot be reused.
        if let Sweep::Begun(Some(pid)) = std::mem::replace(&mut self.sweep, Sweep::Begun(None))
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            let timeout = Timespec::try_from(EXIT_TIMEOUT).ok();
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll_or_pause(&mut fds, timeout.as_ref()));
            let _ = child::reap_child(pid);
        }
    }
}
