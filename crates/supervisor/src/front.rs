//! The caller's side of a running sandbox: passes its signals on and waits for the outcome.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_sandbox::{Record, Registry, StateError, recovery};
use penfold_sys::child::{self, Peek};
use penfold_sys::signal::{self, SignalFd, SignalSet, Signalled};
use penfold_sys::{Forked, fork};
use penfold_teardown::{Cause, Findings, Level, Resource};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::environment::CHILD;
use crate::held::Held;
use crate::outcome::{Outcome, Report, Totals};
use crate::poll::poll;
use crate::start::Seen;
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
    terminal: bool,
    asked: bool,
    /// What there was no room for in the channel, each once.
    pending: VecDeque<Request>,
    /// Our child that ends what others have left, where children of ours may become members.
    sweeper: Option<Pid>,
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
        held: Option<Box<Held>>,
    },
    /// The outer process, which takes over by itself.
    Outer {
        /// Its pid.
        pid: Pid,
        /// Its pidfd.
        pidfd: OwnedFd,
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
    Running(String),
    /// It is over.
    Over(Box<Outcome>),
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
    Tell(Ending),
}

impl Due {
    fn after(self) -> Duration {
        match self {
            Due::Settle => SETTLE,
            Due::Tell(_) => WONDER,
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
/// How long a command must run until this process makes itself small. Most are over by then, and spared the work.
const SETTLE: Duration = Duration::from_millis(5);
/// How long the leftovers of others may take to die.
const ORPHANS_PATIENCE: Duration = Duration::from_secs(10);

impl Front {
    /// The side of who has asked for a command in a running sandbox, over `channel`. Signals in `left` are not its own.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub fn of_exec(channel: OwnedFd, id: String, left: &[Signal]) -> io::Result<Front> {
        signal::block(&SignalSet::of(1..=64))?;
        let seen = Seen { id, state_root: PathBuf::new(), patience: Duration::ZERO };
        Front::with(Keeper::Remote, channel, seen, left)
    }

    pub(crate) fn new(keeper: Keeper, channel: OwnedFd, seen: Seen) -> io::Result<Front> {
        Front::with(keeper, channel, seen, &[])
    }

    fn with(keeper: Keeper, channel: OwnedFd, seen: Seen, left: &[Signal]) -> io::Result<Front> {
        // What the caller ignores (nohup) stays ignored, here and in the command.
        let handled = SignalSet::of((1..=64).filter(|&number| {
            let kept = KEPT.iter().chain(left).any(|kept| kept.as_raw() == number);
            !kept && (number == CHILD || !signal::is_ignored(number))
        }));
        let signals = SignalFd::open(&handled)?;
        let blocked = (1..=64).filter(|&n| handled.contains(n) || left.iter().any(|left| left.as_raw() == n));
        signal::set_mask(&SignalSet::of(blocked))?;
        let terminal = rustix::fs::open(
            "/dev/tty",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .is_ok();
        let pending = VecDeque::new();
        Ok(Front { keeper, channel, seen, signals, terminal, asked: false, pending, sweeper: None })
    }

    /// The sandbox's id, as shown.
    pub fn id(&self) -> String {
        self.seen.id.clone()
    }

    /// Waits for the end of the sandbox, whatever it takes, and passes on the signals that arrive meanwhile.
    ///
    /// INT and TERM stop the sandbox the first time and kill it the second; HUP is the owner's end where there is a
    /// terminal; all others go to the leader. `slow` is told how the sandbox is being ended when that takes long enough
    /// for a person to wonder.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait(self, slow: impl FnMut(Ending)) -> Result<Outcome, FrontError> {
        match self.follow(slow, false)? {
            Followed::Over(outcome) => Ok(*outcome),
            // Said of detached sandboxes only.
            Followed::Running(id) => Err(FrontError::Detached { id }),
        }
    }

    /// Waits until the command of a detached sandbox runs; gives the outcome if it does not. A signal that arrives
    /// meanwhile ends the sandbox.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait_running(self) -> Result<Option<Outcome>, FrontError> {
        let (root, id) = (self.seen.state_root.clone(), self.id());
        match self.follow(|_| (), true)? {
            Followed::Running(_) => Ok(None),
            Followed::Over(outcome) => {
                forget(&root, &id);
                Ok(Some(*outcome))
            }
        }
    }

    fn follow(mut self, mut slow: impl FnMut(Ending), until_running: bool) -> Result<Followed, FrontError> {
        self.sweeper = self.look_for_orphans();
        // What is due when nothing happens meanwhile.
        let mut due = Some(Due::Settle);
        let mut outer_dead = false;
        loop {
            let timeout = due.and_then(|due| Timespec::try_from(due.after()).ok());
            let pidfd = match &self.keeper {
                Keeper::Refused(outcome) => return Ok(Followed::Over(outcome.clone())),
                Keeper::Inner { pidfd, .. } | Keeper::Outer { pidfd, .. } => pidfd,
                Keeper::Remote => &self.channel,
            };
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.pending.is_empty());
            let mut fds = [
                PollFd::new(&self.channel, flags),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(pidfd, PollFlags::IN),
            ];
            let watched = if outer_dead || matches!(self.keeper, Keeper::Remote) { 2 } else { 3 };
            match poll(fds.get_mut(..watched).unwrap_or_default(), timeout.as_ref()) {
                Ok(0) => match due.take() {
                    Some(Due::Settle) => penfold_sys::memory::forget_code(),
                    Some(Due::Tell(ending)) => slow(ending),
                    None => {}
                },
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.unwaited(errno.into())),
            }
            let [channel, signals, keeper] = fds.map(|fd| !fd.revents().is_empty());
            if signals {
                self.pass_on();
            }
            if !self.pending.is_empty() {
                self.say_pending();
            }
            if channel || keeper {
                match wire::receive::<Answer>(&self.channel) {
                    Ok(Received::Message(Answer::Outcome(outcome))) => {
                        return Ok(Followed::Over(Box::new(self.part(*outcome))));
                    }
                    Ok(Received::Message(Answer::Ending(ending))) => due = Some(Due::Tell(ending)),
                    Ok(Received::Message(Answer::Running)) if until_running => {
                        return Ok(Followed::Running(self.id()));
                    }
                    Ok(Received::Message(Answer::Refused(reason))) => {
                        return Err(FrontError::Refused { id: self.id(), reason });
                    }
                    Ok(Received::Message(_)) => {}
                    Ok(Received::Nothing) if !keeper => {}
                    // The supervisor lives and ends the sandbox; the channel is at its end only when it is dead, too.
                    Ok(Received::Nothing) if matches!(self.keeper, Keeper::Outer { .. }) => outer_dead = true,
                    Ok(Received::Nothing | Received::End) => {
                        return self.keeper_died().map(|outcome| Followed::Over(Box::new(outcome)));
                    }
                    Err(error) => return Err(self.unwaited(error)),
                }
            }
        }
    }

    /// The supervisor is dead and has not said how it ended.
    fn keeper_died(mut self) -> Result<Outcome, FrontError> {
        if matches!(self.keeper, Keeper::Remote) {
            return Err(self.unwaited(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Keeper::Inner { held, .. } = &mut self.keeper
            && let Some(held) = held.take()
        {
            self.dismiss_sweeper();
            return Ok(take_over(*held));
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
            Keeper::Inner { held: Some(held), .. } => held.registry.as_ref(),
            Keeper::Outer { .. } => {
                opened = Registry::open_existing(&self.seen.state_root).ok().flatten();
                opened.as_ref()
            }
            Keeper::Inner { held: None, .. } | Keeper::Remote | Keeper::Refused(_) => None,
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

    /// Says what there is room for. The kernel tells of room once most of the channel is free again.
    fn say_pending(&mut self) {
        while let Some(request) = self.pending.front() {
            match wire::offer(&self.channel, request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
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
        if let Keeper::Inner { pidfd, .. } | Keeper::Outer { pidfd, .. } = &self.keeper {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
        }
    }

    fn request(&mut self, signalled: Signalled) -> Option<Request> {
        let Signalled { signal, from_kernel, sender, carried } = signalled;
        // Our own doing: a record too large for RLIMIT_FSIZE.
        if u32::try_from(rustix::process::getpid().as_raw_nonzero().get()) == Ok(sender) {
            return None;
        }
        let stops = signal == Signal::INT.as_raw() || signal == Signal::TERM.as_raw();
        if stops && self.asked {
            return Some(Request::Kill);
        }
        if stops {
            self.asked = true;
            // Where the group's leader is out of sight its number is 0, which is nobody's to spare.
            let group = Some(penfold_sys::fork::group()).filter(|&group| from_kernel && group != 0);
            let signal = carried.map_or(signal, Signal::as_raw);
            return Some(Request::Stop { signal, spared_group: group, grace_ms: None });
        }
        if signal == Signal::HUP.as_raw() && self.terminal {
            return Some(Request::OwnerGone);
        }
        // What a terminal sends goes to the command as well; an alarm or a limit of the kernel's is for us alone.
        let from_terminal = from_kernel && TERMINAL.iter().any(|sent| sent.as_raw() == signal);
        (!from_terminal).then_some(Request::Forward(signal))
    }

    /// Waits for the supervisors to be gone, too: nothing is left, not even they.
    fn part(&self, outcome: Outcome) -> Outcome {
        if let Keeper::Inner { pid, pidfd, .. } | Keeper::Outer { pid, pidfd } = &self.keeper
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
    fn recover(self) -> Result<Outcome, FrontError> {
        Self::reap();
        let id = self.id();
        let lost = |source| FrontError::Lost { id: id.clone(), source };
        let registry = Registry::open_existing(&self.seen.state_root).ok().flatten();
        let findings = match registry {
            Some(registry) => {
                let record = self.take_record(&registry).map_err(|error| lost(io::Error::other(error)))?;
                match record {
                    Some(record) => recovery::recover(record, self.seen.patience),
                    None => recovery::recover_unrecorded(&id, self.seen.patience),
                }
            }
            None => recovery::recover_unrecorded(&id, self.seen.patience),
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
