//! The end of members in the calling thread, for callers that have no supervisor.

use std::ops::ControlFlow;
use std::time::Duration;

use penfold_sys::child::Exit;
use rustix::event::{PollFd, Timespec};

use crate::drive::{StopPolicy, TeardownHost, drive_teardown};
use crate::lifecycle::{LifecycleEvent, Phase};
use crate::members::Teardown;
use crate::report::Findings;
use crate::resource::Resource;

/// Ends the members synchronously, then releases the resources.
///
/// The function asks first if the stop policy has a grace, and gives up when the patience is over.
///
/// With [`MemberScope::Host`](crate::MemberScope::Host), the findings are those of the search: what no look could know as a member is not looked for. Such is a daemon
/// that had lost its parent before the first look, where the selector names a process.
pub fn end_members(
    teardown: &mut Teardown,
    stop_policy: &StopPolicy,
    resources: &mut [Box<dyn Resource>],
) -> Findings {
    drive_teardown(
        teardown,
        Phase::Running,
        &mut BlockingHost { stop_policy: *stop_policy, asked: false },
        resources,
    )
}

/// A host that requests the end at once and gives up when a member is stuck.
struct BlockingHost {
    stop_policy: StopPolicy,
    asked: bool,
}

impl TeardownHost for BlockingHost {
    fn wait(&mut self, mut watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent> {
        if !self.asked {
            self.asked = true;
            let now = self.stop_policy.grace.is_zero();
            return Some(if now { LifecycleEvent::KillRequested } else { LifecycleEvent::StopRequested });
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = rustix::event::poll(&mut watch, timeout.as_ref());
        None
    }

    fn stop_policy(&self) -> StopPolicy {
        self.stop_policy
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
