//! Ends a sandbox without any requests: kills all members at once.

use std::ops::ControlFlow;
use std::time::Duration;

use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, SignalSet};
use penfold_teardown::lifecycle::LifecycleEvent;
use penfold_teardown::{Findings, StopPolicy, TeardownHost};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::poll::poll_or_pause;
use crate::signals::CHILD;

/// A host that requests a kill at once.
pub(crate) struct ImmediateKill {
    signals: Option<SignalFd>,
    stop_policy: StopPolicy,
    begun: bool,
}

impl ImmediateKill {
    pub(crate) fn new(stop_policy: StopPolicy) -> ImmediateKill {
        // Without a signalfd the teardown still progresses by its timeouts.
        let signals = SignalFd::open(&SignalSet::of([CHILD])).ok();
        ImmediateKill { signals, stop_policy, begun: false }
    }
}

impl TeardownHost for ImmediateKill {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent> {
        if !std::mem::replace(&mut self.begun, true) {
            return Some(LifecycleEvent::KillRequested);
        }
        let mut fds: Vec<PollFd<'_>> =
            self.signals.iter().map(|signals| PollFd::new(signals, PollFlags::IN)).collect();
        fds.extend(watch);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = poll_or_pause(&mut fds, timeout.as_ref());
        if let Some(signals) = &self.signals {
            while let Ok(Some(_)) = signals.take() {}
        }
        None
    }

    fn stop_policy(&self) -> StopPolicy {
        self.stop_policy
    }

    fn stuck(&mut self, _: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}
