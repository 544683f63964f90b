//! Streams that followers share: one thread reads for all clients that follow one log, or the events.
//!
//! - [`SharedStreams`] — the streams that run, by what they follow.
//! - [`Source`] — what the thread of a stream reads.
//!
//! Invariants:
//! - Each follower has a place of its own in the source, and a bounded queue. The thread waits for no follower: one without room keeps
//!   its place, and reads on from there.
//! - Followers at the same place that want the same form get the same bytes. They are read once, and in memory once.
//! - The thread waits only after it has looked at each queue and at the source. What changes after its look ends the wait.
//! - Followers at the end come first. Those that are behind share a bounded part of each round.
//! - A body is complete only if the thread said so. If the thread fails or panics, each body breaks off.
//! - A stream whose source has ended takes no further followers: a source that goes on later gets another stream.

mod follower;
mod queue;
#[cfg(test)]
mod schedule;
mod steps;
mod wake;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;

use crate::app::AppState;
use crate::log_stream::StreamEnd;
use crate::sent_body::run_beside;
use follower::{Follower, ServeResult};
use steps::Steps;
use wake::Wake;

/// About this many bytes are read at one time for one follower.
pub const PART: usize = 32 << 10;
/// A comment is sent to a follower that has got nothing for this time.
const SILENCE: Duration = Duration::from_secs(15);
/// The longest wait: the end of the server gives no sign.
const LONGEST: Duration = Duration::from_millis(500);
/// In each round, the time for followers that are behind. Those at the end wait no longer for their news.
const BEHIND: Duration = Duration::from_millis(2);
/// The time between two looks for the end while followers are behind: the others do not wait for these.
const LOOK: Duration = Duration::from_millis(20);

/// What the thread of a stream reads for its followers.
pub trait Source: Send + 'static {
    /// The place of a follower: what it gets next.
    type Place: Clone + PartialEq + Send + 'static;
    /// What a follower wants, and how.
    type Form: Clone + PartialEq + Send + 'static;

    /// Begins a look: a change after this call ends the next [`Source::wait`]. Tells whether nothing more will come than can be read
    /// from now on; after `true` the call is not repeated.
    fn begin_look(&mut self) -> bool;

    /// Appends up to about [`PART`] bytes for a follower, and moves its place. Returns whether there may be more.
    ///
    /// # Errors
    /// When this follower cannot get what it wants: its stream breaks off.
    fn read(&mut self, place: &mut Self::Place, form: &Self::Form, part: &mut Vec<u8>) -> io::Result<bool>;

    /// Returns the last bytes for a follower that has got everything else.
    ///
    /// # Errors
    /// When its stream is to break off.
    fn last(&mut self, place: &Self::Place, form: &Self::Form, end: StreamEnd) -> io::Result<Vec<u8>>;

    /// Tells whether a follower wants no more than there is now.
    fn ends_here(form: &Self::Form) -> bool;

    /// What shows a follower that the stream lives; may be empty.
    fn beat(form: &Self::Form) -> &'static [u8];

    /// Waits for a change, until `wake` is readable, and no longer than `longest`. Not called after [`Source::begin_look`] has
    /// returned `true`.
    ///
    /// # Errors
    /// When there is no way to wait: the streams of all followers break off.
    fn wait(&mut self, wake: BorrowedFd<'_>, longest: Duration) -> io::Result<()>;
}

/// The streams that run, by what they follow. A clone is another handle.
pub struct SharedStreams<K, S: Source>(Arc<Mutex<HashMap<K, Arc<Entrance<S>>>>>);

/// Where followers join a stream.
struct Entrance<S: Source> {
    joining: Mutex<Vec<Follower<S>>>,
    wake: Arc<Wake>,
}

/// The streams that run, locked: none of them ends meanwhile.
type LockedStreams<'a, K, S> = MutexGuard<'a, HashMap<K, Arc<Entrance<S>>>>;

impl<S: Source> Entrance<S> {
    fn joining(&self) -> MutexGuard<'_, Vec<Follower<S>>> {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a follower to this stream, which is one of `streams`.
    fn join<K>(&self, streams: LockedStreams<'_, K, S>, (place, form): (S::Place, S::Form)) -> Body {
        let (follower, body) = follower::pair(place, form, &self.wake);
        self.joining().push(follower);
        drop(streams);
        self.wake.ring();
        body
    }

    fn take_joined(&self) -> Vec<Follower<S>> {
        #[cfg(test)]
        schedule::step();
        std::mem::take(&mut *self.joining())
    }
}

impl<K, S: Source> Clone for SharedStreams<K, S> {
    fn clone(&self) -> SharedStreams<K, S> {
        SharedStreams(Arc::clone(&self.0))
    }
}

impl<K, S: Source> Default for SharedStreams<K, S> {
    fn default() -> SharedStreams<K, S> {
        SharedStreams(Arc::default())
    }
}

impl<K, S: Source> fmt::Debug for SharedStreams<K, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SharedStreams").finish_non_exhaustive()
    }
}

