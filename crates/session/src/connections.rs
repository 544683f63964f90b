//! The clients of a host: accepted, heard, answered; none is waited for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use penfold_state::wire::{self, ReceiveResult};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::protocol::{PROTOCOL, SessionAnswer, SessionRequest};

/// The most clients; a client beyond it takes the place of the one that has been silent for longest.
const MOST: usize = 256;
/// The most clients accepted in a turn.
const AT_ONCE: usize = 32;
/// The most commands that a client can watch.
const MOST_WATCHED: usize = 1024;

/// The socket and the connected clients.
pub(crate) struct Connections {
    listener: OwnedFd,
    clients: Vec<Connection>,
    next: u64,
    /// Whether the process had no descriptor for a client: the listener is not polled in the next turn.
    is_full: bool,
}

struct Connection {
    id: u64,
    socket: OwnedFd,
    heard: Instant,
    /// The commands of which this client wants the end.
    watched: Vec<u64>,
    /// The last command of which this client was sent the end, and may read the log.
    ended: Option<u64>,
}

/// A message of a client.
pub(crate) struct ClientMessage {
    pub(crate) client: u64,
    pub(crate) request: SessionRequest,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Connections {
    pub(crate) fn new(listener: OwnedFd) -> Connections {
        Connections { listener, clients: Vec::new(), next: 1, is_full: false }
    }

    /// Returns the sources to poll; [`Connections::serve`] takes the answers in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let comers = if self.is_full { PollFlags::empty() } else { PollFlags::IN };
        let clients = self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN));
        std::iter::once(PollFd::new(&self.listener, comers)).chain(clients)
    }

    /// Tells whether a turn without descriptors was skipped, so that the next turn must not wait for long.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Receives at most one message from each client, and accepts new clients.
    pub(crate) fn serve(&mut self, ready: &[bool], shell: i32) -> Vec<ClientMessage> {
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        let mut messages = Vec::new();
        for index in (0..self.clients.len()).rev().filter(|index| is_ready(1 + index)) {
            self.hear(index, &mut messages);
        }
        let was_full = std::mem::replace(&mut self.is_full, false);
        if is_ready(0) || was_full {
            self.accept(shell);
        }
        messages
    }

    fn hear(&mut self, index: usize, messages: &mut Vec<ClientMessage>) {
        let Some(client) = self.clients.get_mut(index) else { return };
        client.heard = Instant::now();
        let id = client.id;
        match wire::receive_with(&client.socket) {
            Ok((ReceiveResult::Message(request), fds)) => {
                messages.push(ClientMessage { client: id, request, fds });
            }
            Ok((ReceiveResult::Nothing, _)) => {
                let reason = format!("this session host (protocol {PROTOCOL}) does not know that request");
                self.answer(id, &SessionAnswer::Refused(reason));
            }
            Ok((ReceiveResult::End, _)) | Err(_) => drop(self.clients.swap_remove(index)),
        }
    }

    fn accept(&mut self, shell_pid: i32) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => {
                    self.is_full = !self.evict();
                    return;
                }
            };
            let peer = penfold_sys::peer::peer_credentials(socket.as_fd());
            let is_ours = peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
            if !is_ours || (self.clients.len() >= MOST && !self.evict()) {
                continue;
            }
            let id = self.next;
            self.next += 1;
            let heard = Instant::now();
            self.clients.push(Connection { id, socket, heard, watched: Vec::new(), ended: None });
            self.answer(id, &SessionAnswer::Hello { protocol: PROTOCOL, shell_pid });
        }
    }

    /// Closes the connection that has been silent for longest; those that wait for an end come last.
    fn evict(&mut self) -> bool {
        let clients = self.clients.iter().enumerate();
        let first = clients.min_by_key(|(_, client)| (!client.watched.is_empty(), client.heard));
        first.map(|(index, _)| index).map(|index| self.clients.swap_remove(index)).is_some()
    }

    /// Answers a client. A client whose socket is full is closed: it would wait for the answer for ever.
    pub(crate) fn answer(&mut self, id: u64, answer: &SessionAnswer) {
        let Some(index) = self.clients.iter().position(|client| client.id == id) else { return };
        if self.clients.get(index).is_some_and(|client| wire::offer_message(&client.socket, answer).is_err())
        {
            self.clients.swap_remove(index);
        }
    }

    /// Notes that a client wants the end of a command. False if the client watches too many.
    pub(crate) fn watch(&mut self, id: u64, number: u64) -> bool {
        let client = self.clients.iter_mut().find(|client| client.id == id);
        client.is_none_or(|client| {
            let has_room = client.watched.len() < MOST_WATCHED;
            if has_room && !client.watched.contains(&number) {
                client.watched.push(number);
            }
            has_room
        })
    }

    /// Tells whether a connected client was sent the end of this command last, and may still read its log.
    pub(crate) fn may_read(&self, number: u64) -> bool {
        self.clients.iter().any(|client| client.ended == Some(number))
    }

    /// Sends an answer to all clients that watch a command; after the end they watch it no more.
    pub(crate) fn notify_watchers(&mut self, number: u64, answer: &SessionAnswer) {
        let is_end = matches!(answer, SessionAnswer::Ended(_));
        self.clients.retain_mut(|client| {
            if !client.watched.contains(&number) {
                return true;
            }
            if is_end {
                client.watched.retain(|watched| *watched != number);
                client.ended = Some(number);
            }
            wire::offer_message(&client.socket, answer).is_ok()
        });
    }
}
