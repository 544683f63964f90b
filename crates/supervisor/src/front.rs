//! The caller's side of a running sandbox: passes its signals on and waits for the outcome.

mod job_control;
mod saved_modes;
mod seen;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_state::{Nested, Record, Registry, StateError, recovery};
use penfold_sys::child::{self, Peek};
use penfold_sys::signal::{self, SignalFd, SignalSet, Signalled};
use penfold_sys::{Forked, fork};
use penfold_teardown::{Cause, Findings, Level, Resource};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

pub(crate) use self::saved_modes::SavedModes;
pub(crate) use self::seen::{Keys, Seen, terminal};
use crate::outcome::{Outcome, Report, StartFailure, Status, Totals};
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::signals::CHILD;
use crate::takeover::take_over;
use crate::wire::{self, Answer, Ending, Received, Request};

/// Why the outcome of a sandbox is not known.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// Both supervisors were killed and what they looked after could not be recovered.
    #[error("the supervisors of {id} were killed and what is left of it could not be ended")]
    Lost {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        source: io::Error,
    },
    /// It goes on without who started it, so that its end is not seen here.
    #[error("{id} is detached")]
    Detached {
        /// The sandbox.
        id: String,
    },
    /// The supervisor does not put the command into its sandbox.
    #[error("sandbox {id} refuses: {reason}")]
    Refused {
        /// The sandbox.
        id: String,
        /// Its words.
        reason: String,
    },
    /// The kernel refused to let us wait.
    #[error("cannot wait for {id}")]
    Wait {
        /// The sandbox.
        id: String,
        /// What stood in the way.
        source: io::Error,
    },
}

/// A running sandbox, seen from who started it.
#[derive(Debug)]
pub struct Front {
    keeper: Keeper,
    channel: OwnedFd,
    seen: Seen,
    signals: SignalFd,
    asked: bool,
    /// A person was told that the command has what its terminal sent.
    explained: bool,
    /// What there was no room for in the channel, each once.
    pending: VecDeque<Request>,
    /// The kernel has no memory for what is to be said: it is said again after a while.
    short: bool,
    /// Our child that ends what others have left, where children of ours may become members.
    sweeper: Option<Pid>,
    /// Why the sandbox cannot be waited for, and is ended.
    broken: Option<String>,
}

/// How a front hears signals: made before anything is started, so that no failure of it leaves a sandbox alone.
pub(crate) struct Hearing {
    signals: SignalFd,
    mask: SignalSet,
}

impl Hearing {
    /// For all signals but those in `left`, which are not ours. All of them are blocked.
    pub(crate) fn prepare(left: &[Signal]) -> io::Result<Hearing> {
        // What the caller ignores (nohup) stays ignored, here and in the command.
        let handled = SignalSet::of((1..=64).filter(|&number| {
            let kept = KEPT.iter().chain(left).any(|kept| kept.as_raw() == number);
            !kept && (number == CHILD || !signal::is_ignored(number))
        }));
        let blocked = (1..=64).filter(|&n| handled.contains(n) || left.iter().any(|left| left.as_raw() == n));
        Ok(Hearing { signals: SignalFd::open(&handled)?, mask: SignalSet::of(blocked) })
    }
}

/// A detached sandbox whose command runs, or that is over.
#[derive(Debug)]
pub enum Detached {
    /// It runs, and ends with this process until it is let go.
    Running(Front),
    /// It is over; nobody was told its id.
    Over(Box<Outcome>),
}

/// The child of this process that stands for the sandbox.
pub(crate) enum Keeper {
    /// The supervisor. This process is the outer subreaper and takes over if it is killed.
    Inner {
        /// Its pid.
        pid: Pid,
        /// Its pidfd.
        pidfd: OwnedFd,
        /// What the sandbox owns; none once taken over.
        prepared: Option<Box<Prepared>>,
    },
    /// The outer process, which takes over by itself.
    Outer {
        /// Its pid.
        pid: Pid,
        /// Its pidfd; none if the kernel would not give one.
        pidfd: Option<OwnedFd>,
    },
    /// A supervisor that was not started here: that of a command in a sandbox which runs already.
    Remote,
    /// Nothing was started.
    Refused(Box<Outcome>),
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Keeper::Inner { pid, .. } => f.debug_tuple("Inner").field(pid).finish(),
            Keeper::Outer { pid, .. } => f.debug_tuple("Outer").field(pid).finish(),
            Keeper::Remote => f.write_str("Remote"),
            Keeper::Refused(outcome) => f.debug_tuple("Refused").field(outcome).finish(),
        }
    }
}

