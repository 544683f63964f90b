//! One follower of a shared stream, in its thread.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};

use super::queue::{QueueFiller, QueueRoom, open_queue};
use super::steps::Steps;
use super::wake::Wake;
use super::{SILENCE, Source};
use crate::log_stream::StreamEnd;

/// A follower.
pub(super) struct Follower<S: Source> {
    place: S::Place,
    form: S::Form,
    queue: QueueFiller,
    /// When a comment is due.
    due: Instant,
}

/// What became of a follower.
pub(super) enum ServeResult<S: Source> {
    /// The follower has everything that there is.
    Near(Follower<S>),
    /// There is more to read.
    Behind(Follower<S>),
    /// The queue has no room. The body wakes the thread once there is room.
    Full(Follower<S>),
    /// The stream has ended or broken off, or its reader is gone.
    Gone,
}

/// Makes a follower and the body that it fills.
pub(super) fn pair<S: Source>(place: S::Place, form: S::Form, wake: &Arc<Wake>) -> (Follower<S>, Body) {
    let (queue, body) = open_queue(wake);
    let due = Instant::now() + SILENCE;
    (Follower { place, form, queue, due }, Body::new(body))
}

impl<S: Source> Follower<S> {
    /// Sends the next part, or the end if there is no part and `end` has come.
    pub(super) fn serve(
        mut self,
        source: &mut S,
        steps: &mut Steps<S>,
        end: Option<StreamEnd>,
    ) -> ServeResult<S> {
        match self.queue.room() {
            QueueRoom::Free => {}
            QueueRoom::Full => return ServeResult::Full(self),
            QueueRoom::Gone => return ServeResult::Gone,
        }
        let Ok((part, has_more)) = steps.take(source, &mut self.place, &self.form) else {
            return ServeResult::Gone;
        };
        self.send(Bytes::from_owner(part));
        if has_more {
            return ServeResult::Behind(self);
        }
        let Some(end) = S::ends_here(&self.form).then_some(StreamEnd::Complete).or(end) else {
            self.beat();
            return ServeResult::Near(self);
        };
        if self.queue.room() == QueueRoom::Full {
            return ServeResult::Full(self);
        }
        if let Ok(last) = source.last(&self.place, &self.form, end) {
            self.send(Bytes::from(last));
            self.queue.complete();
        }
        ServeResult::Gone
    }

    /// Sends bytes. There is room, since only this thread fills the queue.
    fn send(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queue.push(bytes);
            self.due = Instant::now() + SILENCE;
            penfold_sys::crash_point!("serve-part-sent");
        }
    }

    fn beat(&mut self) {
        if Instant::now() >= self.due && self.queue.room() == QueueRoom::Free {
            self.send(Bytes::from_static(S::beat(&self.form)));
            self.due = Instant::now() + SILENCE;
        }
    }
}
