//! A stream of the client, as the body of a request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::outcome::{Outcome, Promise};
use super::wire::Failure;

/// What the client does to its stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Bytes(Bytes),
    Close,
    Abort,
}

/// A part that waits for its reader.
#[derive(Debug)]
pub(crate) struct Chunk {
    sent: Sent,
    /// The answer to the part: the client sends more once parts are answered.
    promise: Promise,
    _room: Option<OwnedSemaphorePermit>,
}

impl Chunk {
    pub(crate) fn new(sent: Sent, promise: Promise, room: Option<OwnedSemaphorePermit>) -> Chunk {
        Chunk { sent, promise, _room: room }
    }
}

/// Opens a stream. What waits in it is bounded by the room that each part holds.
pub(crate) fn open_pipe() -> (PipeWriter, PipeReader) {
    let (writer, reader) = mpsc::unbounded_channel();
    (PipeWriter(writer), PipeReader { parts: reader, has_ended: false })
}

/// The end of a stream for the client's parts.
#[derive(Debug, Clone)]
pub(crate) struct PipeWriter(mpsc::UnboundedSender<Chunk>);

impl PipeWriter {
    /// Sends a part to the reader; without one, the part fails.
    pub(crate) fn send(&self, chunk: Chunk) {
        if let Err(mpsc::error::SendError(chunk)) = self.0.send(chunk) {
            let outcome = match chunk.sent {
                Sent::Bytes(_) => Outcome::failed(Failure::new("the stream is no longer read")),
                Sent::Close | Sent::Abort => Outcome::undefined(),
            };
            chunk.promise.send_replace(Some(Arc::new(outcome)));
        }
    }
}

/// The end of a stream that a call reads. A part is answered when it is read.
#[derive(Debug)]
pub(crate) struct PipeReader {
    parts: mpsc::UnboundedReceiver<Chunk>,
    has_ended: bool,
}

impl HttpBody for PipeReader {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.parts.poll_recv(context));
        let sent = chunk.map(|chunk| {
            chunk.promise.send_replace(Some(Arc::new(Outcome::undefined())));
            chunk.sent
        });
        if let Some(Sent::Bytes(bytes)) = sent {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        self.has_ended = true;
        Poll::Ready(match sent {
            Some(Sent::Close) => None,
            _ => Some(Err(io::Error::other("the client ended its stream before the end"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::watch;

    use super::*;
    use crate::rpc::outcome::{Pending, await_result};

    fn part(sent: Sent) -> (Chunk, Pending) {
        let (promise, pending) = watch::channel(None);
        (Chunk::new(sent, promise, None), pending)
    }

    #[tokio::test]
    async fn a_part_is_answered_when_it_is_read() {
        let (writer, mut reader) = open_pipe();
        let (first, answer) = part(Sent::Bytes(Bytes::from_static(b"a")));
        let (end, _) = part(Sent::Close);
        writer.send(first);
        writer.send(end);
        assert!(answer.borrow().is_none());
        let frame = reader.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "a");
        assert!(await_result(answer).await.result.is_ok());
        assert!(reader.frame().await.is_none());
        assert!(reader.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_without_its_end_is_an_error() {
        for sent in [None, Some(Sent::Abort)] {
            let (writer, mut reader) = open_pipe();
            if let Some(sent) = sent {
                writer.send(part(sent).0);
            }
            drop(writer);
            assert!(reader.frame().await.unwrap().is_err());
            assert!(reader.frame().await.is_none());
        }
    }

    #[tokio::test]
    async fn a_part_that_nobody_reads_fails() {
        let (writer, reader) = open_pipe();
        let (waiting, dropped) = part(Sent::Bytes(Bytes::new()));
        writer.send(waiting);
        drop(reader);
        let (late, refused) = part(Sent::Bytes(Bytes::new()));
        writer.send(late);
        for answer in [dropped, refused] {
            assert!(await_result(answer).await.result.is_err());
        }
    }
}
