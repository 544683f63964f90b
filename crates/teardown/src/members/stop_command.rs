//! The stop command: a program that asks the members to end, before the polite signal does.
//!
//! It runs as a member: a child of this process in the leaf, in a session of its own, with `/dev/null` as its streams.

use std::io;
use std::os::fd::AsFd as _;

use penfold_process::Pid;
use penfold_sys::child::Exit;
use penfold_sys::launch::{Launch, OwnStdio, Program, ReleaseResult, launch_program};
use rustix::fs::{Mode, OFlags};

use super::{LeafState, Teardown};

/// Completes the program of a stop command just before its start, by what exists only then.
pub type Completion = Box<dyn FnMut(&mut Program) -> io::Result<()> + Send>;

/// The stop command of a sandbox.
pub(super) struct StopCommand {
    program: Program,
    complete: Option<Completion>,
    /// Set once the command was started.
    launched: Option<Launch>,
    /// Whether the command may execute its program.
    is_released: bool,
    /// Set once the command was reaped.
    exit: Option<Exit>,
}

impl std::fmt::Debug for StopCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StopCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

/// The state of a stop command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCommandState {
    /// It runs.
    Running,
    /// It has ended with 0: it has asked, and the members may need time.
    Asked,
    /// It has failed.
    Failed(StopCommandFailure),
}

/// How a stop command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCommandFailure {
    /// It could not join the leaf, or died before.
    NotStarted,
    /// It could not be executed, with this error number.
    NotExecuted(i32),
    /// It has ended otherwise than with 0.
    Ended(Exit),
}

impl std::fmt::Display for StopCommandFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StopCommandFailure::NotStarted => f.write_str("it cannot be started"),
            StopCommandFailure::NotExecuted(errno) => {
                write!(f, "it cannot be executed: {}", io::Error::from_raw_os_error(*errno))
            }
            StopCommandFailure::Ended(Exit::Code(code)) => write!(f, "it exited with {code}"),
            StopCommandFailure::Ended(Exit::Signal(signal)) => write!(f, "it was killed by signal {signal}"),
        }
    }
}

/// Adds to an error what was tried.
fn failed(tried: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {tried}: {error}"))
}

impl Teardown {
    /// Sets a program that asks the members to end, before the polite signal does. If `complete` fails, the program is not run.
    pub fn stop_by(&mut self, program: Program, complete: Option<Completion>) {
        self.stop_command =
            Some(StopCommand { program, complete, launched: None, is_released: false, exit: None });
    }

    /// Starts the stop command; false if there is none.
    ///
    /// # Errors
    /// When the command could not be started; no process of it is left then.
    pub(crate) fn start_stop_command(&mut self) -> io::Result<bool> {
        if self.stop_command.is_some() {
            // The command is a member: it could not run in a frozen leaf.
            self.thaw();
        }
        let Some(command) = &mut self.stop_command else { return Ok(false) };
        let file = match &self.leaf {
            LeafState::Live(leaf) => Some(leaf.processes_file().map_err(failed("open the cgroup"))?),
            LeafState::None | LeafState::Killed(_) => None,
        };
        if let Some(complete) = &mut command.complete {
            complete(&mut command.program)?;
        }
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed("open `/dev/null`")(errno.into()))?;
        let (output, error) = (null.try_clone()?, null.try_clone()?);
        command.program.own_session(OwnStdio { input: null, output, error, terminal: false });
        // The command writes itself into the leaf: a clone into a leaf is killed at birth where Linux 6.14 has its trap.
        let launched = launch_program(&mut command.program, None, file.as_ref().map(|file| file.as_fd()));
        command.program.close_given();
        command.launched = Some(launched.map_err(failed("make its process"))?);
        Ok(true)
    }

    /// Lets the stop command execute its program once it is ready. Never waits: other members may stop it, and it is born
    /// frozen in a frozen leaf.
    fn release_stop_command(&mut self) {
        let Some(StopCommand { launched: Some(launched), is_released, .. }) = &mut self.stop_command else {
            return;
        };
        if !*is_released && matches!(launched.is_ready(), Ok(Some(true))) {
            // A child that has died meanwhile is reaped as one that was not started.
            *is_released = launched.release().is_ok();
        }
    }

    /// Returns the state of a stop command that was started.
    pub(crate) fn stop_command_state(&mut self) -> Option<StopCommandState> {
        self.release_stop_command();
        let command = self.stop_command.as_ref()?;
        let launched = command.launched.as_ref()?;
        Some(match command.exit {
            None => StopCommandState::Running,
            Some(Exit::Code(0)) => StopCommandState::Asked,
            Some(_) if !command.is_released => StopCommandState::Failed(StopCommandFailure::NotStarted),
            Some(exit) => StopCommandState::Failed(match launched.outcome() {
                Ok(Some(ReleaseResult::Failed(failure))) => StopCommandFailure::NotExecuted(failure.errno),
                _ => StopCommandFailure::Ended(exit),
            }),
        })
    }

    /// Tells whether a process belongs to the stop command, and is no stray: the command itself, or its session.
    pub(super) fn is_of_stop_command(&self, pid: Pid, session: Option<i32>) -> bool {
        let Some(StopCommand { launched: Some(launched), exit, .. }) = &self.stop_command else {
            return false;
        };
        // Once it is reaped, its pid may be that of another process. A session keeps its number until it is empty.
        (exit.is_none() && launched.pid() == pid) || session == Some(launched.pid().as_raw_pid())
    }

    /// Notes the exit of a child that is the stop command.
    pub(super) fn note_stop_command(&mut self, pid: Pid, exit: Exit) {
        if self.is_of_stop_command(pid, None)
            && let Some(command) = &mut self.stop_command
        {
            command.exit = Some(exit);
        }
    }
}
