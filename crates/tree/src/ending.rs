//! The end of a tree in the calling thread, which another thread can turn into a kill.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::Duration;

use penfold_sys::child::Exit;
use penfold_teardown::lifecycle::{LifecycleEvent, Phase};
use penfold_teardown::{Findings, StopPolicy, Teardown, TeardownHost, drive_teardown};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Ends all members, verifies, and gives up when the patience is over.
///
/// A grace of zero is a kill. Once `hurry` is readable, the rest of the grace is over.
pub(crate) fn end_members(teardown: &mut Teardown, stop_policy: StopPolicy, hurry: &OwnedFd) -> Findings {
    let mut host = Ending { stop_policy, hurry, asked: false, hurried: false };
    drive_teardown(teardown, Phase::Running, &mut host, &mut [])
}

struct Ending<'a> {
    stop_policy: StopPolicy,
    hurry: &'a OwnedFd,
    asked: bool,
    hurried: bool,
}

impl TeardownHost for Ending<'_> {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent> {
        if !self.asked {
            self.asked = true;
            let now = self.stop_policy.grace.is_zero();
            return Some(if now { LifecycleEvent::KillRequested } else { LifecycleEvent::StopRequested });
        }
        let mut watch: Vec<PollFd<'_>> = watch;
        if !self.hurried {
            watch.push(PollFd::new(self.hurry, PollFlags::IN));
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = poll(&mut watch, timeout.as_ref());
        let is_hurry = !self.hurried && watch.last().is_some_and(|fd| !fd.revents().is_empty());
        self.hurried |= is_hurry;
        is_hurry.then_some(LifecycleEvent::KillRequested)
    }

    fn stop_policy(&self) -> StopPolicy {
        self.stop_policy
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
