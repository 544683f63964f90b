//! The control socket of a detached sandbox: connections, requests and answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_state::{Files, Requester};
use penfold_sys::peer::Peer;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wire::{self, Answer, PROTOCOL, ReceiveResult, Request};

/// The file name of the control socket.
const SOCKET: &str = "control.sock";
/// The backlog of listen(2).
const BACKLOG: i32 = 64;
/// The most clients at a time.
const MAX_CLIENTS: usize = 256;
/// The pause in accept(2) after EMFILE or ENFILE: the kernel does not report when a descriptor is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest path in a `sockaddr_un`, see unix(7).
const MAX_SOCKET_PATH: usize = 107;

/// The control socket and its connections.
pub(crate) struct ControlServer {
    /// The id of the sandbox, sent to each client.
    id: String,
    listener: OwnedFd,
    clients: Vec<Client>,
    /// The most clients at a time under the descriptor limit.
    max_clients: usize,
    /// The number of the next client.
    next: u64,
    /// The end of a pause in accept(2).
    paused_until: Option<Instant>,
}

struct Client {
    number: u64,
    socket: OwnedFd,
    /// The process that has connected.
    peer: Peer,
    /// The verb of its command, if the client has named one.
    verb: Option<String>,
    /// The client waits for a later message, such as the outcome.
    waits: bool,
    /// The time of its connection or last request.
    last_active: Instant,
}

/// A request with its client and descriptors.
pub(crate) struct ClientMessage {
    pub(crate) client: u64,
    pub(crate) request: Request,
    /// The client, if it requests the end of the sandbox.
    pub(crate) by: Option<Requester>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl ControlServer {
    /// Creates the socket in the record and listens on it.
    pub(crate) fn open(files: &Files) -> io::Result<ControlServer> {
        Ok(ControlServer {
            id: files.name().to_owned(),
            listener: listen(files.dir(), files.path())?,
            clients: Vec::new(),
            max_clients: max_clients(),
            next: 1,
            paused_until: None,
        })
    }

    /// Calls listen(2) again after a takeover. `SO_PEERCRED` shows clients the last caller of listen(2), which is dead.
    pub(crate) fn listen_again(&self) {
        let _ = rustix::net::listen(&self.listener, BACKLOG);
    }

    /// Returns the descriptors to poll; [`ControlServer::serve`] takes the results in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.accept_pause().is_none());
        let clients = self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN));
        std::iter::once(PollFd::new(&self.listener, flags)).chain(clients)
    }

    /// Returns the number of descriptors to poll.
    pub(crate) fn source_count(&self) -> usize {
        1 + self.clients.len()
    }

    /// Receives requests and accepts clients, in a poll round that `began` then.
    pub(crate) fn serve(&mut self, ready: &[bool], began: Instant) -> Vec<ClientMessage> {
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        let mut messages = Vec::new();
        for index in (0..self.clients.len()).rev().filter(|index| is_ready(1 + index)) {
            self.recv(index, &mut messages);
        }
        if is_ready(0) {
            self.accept(began);
        }
        messages
    }

    fn recv(&mut self, index: usize, messages: &mut Vec<ClientMessage>) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let number = client.number;
        client.last_active = Instant::now();
        match wire::receive_with(&client.socket) {
            Ok((ReceiveResult::Message(Request::By(by)), _)) => {
                client.verb = by.plain_verb().map(str::to_owned);
                self.answer(number, &Answer::Done);
            }
            Ok((ReceiveResult::Message(request), fds)) => {
                client.waits |= matches!(
                    request,
                    Request::Stop { .. } | Request::Kill | Request::Attach(_) | Request::AwaitExec(_)
                );
                let by = client.requester(&request);
                messages.push(ClientMessage { client: number, request, by, fds });
            }
            Ok((ReceiveResult::Nothing, _)) => {
                let reason = format!("this supervisor (protocol {PROTOCOL}) does not know that request");
                self.answer(number, &Answer::Refused(reason));
            }
            Ok((ReceiveResult::End, _)) | Err(_) => {
                self.clients.swap_remove(index);
            }
        }
    }

    /// Accepts as many clients as fit beside those with a request in this round, which must be answered first.
    fn accept(&mut self, began: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let active = self.clients.iter().filter(|client| client.last_active >= began).count();
        for _ in active..self.max_clients {
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) if self.evict_idle(began) => continue,
                Err(_) => {
                    self.paused_until = Instant::now().checked_add(ACCEPT_PAUSE);
                    return;
                }
            };
            let Some(peer) = ours(socket.as_fd()) else { continue };
            if self.clients.len() >= self.max_clients && !self.evict_idle(began) {
                continue;
            }
            let number = self.next;
            self.next += 1;
            self.clients.push(Client {
                number,
                socket,
                peer,
                verb: None,
                waits: false,
                last_active: Instant::now(),
            });
            self.answer(number, &Answer::Hello { protocol: PROTOCOL, id: self.id.clone(), by: true });
        }
    }

    /// Evicts the longest-idle client to make room for a new one; the evicted client may reconnect. Clients that wait
    /// for an end or are attached are evicted last. False if there is no candidate.
    fn evict_idle(&mut self, began: Instant) -> bool {
        let clients = self.clients.iter().enumerate().filter(|(_, client)| client.last_active < began);
        let first =
            clients.min_by_key(|(_, client)| (client.waits, client.last_active)).map(|(index, _)| index);
        first.map(|index| self.clients.swap_remove(index)).is_some()
    }

    /// Returns the rest of a pause in accept(2); `None` without a pause.
    pub(crate) fn accept_pause(&self) -> Option<Duration> {
        let left = self.paused_until?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// Sends an answer to one client. A client with a full socket buffer misses it.
    pub(crate) fn answer(&self, number: u64, answer: &Answer) {
        if let Some(client) = self.clients.iter().find(|client| client.number == number) {
            let _ = wire::offer_message(&client.socket, answer);
        }
    }

    /// Tells whether the client is connected.
    pub(crate) fn has_client(&self, number: u64) -> bool {
        self.clients.iter().any(|client| client.number == number)
    }

    /// Takes a client's connection out of the server.
    pub(crate) fn take_socket(&mut self, number: u64) -> Option<OwnedFd> {
        let index = self.clients.iter().position(|client| client.number == number)?;
        Some(self.clients.swap_remove(index).socket)
    }

    /// Sends an answer to all clients.
    pub(crate) fn broadcast(&self, answer: &Answer) {
        for client in &self.clients {
            let _ = wire::offer_message(&client.socket, answer);
        }
    }

    /// Unlinks the socket, so that no new client finds it.
    pub(crate) fn unlink(files: &Files) {
        let _ = rustix::fs::unlinkat(files.dir(), SOCKET, AtFlags::empty());
    }
}

