//! WebSockets (RFC 6455): the connection of a request becomes a socket for messages.
//!
//! A socket keeps the place of its connection among those of the server. It ends with its tenant's access; when the server
//! begins to end, it receives nothing more, and may still send.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio_websockets::{CloseCode, Limits, ServerBuilder, WebSocketStream};

use crate::app::AppState;
use crate::connections::Place;

/// The messages that wait for the peer; a sender of more waits, too.
const WAITING: usize = 16;
/// The pause without a message after which the peer is asked for a sign of life.
const PING: Duration = Duration::from_secs(30);
/// The pause between two looks at a peer from which nothing is read.
const LOOK: Duration = Duration::from_secs(1);
/// The bytes of messages that have not come to their end, over all sockets.
const UNFINISHED: usize = 256 << 20;
/// What each socket may have of such bytes in any case.
const FREE: usize = 64 << 10;
/// The time that the peer has to answer the end of the socket.
const LAST_WORD: Duration = Duration::from_secs(1);
/// What RFC 6455 appends to the key of a request.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

type Stream = WebSocketStream<Metered>;

/// The bytes that all sockets have read of messages that have not come to their end.
static ALL_UNFINISHED: AtomicUsize = AtomicUsize::new(0);

/// What one socket has read of a message that has not come to its end.
#[derive(Debug, Default)]
struct Meter(AtomicUsize);

impl Meter {
    /// Counts bytes that were read; `false` if all sockets together have too many.
    fn has_room_for(&self, bytes: usize) -> bool {
        let own = self.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = ALL_UNFINISHED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        own <= FREE || all <= UNFINISHED
    }

    fn message_ended(&self) {
        ALL_UNFINISHED.fetch_sub(self.0.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.message_ended();
    }
}

/// A connection of which the bytes of an unfinished message are counted.
#[derive(Debug)]
struct Metered {
    connection: TokioIo<Upgraded>,
    meter: Arc<Meter>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(context, buffer);
        if !self.meter.has_room_for(buffer.filled().len() - before) {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

/// A message of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
}

/// A request that can become a socket.
#[derive(Debug)]
pub struct Upgrade {
    connection: OnUpgrade,
    answer: HeaderValue,
    place: Arc<Place>,
}

/// Why a request cannot become a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoUpgrade {
    /// It does not ask for one.
    #[error("this route is a WebSocket: the request needs `Upgrade: websocket`")]
    NotAsked,
    /// It asks for another version, or without a key.
    #[error("the request is none for a WebSocket of version 13")]
    Invalid,
}

impl NoUpgrade {
    /// The status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            NoUpgrade::NotAsked => StatusCode::UPGRADE_REQUIRED,
            NoUpgrade::Invalid => StatusCode::BAD_REQUEST,
        }
    }
}

impl IntoResponse for NoUpgrade {
    fn into_response(self) -> Response {
        (self.status(), format!("{self}\n")).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = NoUpgrade;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Upgrade, NoUpgrade> {
        let has = |name: HeaderName, word: &str| has_word(&parts.headers, &name, word);
        let asks = has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket");
        if !asks || parts.method != Method::GET {
            return Err(NoUpgrade::NotAsked);
        }
        let key = parts.headers.get(header::SEC_WEBSOCKET_KEY);
        let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
        let key = key.filter(|_| has(header::SEC_WEBSOCKET_VERSION, "13")).ok_or(NoUpgrade::Invalid)?;
        let answer = answer_to(key.as_bytes());
        // Without these, the request came from another socket.
        let connection = parts.extensions.remove::<OnUpgrade>().ok_or(NoUpgrade::NotAsked)?;
        let place = parts.extensions.get::<Arc<Place>>().cloned().ok_or(NoUpgrade::NotAsked)?;
        Ok(Upgrade { connection, answer, place })
    }
}

/// A connection that the answer with status 101 takes out of HTTP, for whatever protocol.
#[derive(Debug)]
pub struct RawUpgrade {
    connection: OnUpgrade,
    place: Arc<Place>,
}

impl RawUpgrade {
    /// Takes the connection of a request that asks for an upgrade; `None` for any other.
    pub fn take(parts: &mut Parts) -> Option<RawUpgrade> {
        if !has_word(&parts.headers, &header::CONNECTION, "upgrade") {
            return None;
        }
        let place = parts.extensions.get::<Arc<Place>>().cloned()?;
        Some(RawUpgrade { connection: parts.extensions.remove::<OnUpgrade>()?, place })
    }

