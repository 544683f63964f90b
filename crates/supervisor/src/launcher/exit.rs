//! Ends the launcher, with its sandbox or before.

use std::io;
use std::time::{Duration, Instant};

use penfold_state::{REMOVAL_LIMIT, Registry};
use penfold_sys::child::{self, PeekResult};
use penfold_teardown::{Cause, Resource, Survivor};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{FollowResult, Launcher, LauncherError, RETRY_DELAY, SupervisorHandle};
use crate::outcome::{ExitStatus, Outcome, Report, StartFailure};
use crate::poll::poll_or_pause;
use crate::wire::{self, Answer, ReceiveResult, Request};

/// The time that supervisor and standby may take to exit after the outcome.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Tells whether the command succeeded. Its changes of the terminal modes are then intended, as with stty(1), and stay.
pub(super) fn command_succeeded(outcome: &Outcome) -> bool {
    let Report { cause, exit, .. } = &outcome.report;
    *cause == Cause::Exit && *exit == Some(ExitStatus::Code(0))
}

/// Returns the processes that are not the command's any more, or outlive the sandbox: survivors, and what was spared.
pub(super) fn still_living(outcome: &Outcome) -> Vec<i32> {
    let findings = &outcome.report.findings;
    let survivors = findings.survivors.iter().filter_map(|survivor| match survivor {
        Survivor::Process { pid, .. } => Some(*pid),
        Survivor::Resource { .. } | Survivor::Unknown { .. } => None,
    });
    survivors.chain(findings.spared.iter().map(|spared| spared.pid)).collect()
}

impl Launcher {
    /// Removes the record of a sandbox whose id was never printed, unless something of the sandbox is left.
    pub(super) fn forget(&self) {
        if !self.settings.has_former
            && let Ok(Some(registry)) = Registry::open_existing(&self.settings.state_root)
            && let Ok(Some(mut record)) = registry.take(&self.id())
            && record.files().has_ended()
        {
            let _ = record.release(false);
        }
    }

    /// Ends a sandbox whose id cannot be printed.
    ///
    /// # Errors
    /// When the end was not observed.
    pub fn abandon(mut self, reason: &str) -> Result<Outcome, LauncherError> {
        let mut outcome = self.end(reason)?;
        outcome.report.failure.get_or_insert_with(|| StartFailure::Other(reason.to_owned()));
        self.forget();
        Ok(outcome)
    }

    /// Kills the sandbox and waits for its end without poll(2), which may be the failing call.
    fn end(&mut self, reason: &str) -> Result<Outcome, LauncherError> {
        let unseen = || io::Error::other(reason.to_owned());
        if matches!(self.supervisor, SupervisorHandle::Remote) {
            return Err(self.wait_error(unseen()));
        }
        let until = Instant::now() + self.settings.patience + EXIT_TIMEOUT;
        let mut kill_sent = false;
        loop {
            kill_sent = kill_sent || wire::offer_message(&self.channel, &Request::Kill).is_ok();
            match wire::receive_message::<Answer>(&self.channel) {
                Ok(ReceiveResult::Message(Answer::Outcome(outcome))) => {
                    return Ok(self.wait_for_exit(*outcome));
                }
                Ok(ReceiveResult::Message(_)) => continue,
                Ok(ReceiveResult::End) => return self.supervisor_died(),
                Ok(ReceiveResult::Nothing) | Err(_) => {}
            }
            if Instant::now() > until {
                return Err(self.wait_error(unseen()));
            }
            let _ = rustix::thread::nanosleep(&RETRY_DELAY);
        }
    }

    /// Ends a sandbox that cannot be waited for.
    pub(super) fn end_broken(&mut self, reason: String) -> Result<FollowResult, LauncherError> {
        let mut outcome = self.end(&reason)?;
        outcome.report.failure.get_or_insert(StartFailure::Other(reason));
        Ok(FollowResult::Over(Box::new(outcome)))
    }

    /// Reaps all ended children. As the init of a container, this process adopts orphans and is the only one to reap
    /// them.
    pub(super) fn reap() {
        while let Ok(PeekResult::Ended(pid, _)) = child::peek_child() {
            let _ = child::reap_child(pid);
        }
    }

    /// Waits until supervisor and standby have exited: a verified end includes them.
    pub(super) fn wait_for_exit(&self, mut outcome: Outcome) -> Outcome {
        if let SupervisorHandle::Direct { pid, pidfd, .. }
        | SupervisorHandle::Standby { pid, pidfd: Some(pidfd) } = &self.supervisor
            && outcome.report.findings.verified
        {
            let timeout = Timespec::try_from(EXIT_TIMEOUT).ok();
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll_or_pause(&mut fds, timeout.as_ref()));
            let _ = child::reap_child(*pid);
            // If the standby died first, the supervisor was reparented to this process. Its pid cannot be reused until
            // it is reaped here.
            if let Some(teller) = Pid::from_raw(outcome.teller).filter(|teller| teller != pid)
                && matches!(child::reap_child(teller), Ok(None))
                && let Ok(pidfd) = pidfd_open(teller, PidfdFlags::empty())
            {
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                let _ = rustix::io::retry_on_intr(|| poll_or_pause(&mut fds, timeout.as_ref()));
                let _ = child::reap_child(teller);
            }
            Self::reap();
            self.wait_for_scope(&mut outcome);
        }
        outcome
    }

    /// Waits until the scope of the sandbox is removed: a verified end includes it. The supervisor could not wait, since it was in
    /// the scope.
    fn wait_for_scope(&self, outcome: &mut Outcome) {
        let Some(scope) = &self.settings.scope else { return };
        if let Err(left) = scope.wait_gone(Instant::now() + REMOVAL_LIMIT) {
            let survivor = Survivor::Resource { what: scope.describe(), reason: left.to_string() };
            outcome.report.findings.survivors.push(survivor);
            outcome.report.findings.verified = false;
        }
    }
}