impl<K, S: Source> SharedStreams<K, S> {
    fn lock(&self) -> LockedStreams<'_, K, S> {
        #[cfg(test)]
        schedule::step();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, S: Source> SharedStreams<K, S> {
    /// Returns a body that follows from a place on, in this form. The first follower's `source` is read for all that join until its end;
    /// a stream takes one of the places of [`crate::Engine::follower`]. `None` if there is no place, thread or descriptor for it.
    pub fn follow(
        &self,
        app: &AppState,
        key: K,
        source: S,
        (place, form): (S::Place, S::Form),
    ) -> Option<Body> {
        let mut streams = self.lock();
        if let Some(entrance) = streams.get(&key).map(Arc::clone) {
            return Some(entrance.join(streams, (place, form)));
        }
        let permit = app.engine.follower()?;
        let wake = Arc::new(Wake::new().ok()?);
        let (follower, body) = follower::pair(place, form, &wake);
        let entrance = Arc::new(Entrance { joining: Mutex::new(vec![follower]), wake });
        streams.insert(key.clone(), Arc::clone(&entrance));
        // The registration locks the streams when it is dropped, as by a thread that cannot be started.
        drop(streams);
        let registration = Registration { streams: self.clone(), key, entrance };
        let app = AppState::clone(app);
        let begun = run_beside("stream", move || {
            let _permit = permit;
            Stream::new(registration, source, app).run();
        });
        begun.ok().map(|()| body)
    }
}

/// The entry of a stream among those that run. Dropped, also by a panic, it lets nobody join any more.
struct Registration<K: Hash + Eq, S: Source> {
    streams: SharedStreams<K, S>,
    key: K,
    entrance: Arc<Entrance<S>>,
}

impl<K: Hash + Eq + Clone + Send + 'static, S: Source> Registration<K, S> {
    /// Removes the entry: nobody joins any more.
    fn close(&self) {
        Self::remove(&mut self.streams.lock(), self);
    }

    /// Removes the entry, unless a follower has joined.
    fn close_if_unused(&self) -> bool {
        let mut streams = self.streams.lock();
        let is_unused = self.entrance.joining().is_empty();
        if is_unused {
            Self::remove(&mut streams, self);
        }
        is_unused
    }
}

impl<K: Hash + Eq, S: Source> Registration<K, S> {
    fn remove(streams: &mut HashMap<K, Arc<Entrance<S>>>, own: &Registration<K, S>) {
        // After an end, there may be another stream with this key.
        if streams.get(&own.key).is_some_and(|entrance| Arc::ptr_eq(entrance, &own.entrance)) {
            streams.remove(&own.key);
        }
    }
}

impl<K: Hash + Eq, S: Source> Drop for Registration<K, S> {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        Self::remove(&mut streams, self);
        let joined = std::mem::take(&mut *self.entrance.joining());
        drop(streams);
        drop(joined);
    }
}

/// The thread of a stream.
struct Stream<K: Hash + Eq, S: Source> {
    registration: Registration<K, S>,
    source: S,
    app: AppState,
    /// The followers at the end of the source.
    near: Vec<Follower<S>>,
    /// The followers that have more to read, in the order in which they are served.
    behind: VecDeque<Follower<S>>,
    steps: Steps<S>,
}

impl<K: Hash + Eq + Clone + Send + 'static, S: Source> Stream<K, S> {
    fn new(registration: Registration<K, S>, source: S, app: AppState) -> Stream<K, S> {
        let (near, behind, steps) = (Vec::new(), VecDeque::new(), Steps::default());
        Stream { registration, source, app, near, behind, steps }
    }

    fn run(mut self) {
        let entrance = Arc::clone(&self.registration.entrance);
        let (mut is_over, mut is_busy) = (false, false);
        let mut looked = Instant::now();
        loop {
            // First: what comes after this wakes the thread.
            entrance.wake.clear();
            if !is_over && (!is_busy || looked.elapsed() >= LOOK) {
                is_over = self.source.begin_look();
                looked = Instant::now();
                if is_over {
                    self.registration.close();
                }
            }
            self.behind.extend(entrance.take_joined());
            let drained = self.app.drain.has_begun().then_some(StreamEnd::Draining);
            is_busy = self.round(is_over.then_some(StreamEnd::Complete).or(drained));
            self.steps.end_round();
            if self.near.is_empty() && self.behind.is_empty() && self.registration.close_if_unused() {
                return;
            }
            if is_busy {
                continue;
            }
            let waited = if is_over {
                // Nothing more comes but room in the queues.
                entrance.wake.wait()
            } else {
                self.source.wait(entrance.wake.as_fd(), LONGEST)
            };
            if waited.is_err() {
                return;
            }
        }
    }

    /// Serves the followers that have room. Returns whether one of them has more to read.
    fn round(&mut self, end: Option<StreamEnd>) -> bool {
        for follower in std::mem::take(&mut self.near) {
            match follower.serve(&mut self.source, &mut self.steps, end) {
                ServeResult::Near(follower) | ServeResult::Full(follower) => self.near.push(follower),
                ServeResult::Behind(follower) => self.behind.push_back(follower),
                ServeResult::Gone => {}
            }
        }
        let begun = Instant::now();
        let mut is_busy = false;
        for _ in 0..self.behind.len() {
            if begun.elapsed() >= BEHIND {
                return true;
            }
            let Some(follower) = self.behind.pop_front() else { break };
            match follower.serve(&mut self.source, &mut self.steps, end) {
                ServeResult::Near(follower) => self.near.push(follower),
                ServeResult::Full(follower) => self.behind.push_back(follower),
                ServeResult::Behind(follower) => {
                    is_busy = true;
                    self.behind.push_back(follower);
                }
                ServeResult::Gone => {}
            }
        }
        is_busy
    }
}

#[cfg(test)]
mod tests;
