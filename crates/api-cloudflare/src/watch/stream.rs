//! A stream of changes: a task, and no thread.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use penfold_server::sent_body;
use penfold_server::watched::{Change, ChangeKind, MOST_CHANGES, Tree, WatchEnd, changed};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::ApiState;
use crate::{sse, time};

use super::Held;

/// Changes are sent after this time, as in the reference; equal ones are sent once.
const WINDOW: Duration = Duration::from_millis(75);
/// The pause between two looks at a tree that changes all the time.
const PAUSE: Duration = Duration::from_millis(5);
/// The time for the last event.
const FAREWELL: Duration = Duration::from_secs(1);
/// A part of the stream is sent when it has this size.
const PART: usize = 32 << 10;
/// The last event when the server ends the stream.
const DRAINING: &str = "the server is ending, or the token was removed; changes are not reported any more";

type Parts = mpsc::Sender<io::Result<Bytes>>;

/// Answers with the changes of a tree. What the stream holds is free after the tree is closed.
pub(super) fn answer_with_changes(api: &ApiState, tree: Tree, first: Value, held: Held) -> Response {
    let (parts, body) = sent_body::queued_body();
    let stream = ChangeStream { api: Arc::clone(api), parts, tree: Some(tree), pending: Pending::default() };
    tokio::spawn(async move {
        stream.run(first).await;
        drop(held);
    });
    sse::event_stream(body)
}

/// Answers with the reason why a tree is not watched.
pub(super) fn answer_with_end(end: &WatchEnd) -> Response {
    let (parts, body) = sent_body::queued_body();
    // The queue is empty.
    let _ = parts.try_send(Ok(last_event(end).into()));
    sse::event_stream(body)
}

/// One client and the tree that it watches.
struct ChangeStream {
    api: ApiState,
    parts: Parts,
    /// `None` while a thread looks at it.
    tree: Option<Tree>,
    pending: Pending,
}

impl ChangeStream {
    async fn run(mut self, first: Value) {
        let (api, parts) = (Arc::clone(&self.api), self.parts.clone());
        let last = tokio::select! {
            end = self.follow(first) => end.as_ref().map(last_event),
            () = api.app.drain.begun() => Some(sse::event_text("error", json!({ "error": DRAINING }))),
            () = parts.closed() => None,
        };
        if let Some(last) = last {
            let _ = timeout(FAREWELL, parts.send(Ok(last.into()))).await;
        }
        drop(parts);
        let ChangeStream { tree, parts, .. } = self;
        drop(parts);
        // The kernel takes about 15 ms to close an inotify descriptor.
        let _ = api.app.engine.call(move |_| drop(tree)).await;
    }

    /// Sends changes until no more can be known. Returns the reason; `None` if the client is gone.
    async fn follow(&mut self, first: Value) -> Option<WatchEnd> {
        let mut ready =
            match self.tree.as_ref()?.descriptor().and_then(pipe::Receiver::from_owned_fd_unchecked) {
                Ok(ready) => ready,
                Err(error) => return Some(WatchEnd::Failed(error)),
            };
        self.send(sse::event_text("watching", first)).await?;
        loop {
            match self.look(&mut ready).await? {
                Ok(()) => self.flush().await?,
                Err(end) => {
                    self.flush().await?;
                    return Some(end);
                }
            }
        }
    }

    /// Collects changes until some must be sent. `None` if the server ends.
    async fn look(&mut self, ready: &mut pipe::Receiver) -> Option<Result<(), WatchEnd>> {
        let mut due = None;
        loop {
            let waited = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changed(ready) => if let Err(error) = changed {
                    return Some(Err(WatchEnd::Failed(error)));
                },
                () = waited => return Some(Ok(())),
            }
            loop {
                match self.drain().await? {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(end) => return Some(Err(end)),
                }
            }
            if !self.pending.changes.is_empty() {
                due = due.or_else(|| Some(Instant::now() + WINDOW));
            }
            sleep(PAUSE).await;
        }
    }

    /// Looks at the tree on a thread for short work. Returns whether there is more to look at; `None` if the server ends.
    async fn drain(&mut self) -> Option<Result<bool, WatchEnd>> {
        let mut tree = self.tree.take()?;
        let mut pending = std::mem::take(&mut self.pending);
        let drained = self.api.app.engine.call(move |_| {
            let more = tree.drain(&mut |change| pending.add(change));
            let more = more.and_then(|more| tree.check_path().map(|()| more));
            (tree, pending, more)
        });
        let (tree, pending, more) = drained.await.ok()?;
        self.tree = Some(tree);
        self.pending = pending;
        Some(if self.pending.is_full() { more.and(Err(WatchEnd::Overflow)) } else { more })
    }

    async fn flush(&mut self) -> Option<()> {
        let Pending { changes, .. } = std::mem::take(&mut self.pending);
        let mut part = String::new();
        for (change, time) in changes {
            part.push_str(&change_event(&change, &time));
            if part.len() >= PART {
                self.send(std::mem::take(&mut part)).await?;
            }
        }
        if part.is_empty() { Some(()) } else { self.send(part).await }
    }

    /// Sends a part; `None` if the client is gone.
    async fn send(&self, part: String) -> Option<()> {
        self.parts.send(Ok(part.into())).await.ok()
    }
}

/// The changes that are not sent yet.
#[derive(Debug, Default)]
struct Pending {
    /// Each with its time.
    changes: Vec<(Change, String)>,
    /// The latest change of each path, by its place.
    latest: HashMap<String, usize>,
}

impl Pending {
    /// Adds a change, unless it is the same as the latest one of its path.
    fn add(&mut self, change: Change) {
        let latest = self.latest.get(&change.path).and_then(|place| self.changes.get(*place));
        if latest.is_some_and(|(latest, _)| *latest == change) || self.is_full() {
            return;
        }
        self.latest.insert(change.path.clone(), self.changes.len());
        self.changes.push((change, time::current_time()));
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= MOST_CHANGES
    }
}

fn change_event(change: &Change, time: &str) -> String {
    let kind = match change.kind {
        ChangeKind::Create => "create",
        ChangeKind::Modify => "modify",
        ChangeKind::Delete => "delete",
        ChangeKind::MoveFrom => "move_from",
        ChangeKind::MoveTo => "move_to",
        ChangeKind::Attributes => "attrib",
    };
    let fields = json!({
        "eventType": kind,
        "path": change.path,
        "isDirectory": change.is_directory,
        "timestamp": time,
    });
    sse::event_text("event", fields)
}

fn last_event(end: &WatchEnd) -> String {
    let text = end.to_string();
    match end {
        WatchEnd::Gone => sse::event_text("stopped", json!({ "reason": text })),
        _ => sse::event_text("error", json!({ "error": text })),
    }
}
