//! The caller's side of a running sandbox: passes its signals on and waits for the outcome.

mod error;
mod exit;
mod job_control;
mod lost;
mod orphans;
mod progress;
mod saved_modes;
mod settings;
mod signals;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};

pub use self::error::LauncherError;
use self::exit::{forget, succeeded};
use self::progress::Due;
pub use self::progress::Progress;
pub(crate) use self::saved_modes::SavedModes;
pub(crate) use self::settings::{Keys, Settings, terminal};
pub(crate) use self::signals::Hearing;
use crate::outcome::Outcome;
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::wire::{self, Answer, Received, Request};

/// A running sandbox, seen from who started it.
#[derive(Debug)]
pub struct Launcher {
    supervisor: SupervisorHandle,
    channel: OwnedFd,
    settings: Settings,
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

/// A detached sandbox whose command runs, or that is over.
#[derive(Debug)]
pub enum Detached {
    /// It runs, and ends with this process until it is let go.
    Running(Launcher),
    /// It is over; nobody was told its id.
    Over(Box<Outcome>),
}

/// The child of this process that stands for the sandbox.
pub(crate) enum SupervisorHandle {
    /// The supervisor. This process is the standby subreaper and takes over if it is killed.
    Direct {
        /// Its pid.
        pid: Pid,
        /// Its pidfd.
        pidfd: OwnedFd,
        /// What the sandbox owns; none once taken over.
        prepared: Option<Box<Prepared>>,
    },
    /// The standby, which takes over by itself.
    Standby {
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

/// What came of a sandbox.
enum Followed {
    /// It runs, detached.
    Running,
    /// It is over.
    Over(Box<Outcome>),
}

/// How long it takes until something is tried again for which the kernel had no memory.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often it may fail to hear the supervisor, each of which was tried for a second.
const TRIES: u32 = 2;
impl Launcher {
    /// The side of who has asked for a command in a running sandbox, over `channel`. Signals in `left` are not its own.
    ///
    /// # Errors
    /// When signals cannot be waited for.
    pub fn of_exec(channel: OwnedFd, id: String, left: &[Signal]) -> io::Result<Launcher> {
        signal::block(&SignalSet::of(1..=64))?;
        let settings = Settings {
            id,
            state_root: PathBuf::new(),
            patience: Duration::ZERO,
            terminal: terminal(),
            modes: None,
            keys: Keys::Client,
        };
        Ok(Launcher::new(SupervisorHandle::Remote, channel, settings, Hearing::prepare(left)?))
    }

    pub(crate) fn new(
        supervisor: SupervisorHandle,
        channel: OwnedFd,
        settings: Settings,
        hearing: Hearing,
    ) -> Launcher {
        let Hearing { signals, mask } = hearing;
        // Where it fails, what is kept stays blocked: no job control, and nothing that a sandbox would be ended for.
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
        self.settings.id.clone()
    }

    /// Waits for the end of the sandbox, whatever it takes, and passes on the signals that arrive meanwhile.
    ///
    /// INT and TERM stop the sandbox the first time and kill it the second, but for the INT of a terminal, which is the
    /// leader's first; HUP is the owner's end where there is a terminal; all others go to the leader. `slow` is told what
    /// goes on when a person has waited long enough to wonder.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait(mut self, slow: impl FnMut(Progress)) -> Result<Outcome, LauncherError> {
        let modes = self.settings.modes.take();
        let followed = self.follow(slow, false);
        if let Some(modes) = modes
            && !matches!(&followed, Ok(Followed::Over(outcome)) if succeeded(outcome))
        {
            modes.restore();
        }
        match followed? {
            Followed::Over(outcome) => Ok(*outcome),
            // ClientMessage of detached sandboxes only.
            Followed::Running => Err(LauncherError::Detached { id: self.id() }),
        }
    }

    /// Waits until the command of a detached sandbox runs; gives the outcome if it does not. A signal that arrives
    /// meanwhile ends the sandbox.
    ///
    /// # Errors
    /// When the outcome cannot be known; what could be ended has been.
    pub fn wait_running(mut self) -> Result<Detached, LauncherError> {
        match self.follow(|_| (), true) {
            Ok(Followed::Running) => Ok(Detached::Running(self)),
            Ok(Followed::Over(outcome)) => {
                forget(&self.settings.state_root, &self.id());
                Ok(Detached::Over(outcome))
            }
            Err(LauncherError::Wait { source, .. }) => {
                let outcome = self.abandon(&source.to_string())?;
                Ok(Detached::Over(Box::new(outcome)))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets a detached sandbox go on without this process.
    ///
    /// Before its id is told: of a launcher that is killed in between nobody has heard an id that means nothing.
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

    fn follow(
        &mut self,
        mut slow: impl FnMut(Progress),
        until_running: bool,
    ) -> Result<Followed, LauncherError> {
        if let Some(reason) = self.broken.take() {
            return self.end_broken(reason);
        }
        self.sweeper = self.look_for_orphans();
        // What is due when nothing happens meanwhile.
        let mut due = Some(Due::Settle);
        let mut standby_dead = false;
        let mut failures = 0;
        loop {
            let timeout = due.and_then(|due| Timespec::try_from(due.after()).ok());
            let timeout = if self.short { Some(AGAIN) } else { timeout };
            if let SupervisorHandle::Refused(outcome) = &self.supervisor {
                return Ok(Followed::Over(outcome.clone()));
            }
            let (happened, [channel, signals, supervisor]) = self.look(standby_dead, timeout.as_ref());
            let mut blind = false;
            match happened {
                Ok(0) if self.short => {}
                Ok(0) => match due.take() {
                    Some(Due::Settle) => penfold_sys::memory::drop_text_pages(),
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
            if channel || supervisor {
                let received = wire::receive::<Answer>(&self.channel);
                failures = if received.is_err() { failures + 1 } else { 0 };
                match received {
                    Ok(Received::Message(Answer::Outcome(outcome))) => {
                        return Ok(Followed::Over(Box::new(self.part(*outcome))));
                    }
                    Ok(Received::Message(Answer::Running)) if until_running => return Ok(Followed::Running),
                    Ok(Received::Message(Answer::Refused(reason))) => {
                        return Err(LauncherError::Refused { id: self.id(), reason });
                    }
                    Ok(Received::Message(Answer::LeaderEnded)) => self.say_all(),
                    Ok(Received::Message(Answer::Suspended(leader))) => self.stop_as(leader),
                    Ok(Received::Message(answer)) => due = self.wonder(&answer).or(due),
                    Ok(Received::Nothing) if !supervisor => {}
                    // The supervisor lives and ends the sandbox; the channel is at its end only when it is dead, too.
                    Ok(Received::Nothing) if matches!(self.supervisor, SupervisorHandle::Standby { .. }) => {
                        standby_dead = true;
                    }
                    Ok(Received::Nothing | Received::End) => {
                        return self.supervisor_died().map(|outcome| Followed::Over(Box::new(outcome)));
                    }
                    Err(error) if failures > TRIES => return Err(self.unwaited(error)),
                    Err(_) => {
                        let _ = rustix::thread::nanosleep(&AGAIN);
                    }
                }
            }
        }
    }

    /// Waits until something happens: to the channel, to this process, to its child.
    fn look(&self, standby_dead: bool, timeout: Option<&Timespec>) -> (rustix::io::Result<usize>, [bool; 3]) {
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

    fn unwaited(&self, source: io::Error) -> LauncherError {
        LauncherError::Wait { id: self.id(), source }
    }
}
