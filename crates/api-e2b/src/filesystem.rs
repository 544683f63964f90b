//! `filesystem.Filesystem`: the files that commands see.
//!
//! - `stream` — the call whose answer is a stream of events. `watchers` — the calls that ask for events.

mod stream;
mod watchers;

use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router, extract::State};
use penfold_server::EngineError;
use penfold_server::files::FileError;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::api::ApiState;
use crate::connect::{Code, Empty, Message, RpcError};
use crate::guest::Guest;
use crate::inside::{EntryInfo, Inside, Occupied};

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let routes: Router<ApiState> = Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/MakeDir", post(make_directory))
        .route("/filesystem.Filesystem/Move", post(move_to))
        .route("/filesystem.Filesystem/ListDir", post(list))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .route("/filesystem.Filesystem/WatchDir", post(stream::watch));
    routes.merge(watchers::routes())
}

/// The message of a call about one path.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathMessage {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListMessage {
    path: String,
    depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveMessage {
    source: String,
    destination: String,
}

#[derive(Debug, Serialize)]
struct EntryAnswer {
    entry: EntryInfo,
}

/// What a handler answers.
type Answer = Result<Response, RpcError>;

async fn stat(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<PathMessage>,
) -> Answer {
    let entry = act(&api, guest, &headers, move |inside| {
        let path = inside.path(&request.path)?;
        inside.entry(&path).map_err(RpcError::from)
    });
    Ok(Json(EntryAnswer { entry: entry.await? }).into_response())
}

async fn make_directory(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<PathMessage>,
) -> Answer {
    let entry = act(&api, guest, &headers, move |inside| {
        let path = inside.path(&request.path)?;
        match inside.make_directory(&path)? {
            None => Ok(inside.entry(&path)?),
            Some(Occupied::Directory) => {
                Err(RpcError::new(Code::AlreadyExists, format!("directory already exists: {path}")))
            }
            Some(Occupied::Other) => {
                Err(RpcError::invalid(format!("path already exists but it is not a directory: {path}")))
            }
        }
    });
    Ok(Json(EntryAnswer { entry: entry.await? }).into_response())
}

async fn move_to(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<MoveMessage>,
) -> Answer {
    let guest = guest.of_headers(&api.app.engine, &headers).await?;
    let own = guest.clone();
    let moved = api.call(move |_| {
        let inside = Inside::of(&own)?;
        let (from, to) = (inside.path(&request.source)?, inside.path(&request.destination)?);
        match inside.move_to(&from, &to) {
            Ok(()) => Ok((Some(inside.entry(&to)?), from, to)),
            Err(FileError::System { errno: Errno::XDEV, .. }) => Ok((None, from, to)),
            Err(error) => Err(RpcError::from(error)),
        }
    });
    let (entry, from, to) = moved.await?;
    let entry = match entry {
        Some(entry) => entry,
        None => move_across(&api, guest, from, to).await?,
    };
    Ok(Json(EntryAnswer { entry }).into_response())
}

/// Moves a file or directory to another mount of the jail, which may take long.
async fn move_across(api: &ApiState, guest: Guest, from: String, to: String) -> Result<EntryInfo, RpcError> {
    let place = api.app.engine.follower();
    let place = place.ok_or_else(|| RpcError::from(EngineError::Busy))?;
    let moved = api.app.engine.wait(place, move |_| {
        let inside = Inside::of(&guest)?;
        inside.workspace.move_across(&from, &to)?;
        inside.entry(&to)
    });
    Ok(moved.await??)
}

async fn list(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<ListMessage>,
) -> Answer {
    let entries = act(&api, guest, &headers, move |inside| {
        let path = inside.path(&request.path)?;
        inside.list(&path, request.depth.max(1)).map_err(RpcError::from)
    });
    Ok(Json(json!({ "entries": entries.await? })).into_response())
}

async fn remove(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    headers: HeaderMap,
    Message(request): Message<PathMessage>,
) -> Answer {
    act(&api, guest, &headers, move |inside| {
        let path = inside.path(&request.path)?;
        inside.remove(&path).map_err(RpcError::from)
    })
    .await?;
    Ok(Json(Empty {}).into_response())
}

/// Checks the user of a request, and does the work with the rights of the sandbox's commands.
async fn act<T: Send + 'static>(
    api: &ApiState,
    guest: Guest,
    headers: &HeaderMap,
    work: impl FnOnce(&Inside) -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let guest = guest.of_headers(&api.app.engine, headers).await?;
    api.call(move |_| work(&Inside::of(&guest)?)).await
}
