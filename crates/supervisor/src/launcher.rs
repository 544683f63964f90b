//! The caller's side of a running sandbox: forwards signals and waits for the outcome.

mod error;
mod exit;
mod hangup;
mod job_control;
mod lost;
mod orphans;
mod progress;
mod settings;
mod signals;
mod stdin;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};

pub use self::error::LauncherError;
use self::exit::{command_succeeded, still_living};
pub(crate) use self::hangup::watches_hangup;
use self::orphans::Sweep;
use self::progress::DueAction;
pub use self::progress::LauncherProgress;
pub(crate) use self::settings::{InterruptMeaning, LauncherSettings};
pub(crate) use self::signals::LauncherSignals;
pub(crate) use self::stdin::StdinWatch;
use crate::outcome::Outcome;
use crate::poll::poll_or_pause;
use crate::sandbox_parts::SandboxParts;
use crate::terminal::of_caller::open_terminal;
use crate::wire::{self, Answer, ReceiveResult, Request};

/// A running sandbox, from the side of the process that started it.
#[derive(Debug)]
pub struct Launcher {
    supervisor: SupervisorHandle,
    channel: OwnedFd,
    settings: LauncherSettings,
    signals: SignalFd,
    stop_requested: bool,
    /// The person at the terminal has already seen that the command handles SIGINT itself.
    passed_on_shown: bool,
    /// The requests that did not fit into the channel, each once.
    pending: VecDeque<Request>,
    /// A send failed for lack of kernel memory; it is retried after [`RETRY_DELAY`].
    no_memory: bool,
    sweep: Sweep,
    /// The reason why the sandbox cannot be waited for and is ended.
    broken: Option<String>,
}

/// The state of a detached sandbox after its start.
#[derive(Debug)]
pub enum DetachedStart {
    /// The command runs. The sandbox ends with this process until [`Launcher::detach`].
    Running(Box<Launcher>),
    /// The sandbox has ended, and its id was never printed.
    Over(Box<Outcome>),
}

/// The child of this process that represents the sandbox.
pub(crate) enum SupervisorHandle {
    /// The supervisor. This process is the second subreaper and takes over if the supervisor is killed.
    Direct {
        /// The pid of the supervisor.
        pid: Pid,
        /// The pidfd of the supervisor.
        pidfd: OwnedFd,
        /// The resources of the sandbox; `None` after a takeover.
        parts: Option<Box<SandboxParts>>,
    },
    /// The standby, which takes over without the launcher.
    Standby {
        /// The pid of the standby.
        pid: Pid,
        /// The pidfd of the standby; `None` if `pidfd_open(2)` failed.
        pidfd: Option<OwnedFd>,
    },
    /// An exec supervisor, which is no child of this process.
    Remote,
    /// No process was started.
    Refused(Box<Outcome>),
}

impl std::fmt::Debug for SupervisorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SupervisorHandle::Direct { pid, .. } => f.debug_tuple("Direct").field(pid).finish(),
            SupervisorHandle::Standby { pid, .. } => f.debug_tuple("Standby").field(pid).finish(),
            SupervisorHandle::Remote => f.write_str("Remote"),
            SupervisorHandle::Refused(outcome) => f.debug_tuple("Refused").field(outcome).finish(),
        }
    }
}

/// The result of [`Launcher::follow`].
enum FollowResult {
    /// The detached sandbox runs.
    Running,
    /// The sandbox has ended.
    Over(Box<Outcome>),
}

/// The delay before an operation is retried for which the kernel had no memory.
const RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The number of failed receives from the supervisor that are tolerated. Each one was retried for a second before.
const MAX_RECV_FAILURES: u32 = 2;
impl Launcher {
    /// Creates the client's side of an exec, over `channel`. The signals in `left` belong to the caller.
    ///
    /// # Errors
    /// When the signalfd cannot be created.
    pub fn of_exec(channel: OwnedFd, id: String, left: &[Signal]) -> io::Result<Launcher> {
        signal::block_signals(&SignalSet::of(1..=64))?;
        let settings = LauncherSettings {
            has_former: false,
            id,
            state_root: PathBuf::new(),
            patience: Duration::ZERO,
            scope: None,
            watches_hangup: watches_hangup(),
            terminal: open_terminal(),
            before: None,
            keys: InterruptMeaning::Client,
            stdin: None,
        };
        Ok(Launcher::new(SupervisorHandle::Remote, channel, settings, LauncherSignals::open(left)?))
    }

