//! `WatchDir`: a stream of events. A task, and no thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_server::sent_body;
use penfold_server::watched::{WatchEnd, changed};
use serde_json::json;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::ApiState;
use crate::connect::{self, Code, RpcError, StreamError, StreamMessage};
use crate::guest::Guest;
use crate::watched::{Watch, WatchMessage, watch_error};

/// The time between two messages if nothing changes, unless the client wants another.
const USUAL_PING: Duration = Duration::from_secs(90);
/// The time for the last frame.
const FAREWELL: Duration = Duration::from_secs(1);
/// The longest time until a deadline.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Answers with the events of a directory, until the client goes away.
pub(super) async fn watch(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    StreamMessage(request): StreamMessage<WatchMessage>,
) -> Result<Response, StreamError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await.map_err(StreamError)?;
    let opened = api.call(move |api| {
        let places = api.watchers.places(&api.app.engine, guest.name())?;
        let (watch, first) = Watch::open(&guest, &request)?;
        Ok::<_, RpcError>((watch, first, places))
    });
    let (watch, first, places) = opened.await.map_err(StreamError)?;
    let ready = watch.descriptor().and_then(pipe::Receiver::from_owned_fd_unchecked);
    let failed = |error: io::Error| StreamError(RpcError::internal(&error));
    let ready = ready.map_err(failed)?;
    let ended = ended(first).map_err(failed)?;
    let (parts, body) = sent_body::queued_body();
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let ping = number("keepalive-ping-interval").filter(|&seconds| seconds > 0);
    let ping = ping.map_or(USUAL_PING, Duration::from_secs).min(LONGEST);
    let time = number("connect-timeout-ms").filter(|&ms| ms > 0).map_or(LONGEST, Duration::from_millis);
    let until = Instant::now() + time.min(LONGEST);
    let stream = EventStream { api: Arc::clone(&api), parts, watch: Some(watch), ping };
    tokio::spawn(async move {
        stream.run(ready, ended, until).await;
        drop(places);
    });
    Ok(connect::stream(body))
}

/// Makes a descriptor whose readiness means that a process has ended.
///
/// # Errors
/// When the runtime cannot wait for it.
pub(super) fn ended(pidfd: OwnedFd) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd_unchecked(pidfd)
}

/// One client, and the directory that it watches.
struct EventStream {
    api: ApiState,
    parts: mpsc::Sender<io::Result<Bytes>>,
    /// `None` while a thread looks at it.
    watch: Option<Watch>,
    ping: Duration,
}

impl EventStream {
    async fn run(mut self, mut ready: pipe::Receiver, ended: pipe::Receiver, until: Instant) {
        let (api, parts) = (Arc::clone(&self.api), self.parts.clone());
        let unavailable = |message: &str| Some(RpcError::new(Code::Unavailable, message));
        let last = tokio::select! {
            end = self.follow(&mut ready) => end,
            () = parts.closed() => None,
            () = sleep_until(until) => Some(RpcError::new(Code::DeadlineExceeded, "the time of the call is over")),
            () = api.app.drain.begun() => unavailable("the server is ending"),
            _ = ended.readable() => unavailable("the sandbox has ended"),
        };
        let _ = timeout(FAREWELL, parts.send(Ok(connect::last_frame(last.as_ref()).into()))).await;
        drop(parts);
        let EventStream { watch, parts, .. } = self;
        drop((parts, ready, ended));
        // The kernel takes about 15 ms to close an inotify descriptor.
        let _ = api.app.engine.call(move |_| drop(watch)).await;
    }

    /// Sends events until no more can be known, or the client is gone.
    async fn follow(&mut self, ready: &mut pipe::Receiver) -> Option<RpcError> {
        self.send(&json!({ "start": {} })).await?;
        loop {
            tokio::select! {
                changed = changed(ready) => if let Err(error) = changed {
                    return Some(RpcError::internal(&error));
                },
                () = sleep_until(Instant::now() + self.ping) => {
                    self.send(&json!({ "keepalive": {} })).await?;
                    continue;
                }
            }
            let mut watch = self.watch.take()?;
            let drained = self.api.app.engine.call(move |_| {
                let drained = watch.drain();
                (watch.take(), watch, drained)
            });
            let (events, watch, drained) = drained.await.ok()?;
            self.watch = Some(watch);
            for event in &events {
                self.send(&json!({ "filesystem": event })).await?;
            }
            match drained {
                Ok(()) => {}
                // There is nothing to watch any more.
                Err(WatchEnd::Gone) => return None,
                Err(end) => return Some(watch_error("the directory", &end)),
            }
        }
    }

    /// Sends a message; `None` if the client is gone.
    async fn send(&self, message: &serde_json::Value) -> Option<()> {
        let frame = connect::frame(message).map(Bytes::from);
        self.parts.send(frame).await.ok()
    }
}
