//! A client's connection to a session host.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_state::Files;
use penfold_state::log::{LogError, LogPosition, LogReader};
use penfold_state::names::is_name;
use penfold_state::wire::{self, ReceiveResult};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::dir::{self, COMMANDS, SESSIONS, open_dir};
use crate::protocol::{CommandEnd, SessionAnswer, SessionRequest, ShellCommand, ShellSnapshot};

/// The time that a request other than a wait may take. A host beside a storm of processes may not be scheduled for
/// more than a second.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause between two tries to connect to a host that has not made its socket yet, from the first to the longest.
const FIRST: Duration = Duration::from_micros(100);
const LAST: Duration = Duration::from_millis(2);

/// Why a client cannot talk to a session host.
#[derive(Debug, thiserror::Error)]
pub enum SessionClientError {
    /// The session does not exist, or its host is gone.
    #[error("session {session:?} has no host")]
    Missing {
        /// The name of the session.
        session: String,
    },
    /// The host has not answered in time.
    #[error("the host of session {session:?} does not answer")]
    Silent {
        /// The name of the session.
        session: String,
    },
    /// The host closed the connection: it is gone, or has too many clients.
    #[error("the host of session {session:?} has closed the connection")]
    Gone {
        /// The name of the session.
        session: String,
    },
    /// The deadline of the caller passed.
    #[error("command {number} has not ended in time")]
    TimedOut {
        /// The number of the command.
        number: u64,
    },
    /// The host refuses the request.
    #[error("{0}")]
    Refused(String),
    /// The connection cannot be used.
    #[error("cannot {act} session {session:?}")]
    Io {
        /// The operation.
        act: &'static str,
        /// The name of the session.
        session: String,
        /// The cause.
        source: io::Error,
    },
}

/// A connection to a session host.
#[derive(Debug)]
pub struct SessionClient {
    session: String,
    dir: OwnedFd,
    path: PathBuf,
    socket: OwnedFd,
    shell_pid: i32,
    /// The ends of watched commands that came while the client waited for something else; `None` until the end came.
    watched: HashMap<u64, Option<CommandEnd>>,
}

impl SessionClient {
    /// Connects to a session of a sandbox within `limit`; waits for a host that has not made its socket yet.
    ///
    /// # Errors
    /// When there is no host, or it does not answer.
    pub fn connect(
        files: &Files,
        session: &str,
        limit: Duration,
    ) -> Result<SessionClient, SessionClientError> {
        SessionClient::connect_in(files.dir(), files.path(), session, limit, || files.has_ended())
    }

    /// Like [`SessionClient::connect`], in a directory that need not be a record. `has_ended` tells that no host will come.
    ///
    /// # Errors
    /// When there is no host, or it does not answer.
    pub fn connect_in(
        record: BorrowedFd<'_>,
        path: &Path,
        session: &str,
        limit: Duration,
        has_ended: impl Fn() -> bool,
    ) -> Result<SessionClient, SessionClientError> {
        let until = Instant::now() + limit;
        let mut pause = FIRST;
        loop {
            match dial(record, session) {
                Ok((dir, socket)) => {
                    let mut client = SessionClient {
                        session: session.to_owned(),
                        dir,
                        path: path.join(SESSIONS).join(session),
                        socket,
                        shell_pid: 0,
                        watched: HashMap::new(),
                    };
                    client.shell_pid = client.greet(until)?;
                    return Ok(client);
                }
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => {
                    if has_ended() || Instant::now() >= until {
                        return Err(SessionClientError::Missing { session: session.to_owned() });
                    }
                    pause = (pause * 2).min(LAST);
                    let _ = rustix::event::poll(&mut [], Timespec::try_from(pause).ok().as_ref());
                }
                Err(errno) => {
                    let session = session.to_owned();
                    return Err(SessionClientError::Io { act: "connect to", session, source: errno.into() });
                }
            }
        }
    }

    fn greet(&self, until: Instant) -> Result<i32, SessionClientError> {
        match self.receive(until)? {
            Some(SessionAnswer::Hello { shell_pid, .. }) => Ok(shell_pid),
            Some(_) => Err(self.io("greet", io::ErrorKind::InvalidData.into())),
            None => Err(SessionClientError::Silent { session: self.session.clone() }),
        }
    }

