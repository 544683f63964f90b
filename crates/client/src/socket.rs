//! A WebSocket to the server, with input from a local stream.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::body::Bytes;
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use penfold_state::wire::Size;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_websockets::{ClientBuilder, Limits, Message, WebSocketStream};

use crate::client::Client;
use crate::error::Error;
use crate::event_parser::Event;

/// The server asks for a sign of life every 30 s: after this time the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(90);
/// The longest event.
const LONGEST: usize = 16 << 20;
/// The size of one read of the input.
const READ: usize = 32 << 10;
/// What is to be told to the server at the end of the input.
const END_INPUT: &str = r#"{"end_input":true}"#;
/// The key of every request: it proves only that the other side knows the protocol.
const KEY: &str = "cGVuZm9sZC1jbGllbnQuLg==";

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// Sets the size of the terminal, from any thread.
#[derive(Debug)]
pub struct TerminalSize(watch::Sender<Option<Size>>);

impl TerminalSize {
    /// Sets the size. Only the last one counts.
    pub fn set(&self, size: Size) {
        self.0.send_replace(Some(size));
    }
}

/// Where input comes from, and the size of the terminal.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    stream: Arc<UnixStream>,
    size: watch::Receiver<Option<Size>>,
}

impl Input {
    pub(crate) fn new(client: &Client, stream: StdUnixStream) -> Result<(Input, TerminalSize), Error> {
        let _in_runtime = client.runtime.enter();
        stream.set_nonblocking(true).map_err(Error::Client)?;
        let stream = Arc::new(UnixStream::from_std(stream).map_err(Error::Client)?);
        let (sender, size) = watch::channel(None);
        Ok((Input { stream, size }, TerminalSize(sender)))
    }

    /// Sends the input to its end, and each size.
    async fn send(mut self, mut sink: SplitSink<Stream, Message>) {
        let mut buffer = vec![0; READ];
        // The server may know an older one.
        self.size.mark_changed();
        loop {
            let message = tokio::select! {
                read = read(&self.stream, &mut buffer) => match read {
                    Ok(0) => Message::text(END_INPUT),
                    Ok(length) => Message::binary(Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default())),
                    Err(_) => return,
                },
                Ok(()) = self.size.changed() => {
                    let Some(Size { rows, columns }) = *self.size.borrow_and_update() else { continue };
                    Message::text(format!(r#"{{"resize":{{"rows":{rows},"columns":{columns}}}}}"#))
                }
            };
            let is_end = message.as_text() == Some(END_INPUT);
            if sink.send(message).await.is_err() || is_end {
                return;
            }
        }
    }
}

/// Reads what there is; nothing is lost if this is dropped.
async fn read(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// An open socket. When it is dropped, no more input is sent.
#[derive(Debug)]
pub(crate) struct Socket {
    events: SplitStream<Stream>,
    sends: AbortHandle,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.sends.abort();
    }
}

/// An event, as a message has it.
#[derive(Deserialize)]
struct Received<'a> {
    event: String,
    id: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Socket {
    /// Opens a socket, and begins to send the input.
    pub(crate) fn open(client: &Client, path: &str, input: &Input) -> Result<Socket, Error> {
        let headers = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", KEY),
        ];
        client.runtime.block_on(async {
            let response = client.open(Method::GET, path, &headers, Bytes::new()).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(client.foreign(&"it does not become a WebSocket"));
            }
            let connection = hyper::upgrade::on(response).await.map_err(|error| client.lost(error))?;
            let limits = Limits::default().max_payload_len(Some(LONGEST));
            let stream = ClientBuilder::new().limits(limits).take_over(TokioIo::new(connection));
            let (sink, events) = stream.split();
            let sends = tokio::spawn(input.clone().send(sink)).abort_handle();
            Ok(Socket { events, sends })
        })
    }

    /// Waits for the next event; `None` at the end of the socket.
    pub(crate) fn next(&mut self, client: &Client) -> Result<Option<Event>, Error> {
        loop {
            let message =
                client.runtime.block_on(async { tokio::time::timeout(SILENCE, self.events.next()).await });
            match message {
                Err(_) => return Err(client.lost("the server is silent")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(client.lost(error)),
                Ok(Some(Ok(message))) => {
                    let Some(text) = message.as_text() else { continue };
                    let received: Received<'_> =
                        serde_json::from_slice(text.as_bytes()).map_err(|error| client.foreign(&error))?;
                    let Received { event, id, data } = received;
                    return Ok(Some(Event { name: event, id, data: data.get().to_owned() }));
                }
            }
        }
    }
}
