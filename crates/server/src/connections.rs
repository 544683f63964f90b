//! Accepts connections and serves them, within the limits.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::AppState;
use crate::caller::{Peer, Room};
use crate::descriptors::Shares;
use crate::front::{self, Arrival, Front};
use crate::listen::{Listener, SocketFile};
use crate::metrics::RefusedLabels;
use crate::raw_heads::RawHeads;
use crate::timed_stream::TimedStream;

/// The pause after a failed accept(2): no event tells when there is a descriptor again.
const PAUSE: Duration = Duration::from_millis(100);
/// The time for the head of a request on a connection beyond the limit.
const RESERVED_HEAD_TIME: Duration = Duration::from_secs(2);
/// What a connection beyond the limit is told.
const FULL: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: text/plain\r\ncontent-length: 21\r\nconnection: close\r\n\r\ntoo many connections\n";

/// The connections of a server.
#[derive(Clone)]
pub(crate) struct Connections {
    app: AppState,
    front: Front,
    room: Arc<Semaphore>,
    limit: usize,
    /// For the requests that end something, of the callers of each kind of listener: those on a port cannot take what this host needs.
    reserved: [Arc<Semaphore>; 2],
    /// The size of each of these.
    reserved_each: usize,
}

impl Connections {
    pub(crate) fn new(app: &AppState, front: Front) -> Connections {
        let Shares { connections, reserved: reserved_each, .. } = Shares::of_process();
        let limit = app.config.limits.connections.min(connections);
        let reserved = [(); 2].map(|()| Arc::new(Semaphore::new(reserved_each)));
        let room = Arc::new(Semaphore::new(limit));
        Connections { app: app.clone(), front, room, limit, reserved, reserved_each }
    }

    /// Waits until no connection is left. There must be no accept loop any more.
    pub(crate) async fn all_closed(&self) {
        let reserved = self.reserved.iter().map(|room| (room, self.reserved_each));
        for (room, all) in reserved.chain([(&self.room, self.limit)]) {
            // No semaphore is ever closed.
            let _ = room.acquire_many(u32::try_from(all).unwrap_or(u32::MAX)).await;
        }
    }

    /// Accepts connections until the server begins to end.
    ///
    /// # Errors
    /// When the socket cannot be polled.
    pub(crate) async fn accept(self, listener: Listener) -> io::Result<()> {
        match listener {
            Listener::Unix(listener, file) => self.accept_unix(UnixListener::from_std(listener)?, file).await,
            Listener::Tcp(listener) => self.accept_tcp(TcpListener::from_std(listener)?).await,
        }
        Ok(())
    }

    async fn accept_unix(self, listener: UnixListener, file: Option<SocketFile>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.app.drain.begun() => break,
            };
            match accepted {
                Ok((stream, _)) if is_ours(&stream) => self.start(stream, Peer::Unix),
                Ok(_) => self.count_refused("user"),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        drop(file);
    }

    async fn accept_tcp(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.app.drain.begun() => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    // Each answer is complete when it is written; waiting for more only delays it.
                    let _ = stream.set_nodelay(true);
                    self.start(stream, Peer::Tcp(address));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn count_refused(&self, reason: &'static str) {
        self.app.metrics.refused.get_or_create(&RefusedLabels { reason }).inc();
    }

    /// Takes room for a connection of this peer.
    fn take_room(&self, peer: Peer) -> Option<(OwnedSemaphorePermit, Room)> {
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            return Some((permit, Room::Usual));
        }
        let [of_sockets, of_ports] = &self.reserved;
        let reserved = if matches!(peer, Peer::Unix) { of_sockets } else { of_ports };
        Some((Arc::clone(reserved).try_acquire_owned().ok()?, Room::Reserved))
    }

    /// Serves a connection, or refuses it where there is no room.
    pub(crate) fn start<S>(&self, mut stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Some((permit, room)) = self.take_room(peer) {
            let place = Place::take(&self.app, permit, room);
            tokio::spawn(serve(self.front.clone(), stream, peer, place));
        } else {
            self.count_refused("limit");
            tokio::spawn(async move { tokio::time::timeout(PAUSE, refuse(&mut stream)).await });
        }
    }
}

/// Answers that the server is full, and reads what the peer still sends: a close before that would reset the connection,
/// and the peer would not get the answer.
async fn refuse(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(FULL).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Whether a connection is from this user or root.
fn is_ours(stream: &impl AsFd) -> bool {
    penfold_sys::peer::peer_credentials(stream.as_fd())
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// What a connection takes of the server, also after it has become a socket. Each request has it as an extension.
#[derive(Debug)]
pub(crate) struct Place {
    app: AppState,
    heads: RawHeads,
    room: Room,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(app: &AppState, permit: OwnedSemaphorePermit, room: Room) -> Place {
        app.metrics.connections.inc();
        Place { app: AppState::clone(app), heads: RawHeads::default(), room, _permit: permit }
    }

    /// No request follows on the connection.
    pub(crate) fn no_more_heads(&self) {
        self.heads.end();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.app.metrics.connections.dec();
    }
}

/// Serves the requests of one connection.
async fn serve<S>(front: Front, stream: S, peer: Peer, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (room, app) = (place.room, AppState::clone(&place.app));
    let limits = app.config.limits;
    let head_time = match room {
        Room::Usual => limits.head_time,
        Room::Reserved => RESERVED_HEAD_TIME.min(limits.head_time),
    };
    let place = Arc::new(place);
    let heads = place.heads.clone();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&place));
        let has_two_lengths = heads.has_two_lengths(request.headers(), request.body().size_hint().lower());
        let response = front::serve(front.clone(), Arrival { peer, room, has_two_lengths }, request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(limits.head)
        .max_headers(limits.headers)
        .serve_connection(TokioIo::new(TimedStream::new(stream, limits.write_time, heads.clone())), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    // An error is the peer's: it sent no HTTP, or went away.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        () = app.drain.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}
