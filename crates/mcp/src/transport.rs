//! The lines of the client, with an answer to those that are no messages.
//!
//! The transport of rmcp ignores a line that is no JSON, and answers a malformed request without its id. A client that waits for the answer
//! with this id would wait for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rmcp::RoleServer;
use rmcp::model::{ErrorData, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

/// The answers that wait to be sent. Of a client that floods without reading, the other lines get none.
const WAITING: usize = 64;
/// The longest line that is looked at. rmcp drops a longer one.
const LONGEST: usize = 16 << 20;
/// The bytes that are read at once.
const PIECE: usize = 8 << 10;

/// The messages of one client.
pub(crate) struct Lines<R: AsyncRead + Unpin, W: AsyncWrite> {
    inner: AsyncRwTransport<RoleServer, Sieve<R>, W>,
    faults: mpsc::Receiver<Fault>,
}

impl<R, W> Lines<R, W>
where
    R: Send + AsyncRead + Unpin,
    W: Send + AsyncWrite + Unpin + 'static,
{
    pub(crate) fn new(reader: R, writer: W) -> Lines<R, W> {
        let (sender, faults) = mpsc::channel(WAITING);
        let sieve = Sieve { reader, line: Vec::new(), passed: Vec::new(), at: 0, faults: sender };
        Lines { inner: AsyncRwTransport::new_server(sieve, writer), faults }
    }

    fn answer(&mut self, fault: Fault) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        self.inner.send(TxJsonRpcMessage::<RoleServer>::error(fault.error, fault.id))
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: Send + AsyncRead + Unpin + 'static,
    W: Send + AsyncWrite + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let fault = tokio::select! {
                biased;
                Some(fault) = self.faults.recv() => fault,
                received = self.inner.receive() => {
                    if received.is_none() {
                        while let Ok(fault) = self.faults.try_recv() {
                            let _ = self.answer(fault).await;
                        }
                    }
                    return received;
                }
            };
            // This future may be dropped at any time, and the answer is to be sent nevertheless.
            drop(tokio::spawn(self.answer(fault)));
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.inner.close().await
    }
}

/// Why a line is no message.
struct Fault {
    error: ErrorData,
    id: Option<RequestId>,
}

/// Passes on the lines that are messages.
struct Sieve<R> {
    reader: R,
    /// The begin of a line.
    line: Vec<u8>,
    /// Whole lines.
    passed: Vec<u8>,
    /// How much of them was read.
    at: usize,
    faults: mpsc::Sender<Fault>,
}

impl<R> Sieve<R> {
    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            let is_whole = part.ends_with(b"\n");
            if self.line.len() > LONGEST {
                self.passed.append(&mut self.line);
            } else if is_whole {
                match fault(&self.line) {
                    Some(fault) => drop(self.faults.try_send(fault)),
                    None => self.passed.extend_from_slice(&self.line),
                }
                self.line.clear();
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Sieve<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.at < self.passed.len() {
                let rest = self.passed.get(self.at..).unwrap_or_default();
                let part = rest.get(..rest.len().min(buffer.remaining())).unwrap_or_default();
                buffer.put_slice(part);
                self.at += part.len();
                return Poll::Ready(Ok(()));
            }
            (self.at, self.passed) = (0, Vec::new());
            let mut piece = [0; PIECE];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.reader).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.take(read.filled());
        }
    }
}

/// What a message has, as far as it decides about an answer.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default)]
    result: Option<IgnoredAny>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Returns why a line is no message, if rmcp would not answer it, or without its id.
fn fault(line: &[u8]) -> Option<Fault> {
    let line = line.trim_ascii();
    if line.is_empty() || serde_json::from_slice::<RxJsonRpcMessage<RoleServer>>(line).is_ok() {
        return None;
    }
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(line) {
        let error = ErrorData::parse_error(format!("the line is no JSON: {error}"), None);
        return Some(Fault { error, id: None });
    }
    let head = serde_json::from_slice::<Head>(line).ok()?;
    let id = head.id.filter(|_| head.result.is_none() && head.error.is_none())?;
    let why = if head.method.is_none() { "the request has no method" } else { "the request is malformed" };
    Some(Fault { error: ErrorData::invalid_request(why, None), id: Some(id) })
}