    /// Returns the pid of the shell when the client connected, in the sandbox's pid namespace; 0 if there was none.
    pub fn shell_pid(&self) -> i32 {
        self.shell_pid
    }

    /// Returns the directory of the session.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a command to the shell and returns its number. The command runs after those that wait, and goes on without
    /// this client.
    ///
    /// # Errors
    /// When the command cannot be run, or too many wait.
    pub fn run(&mut self, run: &ShellCommand) -> Result<u64, SessionClientError> {
        if let Some(flaw) = run.flaw() {
            return Err(SessionClientError::Refused(flaw));
        }
        let spec = sealed(run).map_err(|source| self.io("describe a command to", source))?;
        self.send(&SessionRequest::Run, &[spec.as_fd()])?;
        loop {
            match self.answer()? {
                SessionAnswer::Accepted { number } => {
                    self.watched.entry(number).or_insert(None);
                    return Ok(number);
                }
                other => self.unexpected(other)?,
            }
        }
    }

    /// Waits for the end of a command, also of one that another client has given to the shell.
    ///
    /// # Errors
    /// [`SessionClientError::TimedOut`] when the command has not ended by then; the command goes on. [`SessionClientError::Gone`] when
    /// the host is gone: then the command will have no end.
    pub fn wait_end(
        &mut self,
        number: u64,
        deadline: Option<Instant>,
    ) -> Result<CommandEnd, SessionClientError> {
        if !self.watched.contains_key(&number) {
            self.send(&SessionRequest::Watch { number }, &[])?;
            self.watched.insert(number, None);
            // Messages about other commands may come first.
            loop {
                match self.answer()? {
                    SessionAnswer::Accepted { number: answered }
                    | SessionAnswer::Began { number: answered }
                        if answered == number =>
                    {
                        break;
                    }
                    SessionAnswer::Refused(reason) => {
                        self.watched.remove(&number);
                        return Err(SessionClientError::Refused(reason));
                    }
                    other => {
                        let is_end = matches!(&other, SessionAnswer::Ended(end) if end.number == number);
                        self.note(other);
                        if is_end {
                            break;
                        }
                    }
                }
            }
        }
        loop {
            if let Some(Some(_)) = self.watched.get(&number)
                && let Some(Some(end)) = self.watched.remove(&number)
            {
                return Ok(end);
            }
            let far = Instant::now() + Duration::from_hours(1);
            match self.receive(deadline.unwrap_or(far)) {
                Ok(Some(answer)) => self.note(answer),
                Ok(None) if deadline.is_some() => return Err(SessionClientError::TimedOut { number }),
                Ok(None) => {}
                // The end is on disk before it is sent.
                Err(error) => return self.end(number).ok_or(error),
            }
        }
    }

    /// Begins to end a command; one that waits is not run. Its end comes later.
    ///
    /// # Errors
    /// When the command neither runs nor waits.
    pub fn interrupt(&mut self, number: u64) -> Result<(), SessionClientError> {
        self.request(&SessionRequest::Interrupt { number })
    }

    /// Removes the output and the end of a command that has ended.
    ///
    /// # Errors
    /// When the command has not ended.
    pub fn forget(&mut self, number: u64) -> Result<(), SessionClientError> {
        self.request(&SessionRequest::Forget { number })
    }

    /// Returns the state of the shell after the last command.
    ///
    /// # Errors
    /// When the host does not answer.
    pub fn snapshot(&mut self) -> Result<ShellSnapshot, SessionClientError> {
        self.send(&SessionRequest::Snapshot, &[])?;
        loop {
            match self.answer()? {
                SessionAnswer::Snapshot(snapshot) => return Ok(snapshot),
                other => self.unexpected(other)?,
            }
        }
    }

    /// Returns the path of a snapshot's state: a script that sets the exported variables, functions and aliases.
    pub fn state_path(&self, snapshot: &ShellSnapshot) -> PathBuf {
        self.path.join(format!("state.{}", snapshot.number))
    }

    /// Returns the end of a command as the disk has it; `None` if the command has not ended, or is forgotten.
    pub fn end(&self, number: u64) -> Option<CommandEnd> {
        dir::read_end(self.command_dir(number).ok()?.as_fd()).ok()
    }

