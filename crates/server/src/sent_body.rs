//! A response body that a thread writes: bounded, and never complete unless the thread said so.

use std::io;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::{mpsc, watch};

/// The parts that wait for a slow reader.
const QUEUE: usize = 8;
/// A part is sent when it has this size.
const PART: usize = 32 << 10;
/// The stack of a writing thread.
const STACK: usize = 256 << 10;

/// A part of a body; an error resets the connection.
type Part = Result<Bytes, io::Error>;

/// The writer's end of a body. The writer waits while the reader is slow.
#[derive(Debug)]
pub struct Sink {
    parts: mpsc::Sender<Part>,
    buffer: Vec<u8>,
    /// Hangs up when the reader is gone, or a follower is woken.
    pub wake: Option<UnixStream>,
}

impl Sink {
    /// Appends bytes to the body; they are sent with others.
    ///
    /// # Errors
    /// When the reader is gone.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes.as_ref());
        if self.buffer.len() >= PART { self.flush() } else { Ok(()) }
    }

    /// Sends what was written.
    ///
    /// # Errors
    /// When the reader is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return if self.is_closed() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) };
        }
        let part = Bytes::from(std::mem::take(&mut self.buffer));
        let sent = self.parts.blocking_send(Ok(part)).map_err(|_| io::ErrorKind::BrokenPipe.into());
        penfold_sys::crash_point!("serve-part-sent");
        sent
    }

    /// Tells whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.parts.is_closed()
    }
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Sink::write(self, bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Sink::flush(self)
    }
}

/// The reader's end of a body.
#[derive(Debug)]
struct SentBody {
    parts: mpsc::Receiver<Part>,
    /// Wakes the writer when the reader goes away.
    wake: Option<UnixStream>,
    /// Dropped with the body.
    _open: Option<watch::Sender<()>>,
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}

impl Drop for SentBody {
    fn drop(&mut self) {
        // First: a writer that is woken looks whether its reader is gone, and waits on if not.
        self.parts.close();
        if let Some(wake) = &self.wake {
            let _ = wake.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Makes a body that `write` produces on a thread of its own. If `write` fails or panics, the body breaks off: its
/// reader sees a reset, and not an end. The value that `write` returns is dropped after the end of the body.
///
/// # Errors
/// When no thread can be started.
pub fn written_body<T>(write: impl FnOnce(&mut Sink) -> io::Result<T> + Send + 'static) -> io::Result<Body> {
    start(None, None, write)
}

/// Like [`written_body`], for a writer that waits: `Sink::wake` hangs up when the reader goes away, or when the other end of the
/// returned stream is shut down.
///
/// # Errors
/// When no thread can be started, or there is no descriptor.
pub fn woken_body<T>(
    write: impl FnOnce(&mut Sink) -> io::Result<T> + Send + 'static,
) -> io::Result<(Body, UnixStream)> {
    let (body, handle, _) = followed_body(write)?;
    Ok((body, handle))
}

/// Like [`woken_body`]. The returned channel is closed once the body is sent, or its reader is gone.
///
/// # Errors
/// When no thread can be started, or there is no descriptor.
pub fn followed_body<T>(
    write: impl FnOnce(&mut Sink) -> io::Result<T> + Send + 'static,
) -> io::Result<(Body, UnixStream, watch::Receiver<()>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let handle = ours.try_clone()?;
    let (sender, receiver) = watch::channel(());
    Ok((start(Some((ours, sender)), Some(theirs), write)?, handle, receiver))
}

/// Makes a body of the parts that a task sends. The body is complete when the sender is dropped. A task that waits selects on
/// [`mpsc::Sender::closed`], which is ready when the reader goes away.
pub fn queued_body() -> (mpsc::Sender<io::Result<Bytes>>, Body) {
    let (sender, parts) = mpsc::channel(QUEUE);
    (sender, Body::new(SentBody { parts, wake: None, _open: None }))
}

fn start<T>(
    ours: Option<(UnixStream, watch::Sender<()>)>,
    theirs: Option<UnixStream>,
    write: impl FnOnce(&mut Sink) -> io::Result<T> + Send + 'static,
) -> io::Result<Body> {
    let (sender, parts) = mpsc::channel(QUEUE);
    run_beside("body", move || {
        let mut sink = Sink { parts: sender, buffer: Vec::new(), wake: theirs };
        let mut broken = Broken(Some(sink.parts.clone()));
        let written = write(&mut sink)
            .and_then(|kept| if sink.buffer.is_empty() { Ok(kept) } else { sink.flush().map(|()| kept) });
        if written.is_ok() {
            broken.0 = None;
        }
        drop((sink, broken));
        drop(written);
    })?;
    let (wake, open) = ours.unzip();
    Ok(Body::new(SentBody { parts, wake, _open: open }))
}

/// Breaks the body off when it is dropped, also by a panic.
struct Broken(Option<mpsc::Sender<Part>>);

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take() {
            let _ = parts.blocking_send(Err(io::Error::other("the answer broke off")));
        }
    }
}

/// Starts a thread for work that may wait for long. The threads for short calls are too few for such work.
///
/// # Errors
/// When no thread can be started.
pub fn run_beside(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// spec: 15.4.1
    #[test]
    fn a_writer_that_its_reader_wakes_sees_that_the_reader_is_gone() {
        for _ in 0..1000 {
            let (sender, is_closed) = std::sync::mpsc::channel();
            let (body, _handle) = woken_body(move |sink| {
                let mut wake = sink.wake.take().unwrap();
                assert_eq!(wake.read(&mut [0])?, 0);
                sender.send(sink.is_closed()).map_err(io::Error::other)
            })
            .unwrap();
            drop(body);
            assert_eq!(is_closed.recv(), Ok(true));
        }
    }
}
