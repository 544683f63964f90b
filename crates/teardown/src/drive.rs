//! The event loop between the table of [`lifecycle`](crate::lifecycle) and the members.

mod ask;
mod due;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_process::Stat;
use penfold_sys::child::Exit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::thread::nanosleep;

use self::due::{DriveDeadlines, LOOK_LAST};
use crate::lifecycle::{Action, LifecycleEvent, Phase, step_lifecycle};
use crate::members::Teardown;
use crate::report::{Findings, RmdirBusy, SPARE, Survivor, TeardownStep, whole_micros};
use crate::resource::{Resource, release_resources};

/// The policy by which a sandbox is ended: signal, grace and patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPolicy {
    /// The polite signal.
    pub signal: Signal,
    /// A process group to which its terminal sent SIGINT. Its members get the polite signal only if they ignore SIGINT.
    pub spared_group: Option<i32>,
    /// The time that members have to end after the polite signal.
    pub grace: Duration,
    /// The time that a kill may take until the survivors are reported.
    pub patience: Duration,
}

impl Default for StopPolicy {
    fn default() -> StopPolicy {
        StopPolicy {
            signal: Signal::TERM,
            spared_group: None,
            grace: Duration::from_secs(10),
            patience: Duration::from_secs(10),
        }
    }
}

impl StopPolicy {
    /// Sets the grace that a client requests. Once members have been asked (`asked`), the grace can only become
    /// shorter.
    pub fn give(&mut self, grace: Duration, asked: bool) {
        self.grace = if asked { self.grace.min(grace) } else { grace };
    }

    /// Sets the patience that a client requests. During a teardown (`asked`), the patience can only become shorter.
    pub fn report_within(&mut self, patience: Duration, asked: bool) {
        self.patience = if asked { self.patience.min(patience) } else { patience };
    }
}

/// The time that members have to end by themselves after the leader's own end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Linger {
    /// None: they are killed at once.
    #[default]
    Never,
    /// This time. Those that are left then count as left behind, and are killed.
    For(Duration),
    /// As long as they want, unless an end is requested.
    Freely,
}

/// The process in which the loop runs, as the loop sees it.
pub trait TeardownHost {
    /// Waits until a child has ended, one of `watch` is ready, a client requests something, or `timeout` has passed.
    ///
    /// Returns the request. Without a timeout nothing is due.
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<LifecycleEvent>;

    /// Returns the policy for the end, which may change with each request.
    fn stop_policy(&self) -> StopPolicy;

    /// Called when the kernel has killed the leader because the sandbox had no memory left. With `at_limit`, the limit of
    /// the cgroup that counts the memory of the leaf was reached, otherwise one above or the memory of the host.
    fn out_of_memory(&mut self, _at_limit: bool) {}

    /// Called when the leader has ended, with its exit if it was reaped here. Whatever happens later was not the cause.
    ///
    /// Returns the event for the remaining members: they are killed unless a stop is requested.
    fn leader_ended(&mut self, _exit: Option<Exit>) -> LifecycleEvent {
        LifecycleEvent::LeaderExited
    }

    /// Returns the time that members have to end by themselves after the leader's own end.
    fn linger(&self) -> Linger {
        Linger::default()
    }

    /// Tells whether [`TeardownHost::describe`] needs the members.
    fn describes(&self) -> bool {
        false
    }

    /// Called once with the members before the first of them is asked or killed, if [`TeardownHost::describes`].
    fn describe(&mut self, _members: &[Stat]) {}

    /// Called with the survivors when the patience is over, and with the leader's exit if it has ended.
    ///
    /// `Break` gives up; otherwise the loop continues to kill the survivors.
    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()>;
}

/// The longest delay between looks while a member is stuck.
const LOOK_STUCK: Duration = Duration::from_secs(10);

const KILLED: Exit = Exit::Signal(Signal::KILL.as_raw());

/// The most processes that are named as found in a leaf that could not be removed.
const BUSY_PIDS: usize = 16;
/// After this many deaths in one look more are expected at once, and the loop pauses for [`SETTLE_TIMEOUT`].
const MANY: usize = 16;
const SETTLE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000 };

