//! The control socket of a detached sandbox: who connects, what they ask, what they are answered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_state::Files;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wire::{self, Answer, PROTOCOL, Received, Request};

/// The file name of the control socket.
const SOCKET: &str = "control.sock";
/// How many may wait to be let in.
const BACKLOG: i32 = 64;
/// How many are let in at a time: nobody needs more.
const CLIENTS: usize = 256;
/// How long nobody is let in where there is no descriptor for anybody: nothing tells when there is one again.
const CLOSED: Duration = Duration::from_millis(100);
/// The longest path that fits a `sockaddr_un`, unix(7).
const LONGEST: usize = 107;

/// The control socket and who is connected to it.
pub(crate) struct ControlServer {
    /// The id of the sandbox, as clients are told it.
    id: String,
    listener: OwnedFd,
    clients: Vec<Client>,
    /// How many are let in at a time.
    most: usize,
    /// The number of the next client.
    next: u64,
    /// Until when nobody is let in, for there is no descriptor for anybody.
    closed_until: Option<Instant>,
}

struct Client {
    number: u64,
    socket: OwnedFd,
    /// It has asked for what comes later, and is there for that.
    waits: bool,
    /// When it has come, or has last said something.
    spoke: Instant,
}

/// What a client said.
pub(crate) struct ClientMessage {
    pub(crate) client: u64,
    pub(crate) request: Request,
    pub(crate) fds: Vec<OwnedFd>,
}

impl ControlServer {
    /// Makes the socket in the record, and listens on it.
    pub(crate) fn open(files: &Files) -> io::Result<ControlServer> {
        Ok(ControlServer {
            id: files.name().to_owned(),
            listener: listen(files.dir(), files.path())?,
            clients: Vec::new(),
            most: most_clients(),
            next: 1,
            closed_until: None,
        })
    }

    /// Listens on in the name of this process: the kernel tells clients who called listen(2) last, and whoever did is dead.
    pub(crate) fn listen_again(&self) {
        let _ = rustix::net::listen(&self.listener, BACKLOG);
    }

    /// What to poll; [`ControlServer::serve`] takes the answers in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut comers = PollFlags::empty();
        comers.set(PollFlags::IN, self.opens_in().is_none());
        let clients = self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN));
        std::iter::once(PollFd::new(&self.listener, comers)).chain(clients)
    }

    /// How many sources there are.
    pub(crate) fn source_count(&self) -> usize {
        1 + self.clients.len()
    }

    /// Hears the clients and lets new ones in, in a turn that `began` then.
    pub(crate) fn serve(&mut self, ready: &[bool], began: Instant) -> Vec<ClientMessage> {
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        let mut said = Vec::new();
        for index in (0..self.clients.len()).rev().filter(|index| is_ready(1 + index)) {
            self.hear(index, &mut said);
        }
        if is_ready(0) {
            self.let_in(began);
        }
        said
    }

    fn hear(&mut self, index: usize, said: &mut Vec<ClientMessage>) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let number = client.number;
        client.spoke = Instant::now();
        match wire::receive_with(&client.socket) {
            Ok((Received::Message(request), fds)) => {
                client.waits |= matches!(request, Request::Stop { .. } | Request::Kill | Request::Attach(_));
                said.push(ClientMessage { client: number, request, fds });
            }
            Ok((Received::Nothing, _)) => {
                let reason = format!("this supervisor (protocol {PROTOCOL}) does not know that request");
                self.answer(number, &Answer::Refused(reason));
            }
            Ok((Received::End, _)) | Err(_) => {
                self.clients.swap_remove(index);
            }
        }
    }

    /// Lets in as many as there is room for beside those who were heard in this turn, which began then: they are to be
    /// answered first.
    fn let_in(&mut self, began: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let heard = self.clients.iter().filter(|client| client.spoke >= began).count();
        for _ in heard..self.most {
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) if self.evict_idle(began) => continue,
                Err(_) => {
                    self.closed_until = Instant::now().checked_add(CLOSED);
                    return;
                }
            };
            if !is_ours(socket.as_fd()) || (self.clients.len() >= self.most && !self.evict_idle(began)) {
                continue;
            }
            let number = self.next;
            self.next += 1;
            self.clients.push(Client { number, socket, waits: false, spoke: Instant::now() });
            self.answer(number, &Answer::Hello { protocol: PROTOCOL, id: self.id.clone() });
        }
    }

    /// Makes room for a client that may have something to say: who has been silent for longest goes, and comes again if it
    /// wants more. Who waits for an end, or sits at the terminal, goes after all others. False if there is none.
    fn evict_idle(&mut self, began: Instant) -> bool {
        let clients = self.clients.iter().enumerate().filter(|(_, client)| client.spoke < began);
        let first = clients.min_by_key(|(_, client)| (client.waits, client.spoke)).map(|(index, _)| index);
        first.map(|index| self.clients.swap_remove(index)).is_some()
    }

    /// How long it is until somebody may be let in again; none when that is so now.
    pub(crate) fn opens_in(&self) -> Option<Duration> {
        let left = self.closed_until?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// Answers one client. One that does not listen misses it.
    pub(crate) fn answer(&self, number: u64, answer: &Answer) {
        if let Some(client) = self.clients.iter().find(|client| client.number == number) {
            let _ = wire::offer(&client.socket, answer);
        }
    }

    /// Gives away the connection to a client.
    pub(crate) fn part_with(&mut self, number: u64) -> Option<OwnedFd> {
        let index = self.clients.iter().position(|client| client.number == number)?;
        Some(self.clients.swap_remove(index).socket)
    }

    /// Tells all clients.
    pub(crate) fn tell(&self, answer: &Answer) {
        for client in &self.clients {
            let _ = wire::offer(&client.socket, answer);
        }
    }

    /// Removes the socket: nobody finds it any more.
    pub(crate) fn unlink(files: &Files) {
        let _ = rustix::fs::unlinkat(files.dir(), SOCKET, AtFlags::empty());
    }
}

/// Descriptors are few, and some of them are for what clients hand over.
fn most_clients() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit / 2).ok()).map_or(CLIENTS, |half| half.clamp(1, CLIENTS))
}

fn listen(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let real = path.join(SOCKET);
    let address = if real.as_os_str().len() <= LONGEST {
        SocketAddrUnix::new(&real)?
    } else {
        let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
        SocketAddrUnix::new(format!("/proc/self/fd/{number}/{SOCKET}"))?
    };
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether who connected is the user that the sandbox belongs to, or root.
fn is_ours(socket: BorrowedFd<'_>) -> bool {
    penfold_sys::peer::peer(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}