/// What came of a sandbox.
enum Followed {
    /// It runs, detached.
    Running,
    /// It is over.
    Over(Box<Outcome>),
}

/// Whether the command has ended as it wanted to: what it has made of the terminal is what it is for, as of stty(1).
fn succeeded(outcome: &Outcome) -> bool {
    let Report { cause, exit, .. } = &outcome.report;
    *cause == Cause::Exit && *exit == Some(Status::Code(0))
}

/// Removes the record of a sandbox whose id nobody was told. One that something is left of keeps it.
fn forget(root: &Path, id: &str) {
    if let Ok(Some(registry)) = Registry::open_existing(root)
        && let Ok(Some(mut record)) = registry.take(id)
        && record.files().has_ended()
    {
        let _ = record.release(false);
    }
}

/// What the front does when nothing has happened for a while.
#[derive(Debug, Clone, Copy)]
enum Due {
    Settle,
    Tell(Progress),
}

/// What a person who waits may wonder about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// How the sandbox is being ended.
    Ending(Ending),
    /// The command handles what its terminal sent, and goes on.
    PassedOn,
}

impl Due {
    fn after(self) -> Duration {
        match self {
            Due::Settle => SETTLE,
            Due::Tell(Progress::Ending(_)) => WONDER,
            Due::Tell(Progress::PassedOn) => CLEANS_UP,
        }
    }
}

/// Signals that stay as they are: they cannot be caught, tell of our own faults, or are the terminal's job control,
/// which stops this process together with the command.
const KEPT: [Signal; 14] = [
    Signal::KILL,
    Signal::STOP,
    Signal::ILL,
    Signal::FPE,
    Signal::SEGV,
    Signal::BUS,
    Signal::TRAP,
    Signal::ABORT,
    Signal::SYS,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::CONT,
    Signal::PIPE,
];

/// What a terminal sends to all of its foreground group, besides INT.
const TERMINAL: [Signal; 3] = [Signal::QUIT, Signal::WINCH, Signal::HUP];

/// How long the supervisors may take to exit once they have said that nothing is left.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a person waits without wondering.
const WONDER: Duration = Duration::from_millis(300);
/// How long a command may take to clean up after Ctrl-C before a person wonders.
const CLEANS_UP: Duration = Duration::from_secs(2);
/// How long a command must run until this process makes itself small. Most are over by then, and spared the work.
const SETTLE: Duration = Duration::from_millis(5);
/// How long it takes until something is tried again for which the kernel had no memory.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often it may fail to hear the supervisor, each of which was tried for a second.
const TRIES: u32 = 2;
/// How long the leftovers of others may take to die.
const ORPHANS_PATIENCE: Duration = Duration::from_secs(10);

