//! The queue from the thread of a stream to one body: bounded, and under one lock.
//!
//! No wake is lost, because an end that finds nothing to do says so under the lock under which it looked:
//! - The thread finds no room, and notes that it wants room. The body that takes the next part takes the note too, and rings.
//! - The body finds no part, and leaves its waker. The thread that adds the next part takes the waker too, and wakes the body.
//!
//! The thread clears [`Wake`] before it looks, so that a ring after the look ends the next wait.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;

use super::wake::Wake;

/// The parts that wait for a slow reader. The connection keeps some more of them, up to `Limits::head` bytes.
const ROOM: usize = 2;

/// Makes a queue, and returns its two ends.
pub(super) fn open_queue(wake: &Arc<Wake>) -> (QueueFiller, SharedBody) {
    let queue = Arc::new(Queue { state: Mutex::default(), wake: Arc::clone(wake) });
    (QueueFiller(Arc::clone(&queue)), SharedBody(queue))
}

#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    wake: Arc<Wake>,
}

#[derive(Debug, Default)]
struct QueueState {
    parts: VecDeque<Bytes>,
    /// The body waits for a part.
    reader: Option<Waker>,
    /// The thread waits for room.
    wants_room: bool,
    /// Whether the body is gone.
    is_closed: bool,
    /// What comes after the parts.
    end: Option<QueueEnd>,
}

#[derive(Debug, Clone, Copy)]
enum QueueEnd {
    /// All was sent.
    Complete,
    /// The thread gave up.
    Broken,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        #[cfg(test)]
        super::schedule::step();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread finds when it looks for room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueRoom {
    /// There is room for a part.
    Free,
    /// There is none. The body rings when it has taken a part, or goes away.
    Full,
    /// There is no body any more.
    Gone,
}

/// The end of the thread. Dropped, also by a panic, it breaks the body off.
#[derive(Debug)]
pub(super) struct QueueFiller(Arc<Queue>);

impl QueueFiller {
    /// Looks for room. After [`QueueRoom::Full`], the thread may wait.
    pub(super) fn room(&self) -> QueueRoom {
        let mut state = self.0.lock();
        if state.is_closed {
            return QueueRoom::Gone;
        }
        if state.parts.len() < ROOM {
            return QueueRoom::Free;
        }
        state.wants_room = true;
        QueueRoom::Full
    }

    /// Adds a part. The caller has found room: only the thread adds parts.
    pub(super) fn push(&self, part: Bytes) {
        let mut state = self.0.lock();
        if !state.is_closed {
            state.parts.push_back(part);
        }
        wake_reader(state);
    }

    /// Ends the body after the parts that were added.
    pub(super) fn complete(self) {
        self.end(QueueEnd::Complete);
    }

    fn end(&self, end: QueueEnd) {
        let mut state = self.0.lock();
        state.end.get_or_insert(end);
        wake_reader(state);
    }
}

impl Drop for QueueFiller {
    fn drop(&mut self) {
        self.end(QueueEnd::Broken);
    }
}

/// Wakes the body if it waits, after the lock: the waker is foreign code.
fn wake_reader(mut state: MutexGuard<'_, QueueState>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

/// The end of the reader.
#[derive(Debug)]
pub(super) struct SharedBody(Arc<Queue>);

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = self.0.lock();
        if let Some(part) = state.parts.pop_front() {
            let wants_room = std::mem::take(&mut state.wants_room);
            drop(state);
            if wants_room {
                self.0.wake.ring();
            }
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match state.end {
            Some(QueueEnd::Complete) => Poll::Ready(None),
            Some(QueueEnd::Broken) => Poll::Ready(Some(Err(io::Error::other("the answer broke off")))),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for SharedBody {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let unread = std::mem::take(&mut state.parts);
        drop((state, unread));
        // After the mark: the thread that is woken looks for it.
        self.0.wake.ring();
    }
}
