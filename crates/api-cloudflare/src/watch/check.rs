//! `/api/watch/check`: whether anything has changed since a version.
//!
//! The tree stays watched between two requests, and is looked at when the next one comes. Versions of another watch, as after a restart
//! of the server, are answered with `resync`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use penfold_server::watched::{Tree, TreeRequest, WatchEnd};
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::request::Parsed;
use crate::watched::{KeptTree, Slot};

use super::request::WatchRequest;
use super::{new_id, open_error, take_places};

/// A tree is watched for this time after the latest request.
const IDLE: Duration = Duration::from_mins(10);
/// The most batches of changes that one request looks at; the next one looks at the rest.
const BATCHES: usize = 16;

/// A version that a client got before.
struct Version {
    watch: String,
    cursor: u64,
}

impl Version {
    fn parse(text: &str) -> Result<Version, ApiError> {
        let parts = text.rsplit_once(':').filter(|(watch, _)| !watch.is_empty());
        let is_number = |cursor: &str| cursor.bytes().all(|byte| byte.is_ascii_digit());
        let version = parts.filter(|(_, cursor)| is_number(cursor)).and_then(|(watch, cursor)| {
            Some(Version { watch: watch.to_owned(), cursor: cursor.parse().ok()? })
        });
        version.ok_or_else(|| {
            let message = "since must be a version returned by checkChanges()";
            ApiError::new(Code::ValidationFailed, message).with("since", text)
        })
    }
}

/// Tells whether anything has changed since a version.
pub(super) async fn check(State(api): State<ApiState>, body: Result<Parsed<Value>, ApiError>) -> RouteResult {
    let WatchRequest { tree: request, since, .. } = WatchRequest::new(&api, body).await?;
    let since = since.as_deref().map(Version::parse).transpose()?;
    let wanted = request.clone();
    let (fields, opened) = api.call(move |api| look(api, &wanted, since.as_ref())).await?;
    if let Some(slot) = opened {
        tokio::spawn(end_when_idle(api, request, slot));
    }
    Ok(success_answer(fields))
}

/// Looks at the tree of a request. Returns the fields of the answer, and the slot if the watch is new.
fn look(
    api: &Api,
    request: &TreeRequest,
    since: Option<&Version>,
) -> Result<(Value, Option<Slot>), ApiError> {
    let slot = api.kept_trees.slot(request);
    let mut kept = slot.lock();
    let known = kept.take().and_then(|kept| refreshed(kept, request));
    let is_new = known.is_none();
    let opened = known.map_or_else(|| open(api, request), Ok);
    let tree = opened.inspect_err(|_| api.kept_trees.remove(request, &slot))?;
    let tree = kept.insert(tree);
    tree.used = Instant::now();
    let fields = answer(tree, since, is_new)?;
    drop(kept);
    Ok((fields, is_new.then_some(slot)))
}

/// Counts the changes of a tree so far; `None` if it cannot be watched any longer.
fn refreshed(mut kept: KeptTree, request: &TreeRequest) -> Option<KeptTree> {
    kept.tree.check_path().ok()?;
    for _ in 0..BATCHES {
        let cursor = &mut kept.cursor;
        match kept.tree.drain(&mut |_| *cursor += 1) {
            Ok(true) => {}
            Ok(false) => break,
            Err(WatchEnd::Overflow) => {
                // Something has changed, and new directories may be unknown.
                kept.cursor += 1;
                kept.tree = Tree::open(request.clone()).ok()?;
                break;
            }
            Err(_) => return None,
        }
    }
    Some(kept)
}

fn open(api: &Api, request: &TreeRequest) -> Result<KeptTree, ApiError> {
    let places = take_places(api)?;
    let tree = Tree::open(request.clone()).map_err(|end| open_error(&request.top, &end))?;
    Ok(KeptTree { id: new_id(), tree, cursor: 0, used: Instant::now(), _places: places })
}

/// The fields of the answer.
///
/// # Errors
/// When the client's version is newer than the tree.
fn answer(tree: &KeptTree, since: Option<&Version>, is_new: bool) -> Result<Value, ApiError> {
    let version = format!("{}:{}", tree.id, tree.cursor);
    let status = match since {
        None => "unchanged",
        Some(since) if since.watch != tree.id => {
            let reason = if is_new { "expired" } else { "restarted" };
            return Ok(json!({ "status": "resync", "reason": reason, "version": version }));
        }
        Some(since) if since.cursor > tree.cursor => {
            let message = "since refers to a newer version than the current watch state";
            let error = ApiError::new(Code::ValidationFailed, message);
            let text = format!("{}:{}", since.watch, since.cursor);
            return Err(error.with("since", text).with("currentVersion", version));
        }
        Some(since) if since.cursor == tree.cursor => "unchanged",
        Some(_) => "changed",
    };
    Ok(json!({ "status": status, "version": version }))
}

/// Ends the watch of a slot once no request has used it for a while, or the server ends.
async fn end_when_idle(api: ApiState, request: TreeRequest, slot: Slot) {
    let drain = Arc::clone(&api.app);
    while let Some(used) = slot.used() {
        let due = used + IDLE;
        if due <= Instant::now() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {}
            () = drain.drain.begun() => break,
        }
    }
    // If the runtime ends, the process does too.
    let _ = api
        .call(move |api| {
            api.kept_trees.remove(&request, &slot);
            drop(slot.lock().take());
            Ok(())
        })
        .await;
}
