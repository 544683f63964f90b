//! The supervisor of an adopted tree.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_state::events::What;
use penfold_state::state::Word;
use penfold_sys::child::Exit;
use penfold_sys::signal::SignalFd;
use penfold_teardown::lifecycle::{Event, Phase};
use penfold_teardown::{Cause, Findings, Host, Ladder, Leader, Scope, Search, Teardown, drive};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, getppid, setsid};

use super::join::Joined;
use crate::held::Held;
use crate::inner::{self, Outer, SUPERVISOR};
use crate::policy::{Kind, Policy};
use crate::poll::poll;
use crate::signals;
use crate::supervised::Supervised;
use crate::wire::{self, Answer};

/// Runs the supervisor; ends when the sandbox is gone.
pub(super) fn run(mut held: Held, joined: Joined, outer: Outer) -> ! {
    penfold_sys::title::set(SUPERVISOR);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let _ = setsid();
    let Ok(signals) = signals::open() else {
        // Who forked this process takes over.
        penfold_sys::fork::exit_now(1)
    };
    let mut fds = [PollFd::new(&outer.apart, PollFlags::IN), PollFd::new(&outer.pidfd, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, None));
    if let Some(desk) = &mut held.desk {
        desk.has_run();
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut held, search) else { penfold_sys::fork::exit_now(1) };
    teardown.lead_by(Leader { pid: root.pid, session: root.session });
    held.note_running(root.pid);
    held.identify(&mut teardown, root.pid, getppid(), Word::Running);
    if let Some(desk) = &held.desk {
        let command = held.setup.spec.command.iter().map(|word| word.to_string_lossy().into_owned());
        desk.happened([What::Adopted { pid: root.pid.as_raw_nonzero().get(), command: command.collect() }]);
    }
    penfold_sys::crash_point!("adopted-kept");
    wire::offer_once(&held.setup.channel, &Answer::Running);
    penfold_sys::memory::forget_code();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    Adopted::new(held, Some(signals), Some(outer.pidfd), pidfd).look_after(teardown)
}

/// Ends the tree in the place of a supervisor that was killed.
pub(super) fn take_over(mut held: Held, joined: Joined) -> ! {
    penfold_sys::crash_point!("taking-over");
    if let Some(desk) = &mut held.desk {
        desk.inherit();
    }
    let Joined { root, pidfd, search, .. } = joined;
    let Some(mut teardown) = teardown(&mut held, search) else {
        // Without a look at /proc nothing is known to be gone: the record stays for the next command.
        penfold_sys::fork::exit_now(1)
    };
    teardown.lead_by(Leader { pid: root.pid, session: root.session });
    held.identify(&mut teardown, root.pid, None, Word::Stopping);
    // Without signals the timeouts of the drive still bring it forward.
    let mut host = Adopted::new(held, signals::open().ok(), None, pidfd);
    host.due = host.sandbox.decide(|policy| policy.kill(Cause::Supervisor));
    host.look_after(teardown)
}

fn teardown(held: &mut Held, search: Search) -> Option<Teardown> {
    let proc = held.proc.take().map_or_else(ProcFs::open, Ok).ok()?;
    let mut teardown = Teardown::new(proc, held.leaf.take(), Scope::Host(Box::new(search)));
    teardown.want_details();
    Some(teardown)
}

/// The host of the teardown.
struct Adopted {
    sandbox: Supervised,
    /// Watched until it tells that its process has ended, which it does once.
    outer: Option<OwnedFd>,
    /// The root of the tree is watched while it lives.
    root_lives: bool,
    /// Something that is to be told at the next wait.
    due: Option<Event>,
}

impl Host for Adopted {
    fn wait(&mut self, watch: Vec<PollFd<'_>>, timeout: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.due.take() {
            return Some(event);
        }
        let looked = Instant::now();
        let until = self.sandbox.policy.next_deadline(self.sandbox.activity());
        self.sandbox.set_alarm(until.map(|(at, _)| at), timeout);
        let until = until.map(|(at, _)| at.saturating_duration_since(looked));
        let opens = self.sandbox.held.desk.as_ref().and_then(|desk| desk.opens_in());
        let timeout = [timeout, until, opens].into_iter().flatten().min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let sources = [
            self.sandbox.signals.as_ref().map(AsFd::as_fd),
            self.outer.as_ref().map(AsFd::as_fd),
            self.sandbox.leader.as_ref().filter(|_| self.root_lives).map(AsFd::as_fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if let Some(desk) = &self.sandbox.held.desk {
            fds.extend(desk.sources());
        }
        let before = fds.len();
        fds.extend(watch);
        if poll(&mut fds, timeout.as_ref()).is_err() {
            fds.clear();
        }
        let mut ready = fds.iter().take(before).map(|fd| !fd.revents().is_empty());
        let [signals, outer, root] = sources.map(|source| source.is_some() && ready.next().unwrap_or(false));
        let desk: Vec<bool> = ready.collect();
        if signals && let Some(event) = self.sandbox.take_signals() {
            return Some(event);
        }
        if outer {
            self.outer = None;
            return self.sandbox.decide(Policy::outer_gone);
        }
        // Before the end of the root: who asked for that is answered, and is its cause.
        if let Some(event) = self.sandbox.serve(&desk, None) {
            return Some(event);
        }
        if root {
            self.root_lives = false;
            return Some(Event::LeaderExited);
        }
        let cause = self.sandbox.policy.overdue(looked, self.sandbox.activity())?;
        if let Some(outer) = &self.outer {
            let _ = rustix::process::pidfd_send_signal(outer, Signal::CONT);
        }
        self.sandbox.decide(|policy| policy.time_out(cause))
    }

    fn ladder(&self) -> Ladder {
        self.sandbox.policy.ladder()
    }

    fn out_of_memory(&mut self) {
        self.sandbox.policy.out_of_memory();
    }

    /// How it ended is told to its parent, and to nobody else.
    fn leader_ended(&mut self, _: Option<Exit>) -> Event {
        let cause = self.sandbox.policy.leader_ended(None);
        self.sandbox.held.find_nested();
        if let Some(desk) = &mut self.sandbox.held.desk {
            desk.ends();
            desk.write_exited(None, cause);
        }
        Event::LeaderExited
    }

    fn stuck(&mut self, findings: &Findings, _: Option<Exit>) -> ControlFlow<()> {
        self.sandbox.say(Word::Unkillable);
        self.tell(findings.clone());
        ControlFlow::Continue(())
    }
}

impl Adopted {
    fn new(held: Held, signals: Option<SignalFd>, outer: Option<OwnedFd>, root: OwnedFd) -> Adopted {
        let sandbox = Supervised::new(held, Kind::Adopted, signals, Some(root), inner::run_exec);
        Adopted { sandbox, outer, root_lives: true, due: None }
    }

    /// Exits once nothing of it is left.
    fn look_after(mut self, mut teardown: Teardown) -> ! {
        let mut resources = std::mem::take(&mut self.sandbox.held.resources);
        let findings = drive(&mut teardown, Phase::Running, &mut self, &mut resources);
        self.tell(findings);
        penfold_sys::fork::exit_now(0)
    }

    fn tell(&mut self, findings: Findings) {
        let cause = self.sandbox.policy.cause().unwrap_or(Cause::Exit);
        let report = self.sandbox.held.report(cause, None, None, findings);
        self.sandbox.tell(&report);
    }
}