    pub(crate) fn new(
        supervisor: SupervisorHandle,
        channel: OwnedFd,
        settings: LauncherSettings,
        signals: LauncherSignals,
    ) -> Launcher {
        let LauncherSignals { signals, mask } = signals;
        // If this fails, the `UNHANDLED` signals stay blocked. Only job control is lost, which is no reason to end a
        // sandbox.
        let _ = signal::set_mask(&mask);
        let broken = match &supervisor {
            SupervisorHandle::Standby { pidfd: None, .. } => {
                Some("the supervisor cannot be watched".to_owned())
            }
            _ => None,
        };
        let pending = VecDeque::new();
        Launcher {
            supervisor,
            channel,
            settings,
            signals,
            stop_requested: false,
            passed_on_shown: false,
            pending,
            no_memory: false,
            sweep: Sweep::Due,
            broken,
        }
    }

    /// Returns the short id of the sandbox.
    pub fn id(&self) -> String {
        self.settings.id.clone()
    }

    /// Returns the descriptor from which [`Launcher::wait`] takes its signals, for a caller that waits for something else.
    pub fn signals(&self) -> &SignalFd {
        &self.signals
    }

    /// Returns the state root of the sandbox.
    pub fn state_root(&self) -> &Path {
        &self.settings.state_root
    }

    /// Waits for the end of the sandbox without a limit, and forwards the signals that arrive meanwhile.
    ///
    /// - INT and TERM stop the sandbox the first time and kill it the second time.
    /// - INT from a terminal goes to the leader first.
    /// - HUP counts as the owner's death if there is a terminal: `--on-owner-exit` applies.
    /// - All other signals are forwarded to the leader.
    ///
    /// `slow` is called with the progress when a person has waited long enough to expect news, and tells whether a person reads it.
    ///
    /// # Errors
    /// When the outcome is unknown. Everything that could be ended has been ended.
    pub fn wait(mut self, slow: impl FnMut(LauncherProgress) -> bool) -> Result<Outcome, LauncherError> {
        let before = self.settings.before.take();
        let followed = self.follow(slow, false);
        if let Some(before) = before {
            let outcome = match &followed {
                Ok(FollowResult::Over(outcome)) => Some(&**outcome),
                Ok(FollowResult::Running) | Err(_) => None,
            };
            before.restore(
                &outcome.map(still_living).unwrap_or_default(),
                !outcome.is_some_and(command_succeeded),
            );
        }
        match followed? {
            FollowResult::Over(outcome) => Ok(*outcome),
            // Only `Answer::Running` with `until_running` gives this, and `until_running` is false here.
            FollowResult::Running => Err(LauncherError::Detached { id: self.id() }),
        }
    }

    /// Waits until the command of a detached sandbox runs; returns the outcome if it does not. A signal that arrives
    /// meanwhile ends the sandbox.
    ///
    /// # Errors
    /// When the outcome is unknown. Everything that could be ended has been ended.
    pub fn wait_running(mut self) -> Result<DetachedStart, LauncherError> {
        match self.follow(|_| false, true) {
            Ok(FollowResult::Running) => Ok(DetachedStart::Running(Box::new(self))),
            Ok(FollowResult::Over(outcome)) => {
                self.forget();
                Ok(DetachedStart::Over(outcome))
            }
            Err(LauncherError::Wait { source, .. }) => {
                let outcome = self.abandon(&source.to_string())?;
                Ok(DetachedStart::Over(Box::new(outcome)))
            }
            Err(error) => Err(error),
        }
    }