/// Returns the most clients under `RLIMIT_NOFILE`. The other half of the descriptors is for requests that pass
/// descriptors.
fn max_clients() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit
        .and_then(|limit| usize::try_from(limit / 2).ok())
        .map_or(MAX_CLIENTS, |half| half.clamp(1, MAX_CLIENTS))
}

fn listen(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let real = path.join(SOCKET);
    let address = if real.as_os_str().len() <= MAX_SOCKET_PATH {
        SocketAddrUnix::new(&real)?
    } else {
        let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
        SocketAddrUnix::new(format!("/proc/self/fd/{number}/{SOCKET}"))?
    };
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns the peer if it is root or the user of the sandbox.
fn ours(socket: BorrowedFd<'_>) -> Option<Peer> {
    let is_ours = |peer: &Peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    penfold_sys::peer::peer_credentials(socket).ok().filter(is_ours)
}

impl Client {
    /// Returns who requests the end of the sandbox, if this request does.
    fn requester(&self, request: &Request) -> Option<Requester> {
        let usual = match request {
            Request::Stop { .. } => "stop",
            Request::Kill => "kill",
            _ => return None,
        };
        let pid = self.peer.pid;
        // The client waits for an answer, so its pid is not used again.
        let command = pid.and_then(|pid| ProcFs::open().ok()?.command_line(pid));
        Some(Requester {
            pid: pid.map(|pid| pid.as_raw_nonzero().get()),
            uid: Some(self.peer.uid.as_raw()),
            command,
            ..Requester::of_verb(self.verb.as_deref().unwrap_or(usual))
        })
    }
}
