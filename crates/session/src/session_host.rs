//! The program of a session host: one thread, one poll(2), deadlines.

mod commands;
mod requests;
mod shell_life;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs};
use penfold_state::{ExitStatus, Identity};
use penfold_sys::child::{self, PeekResult};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::bell::{BELLS, Bell};
use crate::command::{Fifos, QueuedCommand, RunningCommand};
use crate::connections::Connections;
use crate::dir::SessionDir;
use crate::drains::Drains;
use crate::members::CommandFamily;
use crate::protocol::ShellSnapshot;
use crate::script::SessionPaths;
use crate::shell::Shell;

/// The time that a new shell may take, and the time that a shell may take to write its state.
const READY: Duration = Duration::from_secs(10);
/// The time after which an idle host gives up the memory of its code.
const SETTLE: Duration = Duration::from_millis(20);
/// The number of descriptors that come before the pipes in the list to poll.
const PIPES_AT: usize = 3;
/// The pause after an error that a new look may find gone.
const AGAIN: Duration = Duration::from_millis(50);

/// The session that a host holds.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The directory of the sessions' directory, absolute: the record of the sandbox, or a directory in its jail.
    pub record: PathBuf,
    /// The name of the session.
    pub name: String,
    /// The first directory of each shell; `None` for the host's.
    pub directory: Option<PathBuf>,
    /// The shell; it must be a bash.
    pub shell: OsString,
    /// The user that the host and its shell become, once the host has found its place; `None` for that of this process.
    pub identity: Option<Identity>,
}

