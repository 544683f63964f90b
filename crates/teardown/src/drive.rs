//! The loop between the table of [`lifecycle`](crate::lifecycle) and the members.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use penfold_sys::child::Exit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use rustix::thread::nanosleep;

use crate::lifecycle::{Action, Event, Phase, step};
use crate::members::Teardown;
use crate::report::{Findings, Step, Survivor, micros};
use crate::resource::{Resource, release};

/// How a sandbox is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// The polite signal.
    pub signal: Signal,
    /// A process group that was sent INT by its terminal: of it only those that are deaf to INT get the polite signal.
    pub spared_group: Option<i32>,
    /// How long members may take to end after the polite signal.
    pub grace: Duration,
    /// How long a kill may take until what is left is reported.
    pub patience: Duration,
}

impl Default for Ladder {
    fn default() -> Ladder {
        Ladder {
            signal: Signal::TERM,
            spared_group: None,
            grace: Duration::from_secs(10),
            patience: Duration::from_secs(10),
        }
    }
}

impl Ladder {
    /// Gives members the grace that somebody wants. While they are being asked already, who wants less is heard, and who
    /// wants more is not.
    pub fn give(&mut self, grace: Duration, asked: bool) {
        self.grace = if asked { self.grace.min(grace) } else { grace };
    }

    /// Reports what is left within the time that somebody wants. During a teardown the shortest time counts.
    pub fn report_within(&mut self, patience: Duration, asked: bool) {
        self.patience = if asked { self.patience.min(patience) } else { patience };
    }
}

/// What the loop needs from the process that it runs in.
pub trait Host {
    /// Waits until a child has ended, one of `watch` is ready, something is asked for, or `timeout` is over; tells what
    /// was asked for. Without a timeout nothing is due.
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event>;

    /// How to end the sandbox, as things stand.
    fn ladder(&self) -> Ladder;

    /// Is told that the kernel ended the leader because the sandbox had no memory left.
    fn out_of_memory(&mut self) {}

    /// Is told that the leader has ended, and how if it was reaped here: whatever happens later was not the cause. Gives
    /// what follows for the members that it has left: they are killed unless a stop is requested.
    fn leader_ended(&mut self, _exit: Option<Exit>) -> Event {
        Event::LeaderExited
    }

    /// Is told what is left when the patience is over, and how the leader ended if it did; breaks to give up instead of
    /// looking after it.
    fn stuck(&mut self, findings: &Findings, leader: Option<Exit>) -> ControlFlow<()>;
}

/// The first look after a kill that brought no progress; doubled up to [`LOOK_LAST`].
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);
/// While something is stuck, looks become as rare as this.
const LOOK_STUCK: Duration = Duration::from_secs(10);

const KILLED: Exit = Exit::Signal(Signal::KILL.as_raw());

/// So many deaths at once are a mass, of which more follow within a breath.
const MANY: usize = 16;
const BREATH: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000 };

/// Looks after a sandbox from `phase` on until nothing of it is left, or the host gives up.
///
/// The resources are released in reverse order once no member is left.
pub fn drive(
    teardown: &mut Teardown,
    phase: Phase,
    host: &mut dyn Host,
    resources: &mut [Box<dyn Resource>],
) -> Findings {
    Drive {
        teardown,
        host,
        phase,
        findings: Findings::default(),
        begun: None,
        due: Due::default(),
        leader_ended: false,
    }
    .run(resources)
}

/// When something is to be done without being asked.
#[derive(Debug, Default)]
struct Due {
    grace: Option<Instant>,
    patience: Option<Instant>,
    look: Option<Instant>,
    interval: Duration,
}

impl Due {
    /// Looks again soon: something has just moved.
    fn look_soon(&mut self) {
        self.interval = LOOK_FIRST;
        self.look = Instant::now().checked_add(self.interval);
    }

    /// Looks again later than the last time.
    fn look_later(&mut self, most: Duration) {
        self.interval = (self.interval * 2).clamp(LOOK_FIRST, most);
        self.look = Instant::now().checked_add(self.interval);
    }

    fn next(&self) -> Option<Instant> {
        [self.grace, self.patience, self.look].into_iter().flatten().min()
    }

