//! `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`: events that a client asks for.
//!
//! Watchers are only in the memory of the server, as the events of the kernel are. After a restart there are none.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use penfold_server::watched::changed;
use serde::Deserialize;
use serde_json::json;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::api::ApiState;
use crate::connect::{Empty, Message, RpcError};
use crate::guest::Guest;
use crate::watched::{Watch, WatchMessage};

use super::{Answer, stream};

/// The routes.
pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/filesystem.Filesystem/CreateWatcher", post(create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(remove))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatcherMessage {
    watcher_id: String,
}

async fn create(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<WatchMessage>,
) -> Answer {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let opened = api.call(move |api| {
        let places = api.watchers.places(&api.app.engine, guest.name())?;
        let (watch, first) = Watch::open(&guest, &request)?;
        let ready = watch.descriptor().map_err(|error| RpcError::internal(&error))?;
        let (id, removed) = api.watchers.keep(guest.name(), watch, places);
        Ok::<_, RpcError>((id, ready, first, removed))
    });
    let (id, ready, first, removed) = opened.await?;
    let ready = pipe::Receiver::from_owned_fd_unchecked(ready);
    match ready.and_then(|ready| Ok((ready, stream::ended(first)?))) {
        Ok((ready, ended)) => {
            tokio::spawn(attend(api, id.clone(), ready, ended, removed));
        }
        Err(error) => {
            drop(api.watchers.remove(&id));
            return Err(RpcError::internal(&error));
        }
    }
    Ok(Json(json!({ "watcherId": id })).into_response())
}

/// Reads changes as they come, so that new directories are watched soon, until the watcher or its sandbox is gone.
async fn attend(
    api: ApiState,
    id: String,
    mut ready: pipe::Receiver,
    ended: pipe::Receiver,
    removed: Arc<Notify>,
) {
    loop {
        tokio::select! {
            changed = changed(&mut ready) => if changed.is_err() { break },
            _ = ended.readable() => break,
            () = removed.notified() => break,
            () = api.app.drain.begun() => break,
        }
        let own = id.clone();
        let call = api.call(move |api| {
            let slot = api.watchers.get(&own);
            Ok::<_, RpcError>(slot.is_none_or(|slot| !slot.lock().drain()))
        });
        if call.await.unwrap_or(true) {
            // The reason stays until a client asks for it, or the sandbox ends.
            tokio::select! {
                _ = ended.readable() => {}
                () = removed.notified() => {}
                () = api.app.drain.begun() => {}
            }
            break;
        }
    }
    drop((ready, ended));
    // The kernel takes about 15 ms to close an inotify descriptor.
    let _ = api
        .call(move |api| {
            drop(api.watchers.remove(&id));
            Ok::<_, RpcError>(())
        })
        .await;
}

async fn events(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<WatcherMessage>,
) -> Answer {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let call = api.call(move |api| {
        let slot = api.watchers.find(guest.name(), &request.watcher_id)?;
        slot.lock().take()
    });
    Ok(Json(json!({ "events": call.await? })).into_response())
}

async fn remove(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<WatcherMessage>,
) -> Result<Response, RpcError> {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let call = api.call(move |api| {
        // Dropped here, because the kernel takes about 15 ms to close an inotify descriptor.
        let slot = api.watchers.find(guest.name(), &request.watcher_id)?;
        drop((api.watchers.remove(&request.watcher_id), slot));
        Ok::<_, RpcError>(())
    });
    call.await?;
    Ok(Json(Empty {}).into_response())
}