    /// Joins the connection with another one, until both have ended. Begins once the request was answered.
    pub fn join_with(self, other: OnUpgrade) {
        let RawUpgrade { connection, place } = self;
        tokio::spawn(async move {
            let (Ok(ours), Ok(theirs)) = tokio::join!(connection, other) else { return };
            place.no_more_heads();
            // What breaks off is seen by both ends.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(ours), &mut TokioIo::new(theirs)).await;
            drop(place);
        });
    }
}

/// Tells whether a header with a list has this word.
fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(word))
}

/// What the server answers to the key of a request.
fn answer_to(key: &[u8]) -> HeaderValue {
    let mut hash = sha1_smol::Sha1::from(key);
    hash.update(GUID.as_bytes());
    let text = STANDARD.encode(hash.digest().bytes());
    // Base64 is a valid header.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

impl Upgrade {
    /// Answers the request; then `serve` has the socket until it returns. A message of more than `largest` bytes ends the socket.
    pub fn accept<F>(
        self,
        app: &AppState,
        largest: usize,
        serve: impl FnOnce(Socket) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Upgrade { connection, answer, place } = self;
        let app = AppState::clone(app);
        tokio::spawn(async move {
            let Ok(connection) = connection.await else { return };
            place.no_more_heads();
            let limits = Limits::default().max_payload_len(Some(largest));
            let meter = Arc::new(Meter::default());
            let connection = Metered { connection: TokioIo::new(connection), meter: Arc::clone(&meter) };
            let stream = ServerBuilder::new().limits(limits).serve(connection);
            run(app, stream, meter, serve).await;
            drop(place);
        });
        let headers = [
            (header::CONNECTION, HeaderValue::from_static("upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (header::SEC_WEBSOCKET_ACCEPT, answer),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
    }
}

/// Lets `serve` have the socket, and ends it.
async fn run<F: Future<Output = ()>>(
    app: AppState,
    stream: Stream,
    meter: Arc<Meter>,
    serve: impl FnOnce(Socket) -> F,
) {
    let (sink, stream) = stream.split();
    let (sender, waiting) = mpsc::channel(WAITING);
    let (gone, peer_left) = oneshot::channel();
    let writer = tokio::spawn(write(sink, waiting, peer_left, AppState::clone(&app)));
    let receiver = SocketReceiver { app: AppState::clone(&app), stream, meter, gone: Some(gone) };
    let socket = Socket { receiver, sender: SocketSender(sender) };
    tokio::select! {
        () = serve(socket) => {}
        () = app.revoked.begun() => {}
    }
    // All senders are gone now: what waits is written, and then the end.
    let _ = writer.await;
}

/// Writes the messages of all senders, and then the end. If the peer has left, nothing more is written or waits.
async fn write(
    sink: SplitSink<Stream, tokio_websockets::Message>,
    waiting: mpsc::Receiver<Sent>,
    peer_left: oneshot::Receiver<()>,
    app: AppState,
) {
    tokio::select! {
        () = write_all(sink, waiting, app) => {}
        Ok(()) = peer_left => {}
    }
}

async fn write_all(
    mut sink: SplitSink<Stream, tokio_websockets::Message>,
    mut waiting: mpsc::Receiver<Sent>,
    app: AppState,
) {
    let mut end = None;
    while end.is_none() {
        let sent = match tokio::time::timeout(PING, waiting.recv()).await {
            Ok(Some(Sent::Message(Message::Text(text)))) => {
                sink.send(tokio_websockets::Message::text(text)).await
            }
            Ok(Some(Sent::Message(Message::Binary(bytes)))) => {
                sink.send(tokio_websockets::Message::binary(bytes)).await
            }
            Ok(Some(Sent::End(code, reason))) => {
                end = Some((code, reason));
                Ok(())
            }
            Ok(None) => break,
            Ok(Some(Sent::Ping)) | Err(_) => sink.send(tokio_websockets::Message::ping("")).await,
        };
        if sent.is_err() {
            return;
        }
    }
    waiting.close();
    let (code, reason) = end.unwrap_or_else(|| {
        if app.revoked.has_begun() {
            (1008, "the access of this tenant has changed".to_owned())
        } else if app.drain.has_begun() {
            (1001, "the server ends".to_owned())
        } else {
            (1000, String::new())
        }
    });
    let code = CloseCode::try_from(code).unwrap_or(CloseCode::NORMAL_CLOSURE);
    if sink.send(tokio_websockets::Message::close(Some(code), &reason)).await.is_ok() {
        // A connection that is closed before the peer has read the end would be reset.
        let _ = tokio::time::timeout(LAST_WORD, sink.close()).await;
    }
}

/// Both directions of a socket.
#[derive(Debug)]
pub struct Socket {
    receiver: SocketReceiver,
    sender: SocketSender,
}

impl Socket {
    /// Returns the two directions.
    pub fn split(self) -> (SocketReceiver, SocketSender) {
        (self.receiver, self.sender)
    }
}

/// What the peer sends.
pub struct SocketReceiver {
    app: AppState,
    stream: SplitStream<Stream>,
    meter: Arc<Meter>,
    /// Told once the peer is gone.
    gone: Option<oneshot::Sender<()>>,
}

impl std::fmt::Debug for SocketReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketReceiver").finish_non_exhaustive()
    }
}

impl SocketReceiver {
    /// Waits for the next message; `None` once the peer has closed the socket or is gone, or the server begins to end.
    pub async fn receive(&mut self) -> Option<Message> {
        loop {
            let message = tokio::select! {
                message = self.stream.next() => message,
                () = self.app.drain.begun() => return None,
            };
            match message {
                Some(Ok(message)) if message.is_text() => {
                    self.meter.message_ended();
                    return message.as_text().map(|text| Message::Text(text.to_owned()));
                }
                Some(Ok(message)) if message.is_binary() => {
                    self.meter.message_ended();
                    return Some(Message::Binary(message.into_payload().into()));
                }
                // It may come between two parts of a message, which goes on to count.
                Some(Ok(message)) if !message.is_close() => {}
                _ => {
                    // The answer to the end of the peer, or why its message is not taken.
                    let answer = async { while let Some(Ok(_)) = self.stream.next().await {} };
                    let _ = tokio::time::timeout(LAST_WORD, answer).await;
                    if let Some(gone) = self.gone.take() {
                        let _ = gone.send(());
                    }
                    return None;
                }
            }
        }
    }
}

/// What waits for the peer.
#[derive(Debug)]
enum Sent {
    Message(Message),
    Ping,
    End(u16, String),
}

/// Sends to the peer; a clone is another handle.
#[derive(Debug, Clone)]
pub struct SocketSender(mpsc::Sender<Sent>);

/// The peer is gone, or the socket has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer is gone")]
pub struct Closed;

impl SocketSender {
    /// Sends a message; waits while the peer does not read.
    ///
    /// # Errors
    /// When the peer is gone.
    pub async fn send(&self, message: Message) -> Result<(), Closed> {
        self.0.send(Sent::Message(message)).await.map_err(|_| Closed)
    }

    /// Ends the socket, with a code and a reason of at most 123 bytes (RFC 6455, 5.5.1), once all that waits is written.
    pub async fn close(&self, code: u16, reason: &str) {
        let reason = reason.get(..reason.floor_char_boundary(123)).unwrap_or_default().to_owned();
        let _ = self.0.send(Sent::End(code, reason)).await;
    }

    /// Waits until the peer is gone, for a caller that reads nothing meanwhile: only what is sent to it shows that.
    pub async fn gone(&self) {
        loop {
            tokio::select! {
                () = self.closed() => return,
                () = tokio::time::sleep(LOOK) => drop(self.0.try_send(Sent::Ping)),
            }
        }
    }

    /// Waits until nothing can be sent any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 15.20
    #[test]
    fn unfinished_messages_have_a_common_limit() {
        let (one, two) = (Meter::default(), Meter::default());
        assert!(one.has_room_for(UNFINISHED));
        // Whoever has little may go on.
        assert!(two.has_room_for(FREE) && !two.has_room_for(1));
        one.message_ended();
        assert!(two.has_room_for(1));
        drop((one, two));
        assert_eq!(ALL_UNFINISHED.load(Ordering::Relaxed), 0);
    }

    /// The example of RFC 6455, 1.3.
    #[test]
    fn a_key_is_answered_as_the_standard_says() {
        assert_eq!(answer_to(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_header_may_have_a_list() {
        let headers =
            HeaderMap::from_iter([(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"))]);
        assert!(has_word(&headers, &header::CONNECTION, "upgrade"));
        assert!(!has_word(&headers, &header::CONNECTION, "grade"));
    }
}