    /// What is due now. The clock is the monotonic one: it does not jump.
    fn event(&mut self) -> Option<Event> {
        let now = Instant::now();
        let over = |due: &mut Option<Instant>| due.take_if(|at| *at <= now).is_some();
        if over(&mut self.patience) {
            Some(Event::PatienceOver)
        } else if over(&mut self.grace) {
            Some(Event::GraceOver)
        } else if over(&mut self.look) {
            Some(Event::Look)
        } else {
            None
        }
    }
}

struct Drive<'a> {
    teardown: &'a mut Teardown,
    host: &'a mut dyn Host,
    phase: Phase,
    findings: Findings,
    begun: Option<Instant>,
    due: Due,
    leader_ended: bool,
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
                // While starting, what the host heard of it says more than its exit: why it could not start.
                if self.phase == Phase::Starting {
                    event = self.host.wait(Vec::new(), Some(Duration::ZERO));
                }
                if event.is_none() || self.phase != Phase::Starting {
                    event = Some(Event::LeaderExited);
                }
            } else if self.begun.is_some() && (reaped || ended || look_now) {
                event = self.empty().then_some(Event::Unpopulated);
            }
            look_now = false;
            let event = event.or_else(|| self.due.event());
            if batch >= MANY && event.is_none() && self.begun.is_some() {
                // Each look for the dead passes by all who live: among many, better few looks that find many.
                let _ = nanosleep(&BREATH);
                continue;
            }
            let event = event.or_else(|| {
                let event = self.wait();
                look_now = event.is_none();
                event
            });
            let Some(mut event) = event else { continue };
            if event == Event::LeaderExited {
                event = self.lead_no_more();
                look_now = true;
            }
            if matches!(event, Event::StopRequested | Event::KillRequested) {
                self.hurry();
            }
            let (next, action) = step(self.phase, event);
            self.phase = next;
            match action {
                Action::Nothing => {}
                Action::Ask => {
                    self.ask();
                    look_now = true;
                }
                Action::Kill => {
                    self.kill();
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

    /// The leader has ended; gives what follows.
    fn lead_no_more(&mut self) -> Event {
        self.leader_ended = true;
        if self.phase == Phase::Running {
            self.teardown.outlived();
        }
        let exit = self.teardown.leader_exit();
        if exit == Some(KILLED) && self.teardown.has_oom_killed() {
            self.host.out_of_memory();
        }
        self.host.leader_ended(exit)
    }

    fn wait(&mut self) -> Option<Event> {
        if self.phase == Phase::Running {
            self.teardown.make_ready();
        }
        let timeout = self.due.next().map(|at| at.saturating_duration_since(Instant::now()));
        let mut watch: Vec<PollFd<'_>> = Vec::new();
        if self.begun.is_some() {
            watch.extend(self.teardown.watch().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        self.host.wait(watch, timeout)
    }

    /// Nothing is left, and the leaf could be removed: the kernel's own word that nobody is in it.
    fn empty(&mut self) -> bool {
        let now = Instant::now();
        // Not before it has told how the leader ended.
        if self.leader_ended
            && let Err(error) = self.teardown.dismiss_keeper()
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
            Ok(false) => false,
            Err(error) => {
                self.note_error(&leaf.unwrap_or_default(), &error);
                false
            }
        }
    }

    /// Notes a step that was done.
    fn note(&mut self, what: &str, at: Instant, took: Duration) {
        let begun = *self.begun.get_or_insert(at);
        let at_us = micros(at.saturating_duration_since(begun));
        self.findings.steps.push(Step { what: what.to_owned(), at_us, took_us: micros(took), error: None });
    }

    fn leaf_name(&self) -> String {
        self.teardown
            .leaf_path()
            .map_or_else(|| "leaf".to_owned(), |path| format!("cgroup {}", path.display()))
    }

    fn ask(&mut self) {
        let first = self.begun.is_none();
        let ladder = self.host.ladder();
        self.timed(first, "ask", |teardown| teardown.ask(ladder.signal, ladder.spared_group));
        if first {
            self.due.grace = Instant::now().checked_add(ladder.grace);
            self.due.look_soon();
        } else {
            self.due.look_later(LOOK_LAST * 4);
        }
    }

    /// Who asks again may want to wait less; nobody gets to wait longer.
    fn hurry(&mut self) {
        let sooner = |due: &mut Option<Instant>, wanted: Duration| {
            if let Some(at) = due {
                *at = Instant::now().checked_add(wanted).map_or(*at, |wanted| wanted.min(*at));
            }
        };
        let Ladder { grace, patience, .. } = self.host.ladder();
        sooner(&mut self.due.grace, grace);
        sooner(&mut self.due.patience, patience);
    }

    fn kill(&mut self) {
        let first = self.due.patience.is_none() && self.phase == Phase::Killing;
        if first {
            self.due.grace = None;
            self.due.patience = Instant::now().checked_add(self.host.ladder().patience);
        }
        // Nothing to kill is the common end: the leader was alone.
        if self.begun.is_none() && self.teardown.is_empty().unwrap_or(false) {
            self.begun = Some(Instant::now());
            // Should the kernel still hold the leaf, it is looked at again.
            self.due.look_soon();
            return;
        }
        self.timed(first, "kill", Teardown::kill);
        penfold_sys::crash_point!("killed");
        self.teardown.let_die();
        if first {
            self.due.look_soon();
        } else {
            self.due.look_later(if self.phase == Phase::Stuck { LOOK_STUCK } else { LOOK_LAST });
        }
    }

    /// Does something to the members and notes it as a step: the first time, and when it fails.
    fn timed(&mut self, note: bool, what: &str, act: impl FnOnce(&mut Teardown) -> std::io::Result<()>) {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        match act(self.teardown) {
            Ok(()) if note => self.note(what, now, now.elapsed()),
            Ok(()) => {}
            Err(error) => self.note_error(what, &error),
        }
    }

    /// Notes an error once, however often it comes back.
    fn note_error(&mut self, what: &str, error: &dyn std::fmt::Display) {
        let error = Some(error.to_string());
        if self.findings.steps.iter().any(|step| step.what == what && step.error == error) {
            return;
        }
        let at_us = self.begun.map_or(0, |begun| micros(begun.elapsed()));
        self.findings.steps.push(Step { what: what.to_owned(), at_us, took_us: 0, error });
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
        penfold_sys::crash_point!("releasing");
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let forced = self.teardown.was_forced();
        release(resources, forced, |resource, at, error| {
            if let Some(reason) = &error {
                self.findings
                    .survivors
                    .push(Survivor::Resource { what: resource.describe(), reason: reason.clone() });
            }
            self.findings.steps.push(Step {
                what: format!("release {}", resource.describe()),
                at_us: micros(at - begun),
                took_us: micros(at.elapsed()),
                error,
            });
        });
        self.findings.verified = self.findings.survivors.is_empty();
        let findings = std::mem::take(&mut self.findings);
        self.finish(findings)
    }

    fn finish(&mut self, mut findings: Findings) -> Findings {
        findings.took_us = self.begun.map_or(0, |begun| micros(begun.elapsed()));
        self.teardown.account(&mut findings);
        findings
    }
}

#[cfg(test)]
mod tests {
    use penfold_cgroup::{Leaf, Place};
    use penfold_process::ProcFs;
    use penfold_testkit::skip;

    use super::*;
    use crate::members::Scope;

    struct Idle;

    impl Host for Idle {
        fn wait(&mut self, _watch: Vec<PollFd<'_>>, _timeout: Option<Duration>) -> Option<Event> {
            None
        }

        fn ladder(&self) -> Ladder {
            Ladder::default()
        }

        fn stuck(&mut self, _findings: &Findings, _leader: Option<Exit>) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn leaf_is_named_where_no_member_in_it_can_be_seen() {
        let Ok(place) = Place::find_here() else { return skip("no cgroup2 to write to") };
        let Ok(leaf) = Leaf::create(&place, &format!("penfold-test-drive-{}", std::process::id())) else {
            return skip("no cgroup can be made here");
        };
        let path = leaf.path().to_owned();
        let mut teardown = Teardown::new(ProcFs::open().unwrap(), Some(leaf), Scope::Children);
        let drive = Drive {
            teardown: &mut teardown,
            host: &mut Idle,
            phase: Phase::Killing,
            findings: Findings::default(),
            begun: None,
            due: Due::default(),
            leader_ended: true,
        };
        let findings = { drive }.stuck();
        std::fs::remove_dir(&path).unwrap();
        let [Survivor::Resource { what, .. }] = findings.survivors.as_slice() else { panic!("{findings:?}") };
        assert_eq!(*what, format!("cgroup {}", path.display()));
    }
}