    /// Opens the directory of a command, which has its log.
    ///
    /// # Errors
    /// When the command is unknown or forgotten.
    pub fn command_dir(&self, number: u64) -> io::Result<OwnedFd> {
        let commands = open_dir(self.dir.as_fd(), COMMANDS)?;
        Ok(open_dir(commands.as_fd(), &number.to_string())?)
    }

    /// Reads the output of a command. There is no log before the command has begun.
    ///
    /// # Errors
    /// When there is no log, or it cannot be read.
    pub fn log(&self, number: u64, from: LogPosition) -> Result<LogReader, LogError> {
        let command = self.command_dir(number).map_err(|_| LogError::Missing)?;
        LogReader::open(command.as_fd(), from)
    }

    /// Sends a request whose answer is [`SessionAnswer::Done`].
    fn request(&mut self, request: &SessionRequest) -> Result<(), SessionClientError> {
        self.send(request, &[])?;
        loop {
            match self.answer()? {
                SessionAnswer::Done => return Ok(()),
                other => self.unexpected(other)?,
            }
        }
    }

    fn unexpected(&mut self, answer: SessionAnswer) -> Result<(), SessionClientError> {
        if let SessionAnswer::Refused(reason) = answer {
            return Err(SessionClientError::Refused(reason));
        }
        self.note(answer);
        Ok(())
    }

    /// Keeps an end for a later call.
    fn note(&mut self, answer: SessionAnswer) {
        if let SessionAnswer::Ended(end) = answer {
            self.watched.insert(end.number, Some(*end));
        }
    }

    fn send(&self, request: &SessionRequest, fds: &[BorrowedFd<'_>]) -> Result<(), SessionClientError> {
        let until = Instant::now() + ANSWER;
        loop {
            match wire::send_with(&self.socket, request, fds) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    self.poll(PollFlags::OUT, until);
                }
                Err(error) if error.raw_os_error().is_some_and(is_gone) => {
                    return Err(SessionClientError::Gone { session: self.session.clone() });
                }
                Err(source) => return Err(self.io("ask", source)),
            }
        }
    }

    fn answer(&self) -> Result<SessionAnswer, SessionClientError> {
        let answer = self.receive(Instant::now() + ANSWER)?;
        answer.ok_or_else(|| SessionClientError::Silent { session: self.session.clone() })
    }

    /// Waits for a message; `None` when none comes by then.
    fn receive(&self, until: Instant) -> Result<Option<SessionAnswer>, SessionClientError> {
        loop {
            match wire::receive_message(&self.socket).map_err(|source| self.io("hear", source))? {
                ReceiveResult::Message(answer) => return Ok(Some(answer)),
                ReceiveResult::End => return Err(SessionClientError::Gone { session: self.session.clone() }),
                ReceiveResult::Nothing if Instant::now() >= until => return Ok(None),
                ReceiveResult::Nothing => self.poll(PollFlags::IN, until),
            }
        }
    }

    fn poll(&self, events: PollFlags, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let _ = rustix::event::poll(&mut [PollFd::new(&self.socket, events)], timeout.as_ref());
    }

    fn io(&self, act: &'static str, source: io::Error) -> SessionClientError {
        SessionClientError::Io { act, session: self.session.clone(), source }
    }
}

/// Lets a caller wait for answers together with other descriptors.
impl AsFd for SessionClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn is_gone(error: i32) -> bool {
    [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN].iter().any(|errno| errno.raw_os_error() == error)
}

/// Returns the directory of a session, and a connection to its host.
fn dial(record: BorrowedFd<'_>, session: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    if !is_name(session) {
        return Err(Errno::INVAL);
    }
    let sessions = open_dir(record, SESSIONS)?;
    let dir = open_dir(sessions.as_fd(), session)?;
    let socket = dir::connect_session(dir.as_fd())?;
    let peer = penfold_sys::peer::peer_credentials(socket.as_fd()).map_err(|_| Errno::PERM)?;
    // The directory belongs to the user of the sandbox, if that is another one: only this user could have given it away.
    let owner = rustix::fs::fstat(&dir)?.st_uid;
    if peer.uid == rustix::process::geteuid() || peer.uid.is_root() || peer.uid.as_raw() == owner {
        Ok((dir, socket))
    } else {
        Err(Errno::PERM)
    }
}

/// Writes the description of a command into memory that nobody can change.
fn sealed(run: &ShellCommand) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create(c"penfold-run", flags)?);
    file.write_all(&serde_json::to_vec(run)?)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
