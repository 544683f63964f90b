//! Serves the requests of clients.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::SealFlags;

use super::{SessionHost, ShellPhase};
use crate::command::{QueuedCommand, not_begun};
use crate::connections::ClientMessage;
use crate::dir::write_file;
use crate::protocol::{
    EndKind, GRACE_MS, LARGEST_RUN, LONGEST_QUEUE, OUTPUT_LIMIT, SessionAnswer, SessionRequest, ShellCommand,
};
use crate::script::SessionPaths;

impl SessionHost {
    pub(super) fn serve(&mut self, message: ClientMessage) {
        let ClientMessage { client, request, fds } = message;
        let answer = match request {
            SessionRequest::Run => match self.accept(client, fds) {
                Ok(number) => SessionAnswer::Accepted { number },
                Err(reason) => SessionAnswer::Refused(reason),
            },
            SessionRequest::Watch { number } => self.watch(client, number),
            SessionRequest::Interrupt { number } => self.interrupt_number(number),
            SessionRequest::Snapshot => {
                self.snapshot_clients.push(client);
                return self.answer_snapshots();
            }
            SessionRequest::Forget { number } => self.forget(number),
        };
        self.connections.answer(client, &answer);
    }

    /// Answers the requests for a snapshot, unless the shell is about to write its state: a client that has received the
    /// end of a command gets the state after this command.
    pub(super) fn answer_snapshots(&mut self) {
        if matches!(self.phase, ShellPhase::Starting(_) | ShellPhase::Settling(..)) {
            return;
        }
        for client in std::mem::take(&mut self.snapshot_clients) {
            self.connections.answer(client, &SessionAnswer::Snapshot(self.snapshot.clone()));
        }
    }

    /// Puts a command into the queue. Its text goes to its file, so that a long queue needs no memory.
    fn accept(&mut self, client: u64, fds: Vec<OwnedFd>) -> Result<u64, String> {
        if self.queue.len() >= LONGEST_QUEUE {
            return Err(format!("{LONGEST_QUEUE} commands wait already"));
        }
        let fd = fds.into_iter().next().ok_or("no description came with the request")?;
        let run =
            read(fd).map_err(|error| format!("the description of the command is not usable: {error}"))?;
        run.flaw().map_or(Ok(()), Err)?;
        let number = self.last + 1;
        let is_wrapped = self.write_command(number, &run).map_err(|error| {
            let _ = self.dir.remove_command(number);
            format!("the command's files cannot be made: {error}")
        })?;
        self.last = number;
        self.queue.push_back(QueuedCommand {
            number,
            is_wrapped,
            timeout: run.timeout_ms.map(Duration::from_millis),
            grace: Duration::from_millis(run.grace_ms.unwrap_or(GRACE_MS)),
            output_limit: run.output_limit.unwrap_or(OUTPUT_LIMIT),
        });
        self.connections.watch(client, number);
        Ok(number)
    }

    /// Writes the files of a command; true if it is wrapped.
    fn write_command(&self, number: u64, run: &ShellCommand) -> io::Result<bool> {
        let dir = self.dir.make_command(number)?;
        write_file(dir.as_fd(), "cmd", format!("{}\n", run.command).as_bytes())?;
        if run.cwd.is_none() && run.env.is_empty() {
            return Ok(false);
        }
        // Of a repeated name, the last value counts.
        let env: BTreeMap<_, _> = run.env.iter().cloned().collect();
        let env: Vec<_> = env.into_iter().collect();
        write_file(dir.as_fd(), "pre", &SessionPaths::before(run.cwd.as_deref(), &env))?;
        write_file(dir.as_fd(), "post", &SessionPaths::after(run.cwd.is_some(), &env))?;
        Ok(true)
    }

    fn watch(&mut self, client: u64, number: u64) -> SessionAnswer {
        if let Some(end) = self.dir.end(number) {
            return SessionAnswer::Ended(Box::new(end));
        }
        if !self.is_pending(number) {
            return SessionAnswer::Refused(format!("there is no command {number}"));
        }
        if !self.connections.watch(client, number) {
            return SessionAnswer::Refused("this client watches too many commands".to_owned());
        }
        if self.is_running(number) {
            SessionAnswer::Began { number }
        } else {
            SessionAnswer::Accepted { number }
        }
    }

    fn interrupt_number(&mut self, number: u64) -> SessionAnswer {
        if self.is_running(number) {
            self.interrupt(EndKind::Interrupted);
            return SessionAnswer::Done;
        }
        let place = self.queue.iter().position(|queued| queued.number == number);
        if place.and_then(|place| self.queue.remove(place)).is_some() {
            self.end(not_begun(number, EndKind::Interrupted, 130, None));
            return SessionAnswer::Done;
        }
        SessionAnswer::Refused(format!("command {number} does not run"))
    }

    fn forget(&mut self, number: u64) -> SessionAnswer {
        if self.is_pending(number) {
            return SessionAnswer::Refused(format!("command {number} has not ended"));
        }
        self.kept.retain(|kept| *kept != number);
        if matches!(self.phase, ShellPhase::Settling(settling, _) if settling == number) {
            self.forgotten = Some(number);
            return SessionAnswer::Done;
        }
        match self.dir.remove_command(number) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                SessionAnswer::Refused(format!("the files of command {number} cannot be removed: {error}"))
            }
            _ => SessionAnswer::Done,
        }
    }

    /// Removes the files of a forgotten command, unless the shell has yet to restore directory and environment from them.
    pub(super) fn remove_forgotten(&mut self) {
        if !matches!(self.phase, ShellPhase::Settling(..))
            && let Some(number) = self.forgotten.take()
        {
            let _ = self.dir.remove_command(number);
        }
    }

    fn is_running(&self, number: u64) -> bool {
        matches!(&self.phase, ShellPhase::Busy(running) if running.number == number)
    }

    fn is_pending(&self, number: u64) -> bool {
        self.is_running(number) || self.queue.iter().any(|queued| queued.number == number)
    }
}

/// Reads a description that no process can change, or make the host wait for.
fn read(fd: OwnedFd) -> io::Result<ShellCommand> {
    let sealed = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    if !rustix::fs::fcntl_get_seals(&fd)?.contains(sealed) {
        return Err(io::Error::other("it is not sealed"));
    }
    if u64::try_from(rustix::fs::fstat(&fd)?.st_size).is_ok_and(|size| size > LARGEST_RUN) {
        return Err(io::Error::other("it is too long"));
    }
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
    let mut text = Vec::new();
    File::from(fd).take(LARGEST_RUN).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
