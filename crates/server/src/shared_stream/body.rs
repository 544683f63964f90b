//! The reader's end of a shared stream.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc;

/// Wakes the thread of a stream: eventfd(2).
#[derive(Debug)]
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub(super) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn ring(&self) {
        // It fails only if it was rung very often: then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What the two ends of a queue tell each other.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// The thread found no room, and waits until the body has taken a part.
    is_full: AtomicBool,
    /// All was sent.
    is_complete: AtomicBool,
}

impl Flags {
    /// Notes that there is no room. The caller looks once more then.
    pub(super) fn note_full(&self) {
        self.is_full.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn note_complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }
}

/// The reader's end of a queue.
#[derive(Debug)]
pub(super) struct SharedBody {
    pub(super) parts: mpsc::Receiver<Bytes>,
    pub(super) flags: Arc<Flags>,
    pub(super) wake: Arc<Wake>,
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let part = ready!(self.parts.poll_recv(context));
        Poll::Ready(match part {
            Some(part) => {
                fence(Ordering::SeqCst);
                if self.flags.is_full.swap(false, Ordering::SeqCst) {
                    self.wake.ring();
                }
                Some(Ok(Frame::data(part)))
            }
            None if self.flags.is_complete.load(Ordering::Acquire) => None,
            None => Some(Err(io::Error::other("the answer broke off"))),
        })
    }
}

impl Drop for SharedBody {
    fn drop(&mut self) {
        // First: the thread that is woken looks whether its reader is gone.
        self.parts.close();
        self.wake.ring();
    }
}