/// Why a host cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionHostError {
    /// The session's directory cannot be made.
    #[error("cannot make session {name:?} in {}", record.display())]
    Directory {
        /// The name of the session.
        name: String,
        /// The record.
        record: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The shell cannot be started.
    #[error("cannot start the shell {shell:?}")]
    Shell {
        /// The program.
        shell: OsString,
        /// The cause.
        source: io::Error,
    },
    /// The host cannot prepare itself.
    #[error("cannot {act}")]
    Setup {
        /// The operation.
        act: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// What the shell is doing.
#[derive(Debug)]
enum ShellPhase {
    /// There is no shell. The last start failed; the next command tries again.
    Missing,
    /// The shell prepares itself, until then.
    Starting(Instant),
    /// The shell waits.
    Ready,
    /// The shell runs a command.
    Busy(Box<RunningCommand>),
    /// The command with this number has ended, and the shell writes its state, until then.
    Settling(u64, Instant),
}

/// The state that a new shell begins with.
#[derive(Debug, Clone, Copy)]
enum ShellOrigin {
    /// The host's environment and the first directory.
    Fresh,
    /// The last state that a shell has written.
    LastState,
}

struct SessionHost {
    config: SessionConfig,
    mask: SignalSet,
    dir: SessionDir,
    words: SessionPaths,
    proc: ProcFs,
    signals: SignalFd,
    bells: [Bell; 3],
    connections: Connections,
    shell: Option<Shell>,
    phase: ShellPhase,
    /// The code of a shell that ended without a command. The next command gets it as its end.
    lost: Option<i32>,
    queue: VecDeque<QueuedCommand>,
    /// The number of the last accepted command.
    last: u64,
    /// The status of the last command.
    status: i32,
    /// The state of the shell.
    snapshot: ShellSnapshot,
    /// The clients that wait for the state that the shell writes.
    snapshot_clients: Vec<u64>,
    /// The forgotten command whose files the shell still reads.
    forgotten: Option<u64>,
    family: CommandFamily,
    fifos: Fifos,
    drains: Drains,
    /// The ended commands whose files are kept, the oldest first.
    kept: VecDeque<u64>,
    /// When to give up the memory of the code; `None` when done.
    settle_at: Option<Instant>,
}

/// Holds a session until a signal ends this process.
///
/// The process must have one thread, and no other use for its children. It becomes a subreaper and blocks SIGCHLD.
///
/// # Errors
/// When the session's directory or the first shell cannot be made.
pub fn run_session_host(config: SessionConfig) -> Result<std::convert::Infallible, SessionHostError> {
    let mut host = SessionHost::open(config)?;
    host.start_shell(ShellOrigin::Fresh)
        .map_err(|source| SessionHostError::Shell { shell: host.config.shell.clone(), source })?;
    loop {
        host.turn();
    }
}

impl SessionHost {
    fn open(config: SessionConfig) -> Result<SessionHost, SessionHostError> {
        let setup = |act: &'static str| move |source: io::Error| SessionHostError::Setup { act, source };
        let chld = SignalSet::of([Signal::CHILD.as_raw()]);
        let mask = signal::block_signals(&chld).map_err(setup("block SIGCHLD"))?;
        signal::set_ignored(Signal::PIPE.as_raw());
        signal::set_ignored(Signal::XFSZ.as_raw());
        let signals = SignalFd::open(&chld).map_err(setup("open a signal descriptor"))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| setup("become a subreaper")(errno.into()))?;
        let proc = ProcFs::open().map_err(setup("open /proc"))?;
        let in_record = |source| SessionHostError::Directory {
            name: config.name.clone(),
            record: config.record.clone(),
            source,
        };
        let dir =
            SessionDir::create(&config.record, &config.name, config.identity.as_ref()).map_err(in_record)?;
        let [bell, whole, ready] = BELLS.map(|name| Bell::create(&dir, name).map_err(in_record));
        let bells = [bell?, whole?, ready?];
        let listener = dir.listen().map_err(in_record)?;
        Ok(SessionHost {
            words: SessionPaths::new(&dir.path),
            config,
            mask,
            dir,
            proc,
            signals,
            bells,
            connections: Connections::new(listener),
            shell: None,
            phase: ShellPhase::Missing,
            lost: None,
            queue: VecDeque::new(),
            last: 0,
            status: 0,
            snapshot: ShellSnapshot { number: 0, cwd: Path::new("/").to_owned() },
            snapshot_clients: Vec::new(),
            forgotten: None,
            family: CommandFamily::new(),
            fifos: Fifos::default(),
            drains: Drains::default(),
            kept: VecDeque::new(),
            settle_at: None,
        })
    }

    /// Waits for the next events, and acts on them.
    fn turn(&mut self) {
        let ReadySources { signals, bells, clients, pipes, drains, any } = self.wait();
        if signals {
            self.reap();
        }
        if let ShellPhase::Busy(running) = &mut self.phase {
            running.drain(&self.dir, pipes.into_iter());
        }
        self.drains.drain(drains.into_iter());
        if bells {
            self.take_steps();
        }
        let shell = self.shell_pid().map_or(0, Pid::as_raw_pid);
        for message in self.connections.serve(&clients, shell) {
            self.serve(message);
        }
        self.act_on_deadlines();
        self.finish_if_over();
        self.answer_snapshots();
        self.remove_forgotten();
        self.begin_next();
        let now = Instant::now();
        if any {
            self.settle_at = now.checked_add(SETTLE);
        } else if self.settle_at.is_some_and(|at| at <= now) {
            self.settle_at = None;
            #[cfg(target_pointer_width = "64")]
            penfold_sys::memory::drop_unneeded_pages();
        }
    }

    fn wait(&self) -> ReadySources {
        let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let [bell, _, ready] = &self.bells;
        let mut fds: Vec<PollFd<'_>> = [self.signals.as_fd(), bell.as_fd(), ready.as_fd()].map(read).to_vec();
        let pipes: Vec<BorrowedFd<'_>> = match &self.phase {
            ShellPhase::Busy(running) => running.pipes().collect(),
            _ => Vec::new(),
        };
        fds.extend(pipes.iter().copied().map(read));
        let drains_at = fds.len();
        fds.extend(self.drains.sources().map(read));
        let clients_at = fds.len();
        fds.extend(self.connections.sources());
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Without room for the list, there is only time.
            Err(_) => drop(rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let part = |from: usize, to: usize| ready.get(from..to).unwrap_or_default().to_vec();
        ReadySources {
            any: ready.contains(&true),
            signals: ready.first() == Some(&true),
            bells: part(1, PIPES_AT).contains(&true),
            pipes: part(PIPES_AT, drains_at),
            drains: part(drains_at, clients_at),
            clients: part(clients_at, ready.len()),
        }
    }

    /// Returns the next time at which something is due without an event.
    fn next_deadline(&self) -> Option<Instant> {
        let of_phase = match &self.phase {
            ShellPhase::Missing | ShellPhase::Ready => None,
            ShellPhase::Starting(until) | ShellPhase::Settling(_, until) => Some(*until),
            ShellPhase::Busy(running) => match &running.interrupt {
                Some(interrupt) => Some(interrupt.next_look),
                None => Some(running.timeout_at.map_or(running.check_at, |at| at.min(running.check_at))),
            },
        };
        let again = if self.connections.is_full() { Instant::now().checked_add(AGAIN) } else { None };
        [of_phase, again, self.settle_at].into_iter().flatten().min()
    }

    fn act_on_deadlines(&mut self) {
        let now = Instant::now();
        match &self.phase {
            ShellPhase::Starting(until) | ShellPhase::Settling(_, until) if *until <= now => {
                self.give_up_shell();
            }
            ShellPhase::Busy(_) => self.look_at_running(now),
            _ => {}
        }
    }

    /// Reaps all children that have ended.
    fn reap(&mut self) {
        while let Ok(Some(_)) = self.signals.take() {}
        while let Ok(PeekResult::Ended(pid, exit)) = child::reap_any() {
            if self.shell_pid() == Some(pid) {
                // What the shell has done comes before its end.
                self.take_steps();
                self.finish_if_over();
                self.shell_ended(ExitStatus::from(exit).shell_code());
            }
        }
    }

    fn shell_pid(&self) -> Option<Pid> {
        self.shell.as_ref().map(Shell::pid)
    }
}

/// The sources that poll(2) has found ready.
struct ReadySources {
    any: bool,
    signals: bool,
    bells: bool,
    pipes: Vec<bool>,
    drains: Vec<bool>,
    clients: Vec<bool>,
}
