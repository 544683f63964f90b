//! The end of a sandbox whose supervisor was killed, by the process that forked it.

use std::ops::ControlFlow;
use std::time::Duration;

use penfold_process::ProcFs;
use penfold_sandbox::events::What;
use penfold_sys::child::Exit;
use penfold_sys::signal::{SignalFd, SignalSet};
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Leader, Level, Scope, Teardown, drive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::environment::CHILD;
use crate::exec;
use crate::held::Held;
use crate::outcome::{Outcome, Status};

/// Ends the sandbox: all children of this process are its members now. With `stay` it is looked after until nothing is
/// left, and `tell` is told once when that takes longer than the patience; else what is left is only named.
pub(crate) fn take_over(mut held: Held, stay: bool, mut tell: impl FnMut(&Outcome)) -> Outcome {
    penfold_sys::crash_point!("taking-over");
    let proc = match held.proc.take().map_or_else(ProcFs::open, Ok) {
        Ok(proc) => proc,
        Err(error) => return held.give_up(format!("cannot read /proc: {error}")),
    };
    let mut teardown = Teardown::new(proc, held.leaf.take(), Scope::Children);
    let noted = held.noted_leader();
    match noted {
        // What was noted is our init, whose end by our hand is the leader's.
        Some((pid, _)) if held.level == Level::Pidns => teardown.kept_by(pid),
        Some((pid, _)) => teardown.lead_by(Leader { pid, session: held.session_of(pid) }),
        None => {}
    }
    let exited = held.noted_exited();
    if let (Some(desk), Some((_, true))) = (&mut held.desk, noted) {
        desk.inherit();
        desk.believe_exit(exited);
        desk.happened([What::Stop { cause: Cause::Supervisor, grace_ms: None }]);
        exec::recall(&mut held);
    }
    if held.setup.spec.report.is_some() || held.desk.is_some() {
        teardown.want_details();
    }
    let mut resources = std::mem::take(&mut held.resources);
    let mut host = Takeover::new(held.ladder(), stay);
    host.told = Some(Box::new(|findings: &Findings| {
        let report = held.report(Cause::Supervisor, None, None, findings.clone());
        tell(&held.conclude(&report));
    }));
    let findings = drive(&mut teardown, Phase::Running, &mut host, &mut resources);
    drop(host);
    let exit = teardown.leader_exit().map(Status::from);
    let report = held.report(Cause::Supervisor, exit, None, findings);
    held.conclude(&report)
}

/// Is told once when the end takes longer than the patience.
type Told<'a> = Box<dyn FnMut(&Findings) + 'a>;

/// A host that wants everything killed at once.
pub(crate) struct Takeover<'a> {
    signals: Option<SignalFd>,
    ladder: Ladder,
    begun: bool,
    stay: bool,
    told: Option<Told<'a>>,
}

impl Takeover<'_> {
    pub(crate) fn new(ladder: Ladder, stay: bool) -> Takeover<'static> {
        // Without it the timeouts of the drive still bring it forward.
        let signals = SignalFd::open(&SignalSet::of([CHILD])).ok();
        Takeover { signals, ladder, begun: false, stay, told: None }
    }
}

impl Host for Takeover<'_> {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if !std::mem::replace(&mut self.begun, true) {
            return Some(Event::KillRequested);
        }
        let mut fds: Vec<PollFd<'_>> =
            self.signals.iter().map(|signals| PollFd::new(signals, PollFlags::IN)).collect();
        fds.extend(watch);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = poll(&mut fds, timeout.as_ref());
        if let Some(signals) = &self.signals {
            while let Ok(Some(_)) = signals.take() {}
        }
        None
    }

    fn ladder(&self) -> Ladder {
        self.ladder
    }

    fn stuck(&mut self, findings: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        if !self.stay {
            return ControlFlow::Break(());
        }
        if let Some(mut told) = self.told.take() {
            told(findings);
        }
        ControlFlow::Continue(())
    }
}