impl Front {
    /// The side of who has asked for a command in a running sandbox, over `channel`. Signals in `left` are not its own.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub fn of_exec(channel: OwnedFd, id: String, left: &[Signal]) -> io::Result<Front> {
        signal::block(&SignalSet::of(1..=64))?;
        let seen = Seen {
            id,
            state_root: PathBuf::new(),
            patience: Duration::ZERO,
            terminal: terminal(),
            modes: None,
            keys: Keys::Client,
        };
        Ok(Front::new(Keeper::Remote, channel, seen, Hearing::prepare(left)?))
    }

    pub(crate) fn new(keeper: Keeper, channel: OwnedFd, seen: Seen, hearing: Hearing) -> Front {
        let Hearing { signals, mask } = hearing;
        // Where it fails, what is kept stays blocked: no job control, and nothing that a sandbox would be ended for.
        let _ = signal::set_mask(&mask);
        let broken = match &keeper {
            Keeper::Outer { pidfd: None, .. } => Some("the supervisor cannot be watched".to_owned()),
            _ => None,
        };
        let pending = VecDeque::new();
        Front {
            keeper,
            channel,
            seen,
            signals,
            asked: false,
            explained: false,
            pending,
            short: false,
            sweeper: None,
            broken,
        }
    }

    /// The sandbox's id, as shown.
    pub fn id(&self) -> String {
        self.seen.id.clone()
    }

    /// Waits for the end of the sandbox, whatever it takes, and passes on the signals that arrive meanwhile.
    ///
    /// INT and TERM stop the sandbox the first time and kill it the second, but for the INT of a terminal, which is the
    /// leader's first; HUP is the owner's end where there is a terminal; all others go to the leader. `slow` is told what
    /// goes on when a person has waited long enough to wonder.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait(mut self, slow: impl FnMut(Progress)) -> Result<Outcome, FrontError> {
        let modes = self.seen.modes.take();
        let followed = self.follow(slow, false);
        if let Some(modes) = modes
            && !matches!(&followed, Ok(Followed::Over(outcome)) if succeeded(outcome))
        {
            modes.restore();
        }
        match followed? {
            Followed::Over(outcome) => Ok(*outcome),
            // Said of detached sandboxes only.
            Followed::Running => Err(FrontError::Detached { id: self.id() }),
        }
    }

    /// Waits until the command of a detached sandbox runs; gives the outcome if it does not. A signal that arrives
    /// meanwhile ends the sandbox.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait_running(mut self) -> Result<Detached, FrontError> {
        match self.follow(|_| (), true) {
            Ok(Followed::Running) => Ok(Detached::Running(self)),
            Ok(Followed::Over(outcome)) => {
                forget(&self.seen.state_root, &self.id());
                Ok(Detached::Over(outcome))
            }
            Err(FrontError::Wait { source, .. }) => {
                let outcome = self.abandon(&source.to_string())?;
                Ok(Detached::Over(Box::new(outcome)))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets a detached sandbox go on without this process.
    ///
    /// Before its id is told: of a front that is killed in between nobody has heard an id that means nothing.
    ///
    /// # Errors
    /// Those of send(2): the sandbox would end with this process.
    pub fn let_go(&self) -> io::Result<()> {
        match wire::send(&self.channel, &Request::LetGo) {
            // One that has ended meanwhile does not hear it.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Ends a sandbox whose id nobody can be told.
    ///
    /// # Errors
    /// When its end was not seen.
    pub fn abandon(mut self, reason: &str) -> Result<Outcome, FrontError> {
        let mut outcome = self.end(reason)?;
        outcome.report.failure.get_or_insert_with(|| StartFailure::Other(reason.to_owned()));
        forget(&self.seen.state_root, &self.id());
        Ok(outcome)
    }

    /// Kills the sandbox and waits for its end without poll(2), which may be what fails.
    fn end(&mut self, reason: &str) -> Result<Outcome, FrontError> {
        let unseen = || io::Error::other(reason.to_owned());
        if matches!(self.keeper, Keeper::Remote) {
            return Err(self.unwaited(unseen()));
        }
        let until = Instant::now() + self.seen.patience + FAREWELL;
        let mut asked = false;
        loop {
            asked = asked || wire::offer(&self.channel, &Request::Kill).is_ok();
            match wire::receive::<Answer>(&self.channel) {
                Ok(Received::Message(Answer::Outcome(outcome))) => return Ok(self.part(*outcome)),
                Ok(Received::Message(_)) => continue,
                Ok(Received::End) => return self.keeper_died(),
                Ok(Received::Nothing) | Err(_) => {}
            }
            if Instant::now() > until {
                return Err(self.unwaited(unseen()));
            }
            let _ = rustix::thread::nanosleep(&AGAIN);
        }
    }

    fn follow(
        &mut self,
        mut slow: impl FnMut(Progress),
        until_running: bool,
    ) -> Result<Followed, FrontError> {
        if let Some(reason) = self.broken.take() {
            return self.end_broken(reason);
        }
        self.sweeper = self.look_for_orphans();
        // What is due when nothing happens meanwhile.
        let mut due = Some(Due::Settle);
        let mut outer_dead = false;
        let mut failures = 0;
        loop {
            let timeout = due.and_then(|due| Timespec::try_from(due.after()).ok());
            let timeout = if self.short { Some(AGAIN) } else { timeout };
            if let Keeper::Refused(outcome) = &self.keeper {
                return Ok(Followed::Over(outcome.clone()));
            }
            let (happened, [channel, signals, keeper]) = self.look(outer_dead, timeout.as_ref());
            let mut blind = false;
            match happened {
                Ok(0) if self.short => {}
                Ok(0) => match due.take() {
                    Some(Due::Settle) => penfold_sys::memory::forget_code(),
                    Some(Due::Tell(progress)) => slow(progress),
                    None => {}
                },
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // It is looked now and then instead: to give up would be to end the sandbox.
                Err(_) => blind = true,
            }
            let (channel, signals) = (channel || blind, signals || blind);
            if signals {
                self.pass_on();
            }
            if !self.pending.is_empty() {
                self.say_pending();
            }
            if channel || keeper {
                let received = wire::receive::<Answer>(&self.channel);
                failures = if received.is_err() { failures + 1 } else { 0 };
                match received {
                    Ok(Received::Message(Answer::Outcome(outcome))) => {
                        return Ok(Followed::Over(Box::new(self.part(*outcome))));
                    }
                    Ok(Received::Message(Answer::Running)) if until_running => {
                        return Ok(Followed::Running);
                    }
                    Ok(Received::Message(Answer::Refused(reason))) => {
                        return Err(FrontError::Refused { id: self.id(), reason });
                    }
                    Ok(Received::Message(Answer::LeaderEnded)) => self.say_all(),
                    Ok(Received::Message(Answer::Suspended(leader))) => self.stop_as(leader),
                    Ok(Received::Message(answer)) => due = self.wonder(&answer).or(due),
                    Ok(Received::Nothing) if !keeper => {}
                    // The supervisor lives and ends the sandbox; the channel is at its end only when it is dead, too.
                    Ok(Received::Nothing) if matches!(self.keeper, Keeper::Outer { .. }) => outer_dead = true,
                    Ok(Received::Nothing | Received::End) => {
                        return self.keeper_died().map(|outcome| Followed::Over(Box::new(outcome)));
                    }
                    Err(error) if failures > TRIES => return Err(self.unwaited(error)),
                    Err(_) => {
                        let _ = rustix::thread::nanosleep(&AGAIN);
                    }
                }
            }
        }
    }

    /// What a person will wonder about after this answer.
    fn wonder(&mut self, answer: &Answer) -> Option<Due> {
        match answer {
            Answer::Ending(ending) => Some(Due::Tell(Progress::Ending(*ending))),
            // Once: a prompt is not written over at each key.
            Answer::PassedOn if !std::mem::replace(&mut self.explained, true) => {
                Some(Due::Tell(Progress::PassedOn))
            }
            _ => None,
        }
    }

    /// Waits until something happens: to the channel, to this process, to its child.
    fn look(&self, outer_dead: bool, timeout: Option<&Timespec>) -> (rustix::io::Result<usize>, [bool; 3]) {
        let pidfd = match &self.keeper {
            Keeper::Inner { pidfd, .. } | Keeper::Outer { pidfd: Some(pidfd), .. } => Some(pidfd),
            Keeper::Outer { pidfd: None, .. } | Keeper::Remote | Keeper::Refused(_) => None,
        };
        let pidfd = pidfd.filter(|_| !outer_dead);
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.pending.is_empty() && !self.short);
        let mut fds = [
            PollFd::new(&self.channel, flags),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(pidfd.unwrap_or(&self.channel), PollFlags::IN),
        ];
        let watched = if pidfd.is_some() { 3 } else { 2 };
        let happened = poll(fds.get_mut(..watched).unwrap_or_default(), timeout);
        (happened, fds.map(|fd| !fd.revents().is_empty()))
    }

    /// Ends a sandbox that cannot be waited for.
    fn end_broken(&mut self, reason: String) -> Result<Followed, FrontError> {
        let mut outcome = self.end(&reason)?;
        outcome.report.failure.get_or_insert(StartFailure::Other(reason));
        Ok(Followed::Over(Box::new(outcome)))
    }

    /// The supervisor is dead and has not said how it ended.
    fn keeper_died(&mut self) -> Result<Outcome, FrontError> {
        if matches!(self.keeper, Keeper::Remote) {
            return Err(self.unwaited(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Keeper::Inner { prepared, .. } = &mut self.keeper
            && let Some(prepared) = prepared.take()
        {
            self.dismiss_sweeper();
            return Ok(take_over(*prepared));
        }
        self.recover()
    }

    /// Ends, beside this sandbox, what was left by others that nobody looks after.
    ///
    /// In a process of its own: it may take a while, and who waits for this sandbox must not wait for that. Gives that
    /// process where nobody else reaps it.
    fn look_for_orphans(&self) -> Option<Pid> {
        let opened;
        let registry = match &self.keeper {
            Keeper::Inner { prepared: Some(prepared), .. } => prepared.nested.as_ref().map(Nested::registry),
            Keeper::Outer { .. } => {
                opened = Registry::open_existing(&self.seen.state_root).ok().flatten();
                opened.as_ref()
            }
            Keeper::Inner { prepared: None, .. } | Keeper::Remote | Keeper::Refused(_) => None,
        };
        let registry = registry?;
        if !recovery::has_orphans(registry, &self.id()).unwrap_or(false) {
            return None;
        }
        match fork().ok()? {
            Forked::Parent(pid) => matches!(self.keeper, Keeper::Inner { .. }).then_some(pid),
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
    fn dismiss_sweeper(&mut self) {
        // Not reaped so far, so that the number is its own.
        if let Some(pid) = self.sweeper.take()
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            let timeout = Timespec::try_from(FAREWELL).ok();
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
            let _ = child::reap(pid);
        }
    }

    fn unwaited(&self, source: io::Error) -> FrontError {
        FrontError::Wait { id: self.id(), source }
    }

    fn pass_on(&mut self) {
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == CHILD {
                self.wake_keeper();
                // Who comes to us from a dead supervisor is not reaped before it is known how it ended.
                if matches!(self.keeper, Keeper::Outer { .. }) {
                    Self::reap();
                }
            } else if let Some(request) = self.request(signalled)
                // A supervisor that does not listen has hundreds of them waiting: as signals do, more of the same merge.
                && !self.pending.contains(&request)
            {
                self.pending.push_back(request);
                self.say_pending();
            }
        }
    }

    /// Says all that it was sent so far.
    fn say_all(&mut self) {
        self.pass_on();
        self.pending.push_back(Request::Heard);
        self.say_pending();
    }

    /// Says what there is room for. The kernel tells of room once most of the channel is free again.
    fn say_pending(&mut self) {
        self.short = false;
        while let Some(request) = self.pending.front() {
            match wire::offer(&self.channel, request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // unix(7): the kernel has no memory for it, and does not tell when there is some. A stop is never given up.
                Err(error) if !wire::is_final(&error) => {
                    self.short = true;
                    return;
                }
                // A supervisor that is gone shows as the end of the channel.
                Ok(()) | Err(_) => drop(self.pending.pop_front()),
            }
        }
    }

    /// As the init of a container this process is given children that nobody else would reap.
    fn reap() {
        while let Ok(Peek::Ended(pid, _)) = child::peek() {
            let _ = child::reap(pid);
        }
    }

    /// A command can stop its supervisor as it can stop any process of its user; that is told like a death.
    fn wake_keeper(&self) {
        if let Keeper::Inner { pidfd, .. } | Keeper::Outer { pidfd: Some(pidfd), .. } = &self.keeper {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
        }
    }

    fn request(&mut self, signalled: Signalled) -> Option<Request> {
        let Signalled { signal, from_kernel, sender, carried } = signalled;
        // Our own doing: a record too large for RLIMIT_FSIZE.
        if u32::try_from(rustix::process::getpid().as_raw_nonzero().get()) == Ok(sender) {
            return None;
        }
        let is = |signals: [Signal; 2]| signals.iter().any(|one| one.as_raw() == signal);
        let group = penfold_sys::fork::group();
        if from_kernel && self.seen.keys == Keys::Command && is([Signal::INT, Signal::QUIT]) {
            return Some(Request::Key { signal, group });
        }
        let stops = is([Signal::INT, Signal::TERM]);
        if stops && self.asked {
            return Some(Request::Kill);
        }
        if stops {
            self.asked = true;
            // Where the group's leader is out of sight its number is 0, which is nobody's to spare.
            let spared_group = Some(group).filter(|&group| from_kernel && group != 0);
            let signal = match carried {
                Some(carried) => carried.as_raw(),
                None if from_kernel || self.seen.keys == Keys::Client => signal,
                // The sandbox's own.
                None => 0,
            };
            return Some(Request::Stop { signal, spared_group, grace_ms: None });
        }
        if signal == Signal::HUP.as_raw() && self.seen.terminal.is_some() {
            return Some(Request::OwnerGone);
        }
        // What a terminal sends goes to the command as well; an alarm or a limit of the kernel's is for us alone.
        let from_terminal = from_kernel && TERMINAL.iter().any(|sent| sent.as_raw() == signal);
        (!from_terminal).then_some(Request::Forward(signal))
    }

    /// Waits for the supervisors to be gone, too: nothing is left, not even they.
    fn part(&self, outcome: Outcome) -> Outcome {
        if let Keeper::Inner { pid, pidfd, .. } | Keeper::Outer { pid, pidfd: Some(pidfd) } = &self.keeper
            && outcome.report.findings.verified
        {
            let timeout = Timespec::try_from(FAREWELL).ok();
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
            let _ = child::reap(*pid);
            // If the outer process died first, the supervisor has come to us: its pid is its own until it is reaped here.
            if let Some(teller) = Pid::from_raw(outcome.teller).filter(|teller| teller != pid)
                && matches!(child::reap(teller), Ok(None))
                && let Ok(pidfd) = pidfd_open(teller, PidfdFlags::empty())
            {
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                let _ = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()));
                let _ = child::reap(teller);
            }
            Self::reap();
        }
        outcome
    }

    /// Outer and supervisor are dead: what they looked after is ended from its record.
    fn recover(&self) -> Result<Outcome, FrontError> {
        Self::reap();
        let id = self.id();
        let lost = |source| FrontError::Lost { id: id.clone(), source };
        let registry = Registry::open_existing(&self.seen.state_root).ok().flatten();
        let findings = match registry {
            Some(registry) => {
                let record = self.take_record(&registry).map_err(|error| lost(io::Error::other(error)))?;
                match record {
                    Some(record) => recovery::recover(record, false, self.seen.patience),
                    None => recovery::recover_unrecorded(&id, false, self.seen.patience),
                }
            }
            None => recovery::recover_unrecorded(&id, false, self.seen.patience),
        };
        let findings = findings.map_err(lost)?;
        Self::reap();
        Ok(Outcome {
            report: self.lost_report(findings),
            totals: Totals::default(),
            teller: 0,
            of_exec: false,
            unwritten: None,
        })
    }

    /// Takes over the record once the last process that holds its lock has died: our init may be slower than the others.
    fn take_record(&self, registry: &Registry) -> Result<Option<Record>, StateError> {
        let begun = Instant::now();
        loop {
            let record = registry.take_orphan(&self.id())?;
            if record.is_some() || !registry.holds(&self.id()) || begun.elapsed() > self.seen.patience {
                return Ok(record);
            }
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
        }
    }

    fn lost_report(&self, findings: Findings) -> Report {
        Report {
            schema: penfold_teardown::report::SCHEMA,
            id: self.id(),
            name: None,
            labels: BTreeMap::new(),
            command: Vec::new(),
            level: Level::Subreaper,
            cause: Cause::Lost,
            exit: None,
            failure: None,
            started_at_ms: 0,
            duration_ms: 0,
            missing: Vec::new(),
            weaker: None,
            findings,
        }
    }
}
