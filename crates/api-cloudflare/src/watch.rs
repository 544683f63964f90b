//! `/api/watch` and `/api/watch/check`: changes below a directory of the host.

mod check;
mod request;
mod stream;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use penfold_process::path_text::path_text;
use penfold_server::watched::{Tree, WatchEnd};
use penfold_state::lacks_descriptors;
use penfold_state::time::now_ms;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::answer::RouteResult;
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::files::file_error;
use crate::leases::InUse;
use crate::request::Parsed;
use crate::sessions;

use self::request::WatchRequest;

/// The routes for watches.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new().route("/api/watch", post(watch)).route("/api/watch/check", post(check::check))
}

/// Answers with the changes of a tree as events, until the client goes away.
async fn watch(State(api): State<ApiState>, body: Result<Parsed<Value>, ApiError>) -> RouteResult {
    let WatchRequest { tree: request, session, .. } = WatchRequest::new(&api, body).await?;
    let path = request.top.clone();
    let opened = api.call(move |api| {
        let places = (take_places(api)?, sessions::begin_use(api, session.as_deref()));
        let mut opened = Tree::open(request);
        match &mut opened {
            Err(end @ (WatchEnd::Failed(_) | WatchEnd::NoInstances)) => return Err(open_error(&path, end)),
            Ok(tree) => tree.watch_above(),
            Err(_) => {}
        }
        Ok((path, places, opened))
    });
    let (path, places, opened) = opened.await?;
    Ok(match opened {
        Ok(tree) => {
            let first = json!({ "path": path_text(&path), "watchId": new_id() });
            stream::answer_with_changes(&api, tree, first, places)
        }
        Err(end) => stream::answer_with_end(&end),
    })
}

/// What a stream of changes holds: its places, and the session in whose name it watches.
type Held = ([OwnedSemaphorePermit; 2], Option<Arc<InUse>>);

/// Takes places of the tenant and of the server for one more watched tree.
///
/// # Errors
/// 429 when there are as many as there can be, and all are in use.
fn take_places(api: &Api) -> Result<[OwnedSemaphorePermit; 2], ApiError> {
    loop {
        let own = Arc::clone(&api.watches).try_acquire_owned().ok();
        if let Some((own, shared)) = own.zip(api.app.engine.watch_place()) {
            return Ok([own, shared]);
        }
        if !api.kept_trees.end_idlest() {
            let message = "there are as many watches as there can be";
            return Err(ApiError::overload(Code::WatchStartError, message));
        }
    }
}

/// The answer if a tree cannot be watched.
fn open_error(path: &Path, end: &WatchEnd) -> ApiError {
    match end {
        WatchEnd::Failed(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = path_text(path);
            ApiError::new(Code::FileNotFound, format!("Path does not exist: {path}")).with("path", path)
        }
        WatchEnd::Failed(error) if lacks_descriptors(error) => {
            ApiError::overload(Code::WatchStartError, end.to_string())
        }
        WatchEnd::Failed(error) => file_error("directory.watch", path, error),
        WatchEnd::NoInstances => ApiError::overload(Code::WatchStartError, end.to_string()),
        _ => ApiError::new(Code::WatchStartError, end.to_string()).with("path", path_text(path)),
    }
}

/// A new id of a watch. Another server makes other ones.
fn new_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("watch-{}-{}", NEXT.fetch_add(1, Ordering::Relaxed), now_ms())
}
