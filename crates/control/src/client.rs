//! A client's connection to the supervisor of a sandbox.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::holders::Locks;
use crate::timeout::poll_timeout;
use penfold_state::Files;
use penfold_state::lives::NextLife;
use penfold_state::state::Status;
use penfold_state::wire::{self, Answer, ReceiveResult, Request};

/// The file name of the control socket.
const SOCKET: &str = "control.sock";
/// The time that requests other than stop and kill, such as `exec` and `extend`, wait for an answer. Beside a storm of
/// processes, a healthy supervisor may not be scheduled for more than a second.
pub const ANSWER: Duration = Duration::from_secs(10);
/// The time in which a supervisor exits, or a record is removed, once the sandbox has ended.
const PARTING: Duration = Duration::from_secs(1);
/// The time between two tries to connect to a supervisor whose backlog is full.
const AGAIN: Duration = Duration::from_millis(5);

/// Why a client cannot talk to a supervisor.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SupervisorClientError {
    /// A foreground sandbox has no control socket.
    #[error("sandbox {id} cannot be asked: it runs in the foreground")]
    Foreground {
        /// The id of the sandbox.
        id: String,
    },
    /// The control socket of a detached sandbox was removed.
    #[error("sandbox {id} cannot be asked: its control socket is gone")]
    NoSocket {
        /// The id of the sandbox.
        id: String,
    },
    /// The sandbox has ended.
    #[error("sandbox {id} has ended")]
    Ended {
        /// The id of the sandbox.
        id: String,
    },
    /// The command has failed, and the sandbox waits for its next start.
    #[error("sandbox {id} is waiting for its next start: no command runs now")]
    Waiting {
        /// The id of the sandbox.
        id: String,
    },
    /// Another process has bound the control socket, or another file is in its place.
    #[error("the control socket of sandbox {id} is not to be trusted: {why}")]
    Untrusted {
        /// The id of the sandbox.
        id: String,
        /// The reason for the distrust.
        why: String,
    },
    /// No process listens on the socket.
    #[error("no process listens on the control socket of sandbox {id}")]
    Deserted {
        /// The id of the sandbox.
        id: String,
    },
    /// The supervisor has not answered in time.
    #[error("the supervisor of sandbox {id} does not answer")]
    Silent {
        /// The id of the sandbox.
        id: String,
    },
    /// The supervisor closed the connection before it answered.
    #[error("the supervisor of sandbox {id} is gone")]
    Gone {
        /// The id of the sandbox.
        id: String,
    },
    /// The connection cannot be made or used.
    #[error("cannot talk to the supervisor of sandbox {id}")]
    Io {
        /// The id of the sandbox.
        id: String,
        /// The cause.
        source: Arc<io::Error>,
    },
}

/// Tells whether a sandbox has ended, for a caller whose request failed. An end that is almost complete is waited for: its
/// supervisor writes the report after the leaf is gone, and then exits.
pub fn has_just_ended(files: &Files) -> bool {
    await_end(files, is_almost_over)
}

/// Waits for an end as long as it is near.
fn await_end(files: &Files, is_near: fn(&Files) -> bool) -> bool {
    let until = Instant::now() + PARTING;
    loop {
        if rustix::fs::fstat(files.dir()).is_ok_and(|stat| stat.st_nlink == 0) {
            // A record is removed after a verified end only.
            return true;
        }
        // A held lock outweighs a report: a member may have written the report.
        if files.has_ended() && files.lock().is_free() {
            return files.has_ended_for_good();
        }
        // One that waits for its next life has ended, and goes on.
        if !is_near(files) || files.next_life().is_some() || Instant::now() >= until {
            return false;
        }
        let _ = rustix::event::poll(&mut [], poll_timeout(AGAIN).as_ref());
    }
}