/// Drives a sandbox from `phase` until nothing is left of it, or the host gives up.
///
/// Once no member is left, the resources are released in reverse order.
pub fn drive_teardown(
    teardown: &mut Teardown,
    phase: Phase,
    host: &mut dyn TeardownHost,
    resources: &mut [Box<dyn Resource>],
) -> Findings {
    Drive {
        teardown,
        host,
        phase,
        findings: Findings::default(),
        begun: None,
        busy_since: None,
        due: DriveDeadlines::default(),
        leader_ended: false,
        signalled: false,
        described: false,
    }
    .run(resources)
}

struct Drive<'a> {
    teardown: &'a mut Teardown,
    host: &'a mut dyn TeardownHost,
    phase: Phase,
    findings: Findings,
    begun: Option<Instant>,
    /// When the kernel first refused to remove the leaf.
    busy_since: Option<Instant>,
    due: DriveDeadlines,
    leader_ended: bool,
    /// Whether members were sent the polite signal.
    signalled: bool,
    /// Whether the host had its look at the members.
    described: bool,
}

impl Drive<'_> {
    fn run(mut self, resources: &mut [Box<dyn Resource>]) -> Findings {
        self.leader_ended = self.teardown.has_leader_ended();
        let mut look_now = true;
        loop {
            let batch = self.teardown.reap().unwrap_or(0);
            let reaped = batch > 0;
            let ended = self.teardown.drop_ended().unwrap_or(false);
            let mut event = None;
            if !self.leader_ended && self.teardown.has_leader_ended() {
                // While starting, the host may know more than the exit: the reason why the leader could not start.
                if self.phase == Phase::Starting {
                    event = self.host.wait(Vec::new(), Some(Duration::ZERO));
                }
                if event.is_none() || self.phase != Phase::Starting {
                    event = Some(LifecycleEvent::LeaderExited);
                }
            } else if (self.begun.is_some() || self.phase == Phase::Lingering)
                && (reaped || ended || look_now)
            {
                event = self.empty().then_some(LifecycleEvent::Unpopulated);
            }
            look_now = false;
            let event = event.or_else(|| self.due.event());
            if batch >= MANY && event.is_none() && self.begun.is_some() {
                // Each waitid call passes over all living children. With many children, few looks that find many are
                // better.
                let _ = nanosleep(&SETTLE_TIMEOUT);
                continue;
            }
            let event = event.or_else(|| {
                let event = self.wait();
                look_now = event.is_none();
                event
            });
            let Some(mut event) = event else { continue };
            if event == LifecycleEvent::LeaderExited {
                event = self.lead_no_more();
                look_now = true;
            }
            if matches!(event, LifecycleEvent::StopRequested | LifecycleEvent::KillRequested) {
                self.hurry();
            }
            let (next, action) = step_lifecycle(self.phase, event);
            self.phase = next;
            match action {
                Action::Nothing => {}
                Action::Linger | Action::Ask | Action::Kill => {
                    self.act(action);
                    look_now = true;
                }
                Action::Report => {
                    let findings = self.stuck();
                    let leader = self.teardown.leader_exit();
                    if self.host.stuck(&findings, leader).is_break() {
                        return findings;
                    }
                }
                Action::Release => return self.release(resources),
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Linger => self.linger(),
            Action::Ask => self.ask(),
            _ => self.kill(),
        }
    }

    /// Handles the end of the leader, and returns the event that follows.
    fn lead_no_more(&mut self) -> LifecycleEvent {
        self.leader_ended = true;
        if self.phase == Phase::Running {
            self.teardown.outlived();
        }
        let exit = self.teardown.leader_exit();
        if exit == Some(KILLED) {
            let shortages = self.teardown.shortages();
            if shortages.kills > 0 {
                self.host.out_of_memory(shortages.at_limit > 0);
            }
        }
        match self.host.leader_ended(exit) {
            LifecycleEvent::LeaderExited
                if self.phase == Phase::Running && self.host.linger() != Linger::Never =>
            {
                LifecycleEvent::LeaderLeft
            }
            event => event,
        }
    }

    fn wait(&mut self) -> Option<LifecycleEvent> {
        if self.phase == Phase::Running {
            self.teardown.make_ready();
        }
        let timeout = self.due.next().map(|at| at.saturating_duration_since(Instant::now()));
        let mut watch: Vec<PollFd<'_>> = Vec::new();
        if self.begun.is_some() {
            watch.extend(self.teardown.watch().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        } else if self.phase == Phase::Lingering {
            // The last member may be nobody's child here.
            watch.extend(self.teardown.leaf_events().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::PRI)));
        }
        self.host.wait(watch, timeout)
    }

    /// Verifies that nothing is left and removes the leaf. The kernel refuses the removal while the leaf has members.
    fn empty(&mut self) -> bool {
        let now = Instant::now();
        // Init must stay until it has reported how the leader ended.
        if self.leader_ended
            && let Err(error) = self.teardown.dismiss_init()
        {
            self.note_error("verify", &error);
        }
        match self.teardown.is_empty() {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.note_error("verify", &error);
                return false;
            }
        }
        let seen = now.elapsed();
        let leaf = self.teardown.leaf_path().map(|path| format!("release cgroup {}", path.display()));
        match self.teardown.remove_leaf() {
            Ok(true) => {
                self.note("verify", now, seen);
                if let Some(what) = leaf {
                    self.note(&what, now + seen, now.elapsed().saturating_sub(seen));
                }
                true
            }
            Ok(false) => {
                self.note_busy();
                false
            }
            Err(error) => {
                self.note_error(&leaf.unwrap_or_default(), &error);
                false
            }
        }
    }

    /// Notes that the kernel refused to remove the leaf, and who is inside now.
    fn note_busy(&mut self) {
        let Some(path) = self.teardown.leaf_path().map(Path::to_owned) else { return };
        self.busy_since.get_or_insert_with(Instant::now);
        let busy = self.findings.busy.get_or_insert(RmdirBusy {
            path,
            errno: Errno::BUSY.raw_os_error(),
            pids: Vec::new(),
            tries: 0,
            took_us: 0,
        });
        busy.tries = busy.tries.saturating_add(1);
        for pid in self.teardown.inside_leaf() {
            let pid = pid.as_raw_nonzero().get();
            if busy.pids.len() < BUSY_PIDS && !busy.pids.contains(&pid) {
                busy.pids.push(pid);
            }
        }
    }

    /// Adds a completed step to the findings.
    fn note(&mut self, what: &str, at: Instant, took: Duration) {
        let begun = *self.begun.get_or_insert(at);
        let at_us = whole_micros(at.saturating_duration_since(begun));
        self.findings.steps.push(TeardownStep {
            what: what.to_owned(),
            at_us,
            took_us: whole_micros(took),
            error: None,
        });
    }

    /// Spares the members that match a rule, before they are asked or killed.
    fn spare(&mut self) {
        match self.teardown.decide_spared() {
            Ok(reasons) => {
                for reason in reasons {
                    self.note_error(SPARE, &reason);
                }
            }
            Err(error) => self.note_error(SPARE, &error),
        }
    }

    fn leaf_name(&self) -> String {
        self.teardown
            .leaf_path()
            .map_or_else(|| "leaf".to_owned(), |path| format!("cgroup {}", path.display()))
    }

    /// Applies the times of a repeated request: a deadline can come earlier, never later.
    fn hurry(&mut self) {
        let sooner = |due: &mut Option<Instant>, wanted: Duration| {
            if let Some(at) = due {
                *at = Instant::now().checked_add(wanted).map_or(*at, |wanted| wanted.min(*at));
            }
        };
        let StopPolicy { grace, patience, .. } = self.host.stop_policy();
        sooner(&mut self.due.grace, grace);
        sooner(&mut self.due.patience, patience);
    }

    fn kill(&mut self) {
        let first = self.due.patience.is_none() && self.phase == Phase::Killing;
        if first {
            self.due.grace = None;
            self.due.patience = Instant::now().checked_add(self.host.stop_policy().patience);
        }
        self.spare();
        self.describe();
        // Usually the leader was alone, and there is nothing to kill.
        if self.begun.is_none() && self.was_alone() {
            // If the kernel still holds the leaf, the next look tries again.
            self.due.look_soon();
            return;
        }
        self.timed(first, "kill", Teardown::kill);
        penfold_sys::crash_point!("killed");
        let may_be_more = self.teardown.let_die();
        if first && may_be_more {
            self.due.look_now();
        } else if first {
            self.due.look_soon();
        } else {
            self.due.look_later(if self.phase == Phase::Stuck { LOOK_STUCK } else { LOOK_LAST });
        }
    }

    /// Tells whether no member is left, and ends our init then.
    fn was_alone(&mut self) -> bool {
        let now = Instant::now();
        let was_alone = self.leader_ended && self.teardown.dismiss_idle_init().unwrap_or(false)
            || self.teardown.is_empty().unwrap_or(false);
        if was_alone {
            self.begun = Some(now);
        }
        was_alone
    }

    /// Acts upon the members and notes the step: the first time, and when the act fails.
    fn timed(&mut self, note: bool, what: &str, act: impl FnOnce(&mut Teardown) -> std::io::Result<()>) {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        match act(self.teardown) {
            Ok(()) if note => self.note(what, now, now.elapsed()),
            Ok(()) => {}
            Err(error) => self.note_error(what, &error),
        }
    }

    /// Notes an error once, however often it occurs.
    fn note_error(&mut self, what: &str, error: &dyn std::fmt::Display) {
        let error = Some(error.to_string());
        if self.findings.steps.iter().any(|step| step.what == what && step.error == error) {
            return;
        }
        let at_us = self.begun.map_or(0, |begun| whole_micros(begun.elapsed()));
        self.findings.steps.push(TeardownStep { what: what.to_owned(), at_us, took_us: 0, error });
    }

    fn stuck(&mut self) -> Findings {
        let mut findings = self.findings.clone();
        findings.survivors = self.teardown.survivors().unwrap_or_else(|error| {
            vec![Survivor::Unknown { reason: format!("cannot look for survivors: {error}") }]
        });
        if findings.survivors.is_empty() {
            let reason = match findings.steps.iter().rev().find_map(|step| step.error.clone()) {
                Some(error) => error,
                None => "it is still populated by processes that cannot be seen".to_owned(),
            };
            findings.survivors.push(Survivor::Resource { what: self.leaf_name(), reason });
        }
        self.finish(findings)
    }

    fn release(mut self, resources: &mut [Box<dyn Resource>]) -> Findings {
        for reason in self.teardown.conclude_spared() {
            self.note_error(SPARE, &reason);
        }
        penfold_sys::crash_point!("releasing");
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let forced = self.teardown.was_forced();
        release_resources(resources, forced, |resource, at, error| {
            if let Some(reason) = &error {
                self.findings
                    .survivors
                    .push(Survivor::Resource { what: resource.describe(), reason: reason.clone() });
            }
            self.findings.steps.push(TeardownStep {
                what: format!("release {}", resource.describe()),
                at_us: whole_micros(at - begun),
                took_us: whole_micros(at.elapsed()),
                error,
            });
        });
        self.findings.verified = self.findings.survivors.is_empty();
        let findings = std::mem::take(&mut self.findings);
        self.finish(findings)
    }

    fn finish(&mut self, mut findings: Findings) -> Findings {
        if let (Some(busy), Some(since)) = (&mut findings.busy, self.busy_since) {
            busy.took_us = whole_micros(since.elapsed());
        }
        findings.took_us = self.begun.map_or(0, |begun| whole_micros(begun.elapsed()));
        self.teardown.account(&mut findings);
        findings
    }
}

