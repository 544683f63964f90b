//! The commands of a session: run, interrupt, read the end and the output.

use std::io;
use std::time::{Duration, Instant};

use penfold_session::{CommandEnd, SessionClient, SessionClientError, ShellCommand};
use penfold_state::Files;
use penfold_state::log::{LogError, LogPosition as LogFrom, LogReader};

use super::error::SessionError;
use super::place::{DirectoryPlace, Held};
use super::shell::living_shell;
use crate::drain::Drain;
use crate::records::Outputs;

/// The time that a session host may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The pauses between looks for the begin of a command, from the first to the longest.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(50);

/// A connection to a session host, with the facts that show its end.
#[derive(Debug)]
pub struct ConnectedSession {
    files: Files,
    client: SessionClient,
    name: String,
}

/// What is known of the end of a command.
#[derive(Debug, Clone)]
pub enum CommandState {
    /// It waits or runs.
    Unended,
    /// It has ended.
    Ended(CommandEnd),
    /// Its host is gone, and has written no end.
    Lost,
}

impl ConnectedSession {
    /// Connects to a session of the sandbox.
    ///
    /// # Errors
    /// When there is no such session, or its host does not answer.
    pub fn connect(files: Files, name: String) -> Result<ConnectedSession, SessionError> {
        let place = DirectoryPlace::of(&files)?;
        let holder = if place == DirectoryPlace::InJail {
            living_shell(&files, &name)?.map(|view| view.number)
        } else {
            None
        };
        let held = Held { holder, name: &name };
        let client = match place.connect(&files, held, ANSWER, || true) {
            // A host that has just been started, or whose backlog is full, is connected to a moment later.
            Err(SessionClientError::Missing { .. }) => {
                if living_shell(&files, &name)?.is_none() {
                    return Err(SessionError::Missing { name });
                }
                place.connect(&files, held, ANSWER, || files.has_ended())?
            }
            connected => connected?,
        };
        Ok(ConnectedSession { files, client, name })
    }

    /// Has a command run after those that wait, and returns its number.
    ///
    /// # Errors
    /// When the host refuses the command, or does not answer.
    pub fn run(&mut self, run: &ShellCommand) -> Result<u64, SessionError> {
        Ok(self.client.run(run)?)
    }

    /// Ends a command; the shell goes on with its state. A command that has ended is no error.
    ///
    /// # Errors
    /// When the session has no such command, or its host does not answer.
    pub fn interrupt(&mut self, number: u64) -> Result<(), SessionError> {
        match self.client.interrupt(number) {
            Err(error) if self.client.end(number).is_none() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits for the end of a command.
    ///
    /// # Errors
    /// When the command will have no end.
    pub fn wait_end(&mut self, number: u64) -> Result<CommandEnd, SessionError> {
        Ok(self.client.wait_end(number, None)?)
    }

    /// Tells whether the session has this command: the one that runs, one that waits, or one of the last that have ended.
    pub fn has_command(&self, number: u64) -> bool {
        self.client.command_dir(number).is_ok()
    }

    /// Returns the end of a command, if it was written.
    pub fn end(&self, number: u64) -> Option<CommandEnd> {
        self.client.end(number)
    }

    /// Returns what is known of the end of a command.
    pub fn state(&self, number: u64) -> CommandState {
        if let Some(end) = self.client.end(number) {
            return CommandState::Ended(end);
        }
        let has_no_host = self.client.command_dir(number).is_err()
            || self.files.has_ended()
            || matches!(living_shell(&self.files, &self.name), Ok(None));
        if !has_no_host {
            return CommandState::Unended;
        }
        // The host may have written the end before it went away.
        self.client.end(number).map_or(CommandState::Lost, CommandState::Ended)
    }

    /// Opens the log of a command.
    ///
    /// # Errors
    /// When the command has not begun, or the log cannot be read.
    pub fn log(&self, number: u64, from: LogFrom) -> Result<LogReader, LogError> {
        self.client.log(number, from)
    }

    /// Waits for the log of a command, which is made when the command begins.
    ///
    /// # Errors
    /// When the command will not begin, or the server ends.
    pub fn await_log(&mut self, drain: &Drain, number: u64, from: LogFrom) -> io::Result<LogReader> {
        let mut pause = FIRST;
        loop {
            match self.client.log(number, from) {
                Err(LogError::Missing) => {}
                opened => return opened.map_err(io::Error::other),
            }
            if drain.has_begun() {
                return Err(io::Error::other("the server ends"));
            }
            match self.client.wait_end(number, Instant::now().checked_add(pause)) {
                Ok(_) => return self.client.log(number, from).map_err(io::Error::other),
                Err(SessionClientError::TimedOut { .. }) => pause = (pause * 2).min(LAST),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Returns the beginning of what a command has written to standard output and to standard error, at most `limit` bytes
    /// of each.
    pub fn outputs(&self, number: u64, limit: usize) -> Outputs {
        self.client
            .log(number, LogFrom::Start)
            .map_or_else(|_| Outputs::default(), |log| Outputs::read(log, limit))
    }
}
