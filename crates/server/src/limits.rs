//! What a caller can use at most.

use std::time::Duration;

use crate::timed_body::BodyTimes;

/// What a caller can use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The connections at one time; a connection beyond is answered with 429 and closed.
    pub connections: usize,
    /// The bytes of a request's body, unless a route says otherwise.
    pub body: usize,
    /// The bytes of the head of a request: request line and headers.
    pub head: usize,
    /// The headers of a request.
    pub headers: usize,
    /// The time for a complete head; an idle connection is closed after this time.
    pub head_time: Duration,
    /// The time in which more of a body must come.
    pub body_time: Duration,
    /// The time for a whole body; one more second for each [`Limits::body_rate`] bytes.
    pub body_whole_time: Duration,
    /// The bytes of a body that must come in a second, after [`Limits::body_whole_time`].
    pub body_rate: u64,
    /// The time in which a caller must take enough of an answer that more can be written.
    pub write_time: Duration,
    /// The living sandboxes that the callers with one token can have.
    pub sandboxes: usize,
    /// The time after which a session of the Cloudflare API ends that no client uses; `None` for no limit.
    pub session_idle: Option<Duration>,
    /// The bytes of a command's output that are kept; the oldest output beyond is lost, and counted.
    pub output: u64,
}

impl Limits {
    pub(crate) fn body_times(&self) -> BodyTimes {
        BodyTimes { pause: self.body_time, whole: self.body_whole_time, rate: self.body_rate }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1024,
            body: 16 << 20,
            head: 64 << 10,
            headers: 100,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            body_whole_time: Duration::from_mins(5),
            body_rate: 1024,
            // Long: a person may pause a followed log, and a program may work on what it has read.
            write_time: Duration::from_mins(5),
            sandboxes: 1000,
            session_idle: None,
            output: penfold_state::log::USUAL_LIMIT,
        }
    }
}