    /// Detaches the sandbox from this process, so that it continues without a launcher.
    ///
    /// Call this before the id is printed. If the launcher is killed in between, the sandbox ends, and no printed id
    /// refers to it.
    ///
    /// # Errors
    /// Those of send(2). The sandbox then still ends with this process.
    pub fn detach(&self) -> io::Result<()> {
        match wire::send_message(&self.channel, &Request::LetGo) {
            // The sandbox has ended meanwhile, so there is nothing to detach.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn follow(
        &mut self,
        mut slow: impl FnMut(LauncherProgress) -> bool,
        until_running: bool,
    ) -> Result<FollowResult, LauncherError> {
        if let Some(reason) = self.broken.take() {
            return self.end_broken(reason);
        }
        let mut due = Some(DueAction::FreeMemory);
        let mut standby_dead = false;
        let mut failures = 0;
        loop {
            if let SupervisorHandle::Refused(outcome) = &self.supervisor {
                return Ok(FollowResult::Over(outcome.clone()));
            }
            let (polled, [channel, signals, supervisor]) = self.poll_events(standby_dead, due);
            let mut blind = false;
            match polled {
                Ok(0) if self.no_memory => {}
                Ok(0) => due = self.act(due.take(), &mut slow),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // After a failed poll(2) all sources are tried without it: giving up would end the sandbox.
                Err(_) => blind = true,
            }
            let (channel, signals) = (channel || blind, signals || blind);
            if signals {
                self.forward_signals();
            }
            if !self.pending.is_empty() {
                self.send_pending();
            }
            if channel || supervisor {
                let received = wire::receive_message::<Answer>(&self.channel);
                failures = if received.is_err() { failures + 1 } else { 0 };
                match received {
                    Ok(ReceiveResult::Message(Answer::Outcome(outcome))) => {
                        self.sweep_orphans();
                        return Ok(FollowResult::Over(Box::new(self.wait_for_exit(*outcome))));
                    }
                    Ok(ReceiveResult::Message(Answer::Running)) if until_running => {
                        self.sweep_orphans();
                        return Ok(FollowResult::Running);
                    }
                    Ok(ReceiveResult::Message(Answer::Refused(reason))) => {
                        return Err(LauncherError::Refused { id: self.id(), reason });
                    }
                    Ok(ReceiveResult::Message(Answer::Suspended(leader))) => self.stop_with(leader),
                    Ok(ReceiveResult::Message(answer)) => due = self.progress_after(&answer, due),
                    Ok(ReceiveResult::Nothing) if !supervisor => {}
                    // The supervisor still lives: the channel reaches EOF only with its death.
                    Ok(ReceiveResult::Nothing)
                        if matches!(self.supervisor, SupervisorHandle::Standby { .. }) =>
                    {
                        standby_dead = true;
                    }
                    Ok(ReceiveResult::Nothing | ReceiveResult::End) => {
                        return self.supervisor_died().map(|outcome| FollowResult::Over(Box::new(outcome)));
                    }
                    Err(error) if failures > MAX_RECV_FAILURES => return Err(self.wait_error(error)),
                    Err(_) => {
                        let _ = rustix::thread::nanosleep(&RETRY_DELAY);
                    }
                }
            }
        }
    }

    /// Waits for an event of the channel, of a signal, or of the child's pidfd. A hang-up of a watched standard input or of the
    /// terminal is handled here.
    fn poll_events(
        &mut self,
        standby_dead: bool,
        due: Option<DueAction>,
    ) -> (rustix::io::Result<usize>, [bool; 3]) {
        let stdin_due = self.settings.stdin.as_ref().and_then(|watch| watch.timeout());
        let timeout = due.map(DueAction::after).into_iter().chain(stdin_due).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let timeout = if self.no_memory { Some(RETRY_DELAY) } else { timeout };
        let pidfd = match &self.supervisor {
            SupervisorHandle::Direct { pidfd, .. } | SupervisorHandle::Standby { pidfd: Some(pidfd), .. } => {
                Some(pidfd)
            }
            SupervisorHandle::Standby { pidfd: None, .. }
            | SupervisorHandle::Remote
            | SupervisorHandle::Refused(_) => None,
        };
        let pidfd = pidfd.filter(|_| !standby_dead);
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.pending.is_empty() && !self.no_memory);
        let stdin = self.settings.stdin.as_ref().and_then(|watch| watch.open());
        let terminal = self.settings.terminal.as_ref().filter(|_| self.settings.watches_hangup);
        // The channel stands in for a missing descriptor, whose result is then masked.
        let mut fds = [
            PollFd::new(&self.channel, flags),
            PollFd::new(&self.signals, PollFlags::IN),
            pidfd.map_or(PollFd::new(&self.channel, PollFlags::empty()), |fd| PollFd::new(fd, PollFlags::IN)),
            stdin.map_or(PollFd::new(&self.channel, PollFlags::empty()), StdinWatch::poll_fd),
            PollFd::new(terminal.unwrap_or(&self.channel), PollFlags::empty()),
        ];
        let is_used = [true, true, pidfd.is_some(), stdin.is_some(), terminal.is_some()];
        let watched = is_used.iter().rposition(|used| *used).map_or(0, |last| last + 1);
        let polled = poll_or_pause(fds.get_mut(..watched).unwrap_or_default(), timeout.as_ref());
        let mut used = is_used.into_iter();
        let ready = fds.map(|fd| used.next().unwrap_or(false) && !fd.revents().is_empty());
        let [channel, signals, supervisor, stdin, terminal] = ready;
        // A request that has become due is an event like others.
        let polled = if self.follow_stdin(stdin) { polled.map(|ready| ready.max(1)) } else { polled };
        if terminal {
            self.terminal_hung_up();
        }
        (polled, [channel, signals, supervisor])
    }

    fn wait_error(&self, source: io::Error) -> LauncherError {
        LauncherError::Wait { id: self.id(), source }
    }
}
