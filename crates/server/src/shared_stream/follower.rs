//! One follower of a shared stream, in its thread.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use tokio::sync::mpsc;

use super::body::{Flags, SharedBody, Wake};
use super::{SILENCE, Source};
use crate::log_stream::StreamEnd;

/// The parts that wait for a slow reader.
const QUEUE: usize = 4;
/// The steps that are kept for other followers in one round.
const STEPS: usize = 8;

/// A follower.
pub(super) struct Follower<S: Source> {
    place: S::Place,
    form: S::Form,
    parts: mpsc::Sender<Bytes>,
    flags: Arc<Flags>,
    /// When a comment is due.
    due: Instant,
}

/// What followers at one place get.
pub(super) struct Step<S: Source> {
    from: S::Place,
    form: S::Form,
    bytes: Bytes,
    to: S::Place,
    /// Whether there may be more.
    has_more: bool,
}

/// What became of a follower.
pub(super) enum ServeResult<S: Source> {
    /// The follower has everything that there is.
    Near(Follower<S>),
    /// There is more to read.
    Behind(Follower<S>),
    /// The queue has no room: the body wakes the thread once it has.
    Full(Follower<S>),
    /// The stream has ended or broken off, or its reader is gone.
    Gone,
}

/// Makes a follower and the body that it fills.
pub(super) fn pair<S: Source>(place: S::Place, form: S::Form, wake: &Arc<Wake>) -> (Follower<S>, Body) {
    let (sender, parts) = mpsc::channel(QUEUE);
    let flags = Arc::new(Flags::default());
    let body = SharedBody { parts, flags: Arc::clone(&flags), wake: Arc::clone(wake) };
    let due = Instant::now() + SILENCE;
    (Follower { place, form, parts: sender, flags, due }, Body::new(body))
}

impl<S: Source> Follower<S> {
    /// Sends the next part, or the end if there is no part and `end` has come.
    pub(super) fn serve(
        mut self,
        source: &mut S,
        steps: &mut Vec<Step<S>>,
        end: Option<StreamEnd>,
    ) -> ServeResult<S> {
        if self.parts.is_closed() {
            return ServeResult::Gone;
        }
        if !self.has_room() {
            return ServeResult::Full(self);
        }
        let Ok(has_more) = self.step(source, steps) else { return ServeResult::Gone };
        if has_more {
            return ServeResult::Behind(self);
        }
        let Some(end) = S::ends_here(&self.form).then_some(StreamEnd::Complete).or(end) else {
            self.beat();
            return ServeResult::Near(self);
        };
        if !self.has_room() {
            return ServeResult::Full(self);
        }
        if let Ok(last) = source.last(&self.place, &self.form, end) {
            self.send(Bytes::from(last));
            self.flags.note_complete();
        }
        ServeResult::Gone
    }

    fn has_room(&self) -> bool {
        if self.parts.capacity() > 0 {
            return true;
        }
        self.flags.note_full();
        self.parts.capacity() > 0
    }

    /// Takes the next step, which another follower may have taken in this round. Returns whether there may be more.
    fn step(&mut self, source: &mut S, steps: &mut Vec<Step<S>>) -> io::Result<bool> {
        if let Some(step) = steps.iter().find(|step| step.from == self.place && step.form == self.form) {
            let (bytes, has_more) = (step.bytes.clone(), step.has_more);
            self.place = step.to.clone();
            self.send(bytes);
            return Ok(has_more);
        }
        let from = self.place.clone();
        let mut part = Vec::new();
        let has_more = source.read(&mut self.place, &self.form, &mut part)?;
        let bytes = Bytes::from(part);
        self.send(bytes.clone());
        if steps.len() == STEPS {
            steps.remove(0);
        }
        steps.push(Step { from, form: self.form.clone(), bytes, to: self.place.clone(), has_more });
        Ok(has_more)
    }

    /// Sends bytes. There is room, since only this thread fills the queue; a body that is gone is seen in the next round.
    fn send(&mut self, bytes: Bytes) {
        if !bytes.is_empty() && self.parts.try_send(bytes).is_ok() {
            self.due = Instant::now() + SILENCE;
            penfold_sys::crash_point!("serve-part-sent");
        }
    }

    fn beat(&mut self) {
        if Instant::now() >= self.due && self.has_room() {
            self.send(Bytes::from_static(S::beat(&self.form)));
            self.due = Instant::now() + SILENCE;
        }
    }
}