#[cfg(test)]
mod tests {
    use penfold_cgroup::{Leaf, LeafPlace};
    use penfold_process::ProcFs;
    use penfold_testkit::skip;

    use super::*;
    use crate::members::MemberScope;

    struct Idle;

    impl TeardownHost for Idle {
        fn wait(&mut self, _watch: Vec<PollFd<'_>>, _timeout: Option<Duration>) -> Option<LifecycleEvent> {
            None
        }

        fn stop_policy(&self) -> StopPolicy {
            StopPolicy::default()
        }

        fn stuck(&mut self, _findings: &Findings, _leader: Option<Exit>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn leaf_is_named_where_no_member_in_it_can_be_seen() {
        let Ok(place) = LeafPlace::find_here() else { return skip("no cgroup2 to write to") };
        let Ok(leaf) = Leaf::create(&place, &format!("penfold-test-drive-{}", std::process::id())) else {
            return skip("no cgroup can be made here");
        };
        let path = leaf.path().to_owned();
        let mut teardown = Teardown::new(ProcFs::open().unwrap(), Some(leaf), MemberScope::Children);
        let drive = Drive {
            teardown: &mut teardown,
            host: &mut Idle,
            phase: Phase::Killing,
            findings: Findings::default(),
            begun: None,
            busy_since: None,
            due: DriveDeadlines::default(),
            leader_ended: true,
            signalled: false,
            described: false,
        };
        let findings = { drive }.stuck();
        std::fs::remove_dir(&path).unwrap();
        let [Survivor::Resource { what, .. }] = findings.survivors.as_slice() else { panic!("{findings:?}") };
        assert_eq!(*what, format!("cgroup {}", path.display()));
    }
}
