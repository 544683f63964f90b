//! The body of a request, of which more must come in time.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

/// A client sent its request too slowly.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlowBody {
    /// Nothing came for a while.
    #[error("no more of the body came for {} s", .0.as_secs())]
    Stopped(Duration),
    /// Something came at each moment, but not enough.
    #[error("only {received} bytes of the body came in {} s", .time.as_secs())]
    Slow { received: u64, time: Duration },
}

/// The times for the body of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimes {
    /// More must come in this time.
    pub(crate) pause: Duration,
    /// The whole body must come in this time, and one more second for each `rate` bytes.
    pub(crate) whole: Duration,
    pub(crate) rate: u64,
}

/// The body of a request; an error once nothing of it came for a while, or it takes too long altogether.
pub(crate) struct TimedBody {
    body: Incoming,
    times: BodyTimes,
    begun: Instant,
    received: u64,
    timer: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(crate) fn new(body: Incoming, times: BodyTimes) -> TimedBody {
        let begun = Instant::now();
        let first = tokio::time::sleep(times.pause.min(times.whole));
        TimedBody { body, times, begun, received: 0, timer: Box::pin(first) }
    }

    /// The time that the whole body may take, as far as it has come.
    fn limit(&self) -> Duration {
        self.times.whole.saturating_add(Duration::from_secs(self.received / self.times.rate.max(1)))
    }

    fn slow(&self) -> SlowBody {
        SlowBody::Slow { received: self.received, time: self.begun.elapsed() }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            std::task::ready!(self.timer.as_mut().poll(context));
            let is_slow = self.begun.elapsed() >= self.limit();
            let slow = if is_slow { self.slow() } else { SlowBody::Stopped(self.times.pause) };
            return Poll::Ready(Some(Err(slow.into())));
        };
        if let Some(Ok(part)) = &frame {
            let length = part.data_ref().map_or(0, Bytes::len);
            self.received = self.received.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
            // A caller that always has one more byte never lets the timer run.
            if self.begun.elapsed() >= self.limit() {
                return Poll::Ready(Some(Err(self.slow().into())));
            }
        }
        let (now, pause) = (Instant::now(), self.times.pause);
        let until = (now + pause).min(self.begun + self.limit());
        self.timer.as_mut().reset(until);
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