/// Tells whether a sandbox has a report or no leaf any more, or its record is being removed.
fn is_almost_over(files: &Files) -> bool {
    files.has_ended()
        || files.intent().map_or(true, |intent| {
            let leaf = intent.leaf.map(|leaf| leaf.symlink_metadata());
            leaf.is_some_and(|leaf| leaf.is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
        })
}

/// Returns this error of a request, or that the sandbox has ended. A kill ends the supervisor of an exec before the members.
pub fn ended_or(files: &Files, error: SupervisorClientError) -> SupervisorClientError {
    let is_near = |files: &Files| is_almost_over(files) || is_stopping(files);
    if await_end(files, is_near) {
        SupervisorClientError::Ended { id: files.name().to_owned() }
    } else {
        error
    }
}

fn is_stopping(files: &Files) -> bool {
    files.state().is_ok_and(|state| state.is_some_and(|state| state.status == Status::Stopping))
}

/// A connection to a supervisor. No message from it is proof of what it says.
#[derive(Debug)]
pub struct SupervisorClient {
    id: String,
    socket: OwnedFd,
    peer: Option<Pid>,
}

impl SupervisorClient {
    /// Connects to the supervisor of a sandbox and checks its first message, within `limit`.
    ///
    /// # Errors
    /// [`SupervisorClientError::Ended`] when the sandbox has ended, also just now; others when there is no supervisor, it is not
    /// trusted, or it does not answer.
    pub fn connect(files: &Files, limit: Duration) -> Result<SupervisorClient, SupervisorClientError> {
        SupervisorClient::greet(files, limit).map_err(|error| ended_or(files, error))
    }

    fn greet(files: &Files, limit: Duration) -> Result<SupervisorClient, SupervisorClientError> {
        let until = Instant::now() + limit;
        let client = loop {
            if let Some(client) = SupervisorClient::dial(files)? {
                break client;
            }
            if Instant::now() >= until {
                return Err(SupervisorClientError::Silent { id: files.name().to_owned() });
            }
            let _ = rustix::event::poll(&mut [], poll_timeout(AGAIN).as_ref());
        };
        match client.answer(until)? {
            Answer::Hello { id, .. } if id == client.id => {
                let stranger = client.stranger(files).map_err(|error| client.failed(error))?;
                stranger.map_or(Ok(()), |why| Err(client.untrusted(why))).map(|()| client)
            }
            Answer::Hello { id, .. } => Err(client.untrusted(format!("it speaks for {id}"))),
            _ => Err(client.untrusted("its first message is no greeting".to_owned())),
        }
    }

    /// Returns why the listening process is no supervisor, or `None` if it is.
    ///
    /// A supervisor whose standby was killed listens in the name of that dead process until it notices the death. The
    /// dead process may still be unreaped.
    ///
    /// # Errors
    /// When there is no descriptor to look.
    fn stranger(&self, files: &Files) -> io::Result<Option<String>> {
        let Some(pid) = self.peer else {
            let why = "the listening process is in a pid namespace that cannot be seen from here";
            return Ok(Some(why.to_owned()));
        };
        let stat = ProcFs::open().and_then(|mut proc| proc.stat(pid));
        let alive = stat.map_or(true, |stat| stat.is_some_and(|stat| !stat.is_dead()));
        if !alive || Locks::of(&self.id, Some(files), None).are_held_by(pid)? {
            return Ok(None);
        }
        let pid = pid.as_raw_pid();
        // The kernel shows open files only to a process with the same user and group and no fewer privileges,
        // ptrace(2).
        let unseen = std::fs::read_link(format!("/proc/{pid}/exe")).err();
        Ok(Some(match unseen.filter(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            Some(_) => format!("process {pid} listens on it, and runs with another group or more privileges"),
            None => format!("process {pid} listens on it and holds no lock"),
        }))
    }

    /// Connects without waiting; `None` when the backlog is full. The supervisor sends the first message.
    ///
    /// The socket is opened by a descriptor of the very file that was checked. Nobody can exchange it in between, and
    /// its path may have any length.
    pub(crate) fn dial(files: &Files) -> Result<Option<SupervisorClient>, SupervisorClientError> {
        let id = files.name().to_owned();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(files.dir(), SOCKET, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) if files.next_life() == Some(NextLife::Awaited) => {
                return Err(SupervisorClientError::Waiting { id });
            }
            Err(Errno::NOENT) if files.intent().is_ok_and(|intent| intent.detached.is_none()) => {
                return Err(SupervisorClientError::Foreground { id });
            }
            Err(Errno::NOENT) => return Err(SupervisorClientError::NoSocket { id }),
            Err(errno) => return Err(SupervisorClientError::Io { id, source: Arc::new(errno.into()) }),
        };
        let io = |errno: Errno| SupervisorClientError::Io { id: id.clone(), source: Arc::new(errno.into()) };
        let untrusted = |why: String| SupervisorClientError::Untrusted { id: id.clone(), why };
        let stat = rustix::fs::fstat(&file).map_err(io)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(untrusted("it is no socket".to_owned()));
        }
        let user = rustix::process::geteuid();
        if stat.st_uid != user.as_raw() {
            return Err(untrusted(format!("it belongs to user {}", stat.st_uid)));
        }
        let address =
            SocketAddrUnix::new(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str()).map_err(io)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(io)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(SupervisorClientError::Deserted { id }),
            Err(Errno::PROTOTYPE) => return Err(untrusted("it is of another type".to_owned())),
            Err(errno) => return Err(io(errno)),
        }
        let peer = penfold_sys::peer::peer_credentials(socket.as_fd())
            .map_err(|source| SupervisorClientError::Io { id: id.clone(), source: Arc::new(source) })?;
        if peer.uid != user && !peer.uid.is_root() {
            return Err(untrusted(format!("user {} listens on it", peer.uid.as_raw())));
        }
        Ok(Some(SupervisorClient { id, socket, peer: peer.pid }))
    }

    /// Returns the short id of the sandbox.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the process that made the socket, as the kernel reports it.
    ///
    /// That process may be dead, and its pid reused. `None` when it has no pid in this namespace.
    pub(crate) fn peer(&self) -> Option<Pid> {
        self.peer
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// When no answer comes within `limit`.
    pub fn request(&self, request: &Request, limit: Duration) -> Result<Answer, SupervisorClientError> {
        self.request_with(request, &[], limit)
    }

    /// Sends a request with copies of descriptors, and waits for the answer.
    ///
    /// # Errors
    /// When no answer comes within `limit`.
    pub fn request_with(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Answer, SupervisorClientError> {
        let until = Instant::now() + limit;
        self.send(request, fds)?;
        self.answer(until)
    }

    /// Sends a request without waiting. A supervisor whose socket is full counts as silent.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), SupervisorClientError> {
        wire::send_with(&self.socket, request, fds).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => SupervisorClientError::Silent { id: self.id.clone() },
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                SupervisorClientError::Gone { id: self.id.clone() }
            }
            _ => self.failed(source),
        })
    }

    /// Receives the next answer without waiting.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn take(&self) -> Result<ReceiveResult<Answer>, SupervisorClientError> {
        wire::receive_message(&self.socket).map_err(|source| self.failed(source))
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// When no answer comes by then.
    pub fn answer(&self, until: Instant) -> Result<Answer, SupervisorClientError> {
        loop {
            match self.take()? {
                ReceiveResult::Message(answer) => return Ok(answer),
                ReceiveResult::End => return Err(SupervisorClientError::Gone { id: self.id.clone() }),
                ReceiveResult::Nothing => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SupervisorClientError::Silent { id: self.id.clone() });
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut fds, poll_timeout(left).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(errno.into())),
            }
        }
    }

    fn failed(&self, source: io::Error) -> SupervisorClientError {
        SupervisorClientError::Io { id: self.id.clone(), source: Arc::new(source) }
    }

    fn untrusted(&self, why: String) -> SupervisorClientError {
        SupervisorClientError::Untrusted { id: self.id.clone(), why }
    }
}

impl AsFd for SupervisorClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<SupervisorClient> for OwnedFd {
    fn from(client: SupervisorClient) -> OwnedFd {
        client.socket
    }
}
