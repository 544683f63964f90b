//! The body of a request, of which more must come in time.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

/// A client stopped sending its request.
#[derive(Debug, thiserror::Error)]
#[error("no more of the body came for {} s", .0.as_secs())]
pub(crate) struct SlowBody(Duration);

/// The body of a request; an error once nothing of it came for a while.
pub(crate) struct TimedBody {
    body: Incoming,
    time: Duration,
    timer: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(crate) fn new(body: Incoming, time: Duration) -> TimedBody {
        TimedBody { body, time, timer: Box::pin(tokio::time::sleep(time)) }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let until = Instant::now() + self.time;
            self.timer.as_mut().reset(until);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        std::task::ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Some(Err(SlowBody(self.time).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
