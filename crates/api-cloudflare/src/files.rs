//! The routes for files. They act on the host's paths, as the server's user.

mod change;
mod content;
mod error;
mod list;
mod path;
mod read;

use axum::Router;
use axum::routing::post;

use super::api::ApiState;

/// The routes for files.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/read", post(read::read))
        .route("/api/read/stream", post(read::stream))
        .route("/api/write", post(change::write))
        .route("/api/delete", post(change::delete))
        .route("/api/rename", post(change::rename))
        .route("/api/move", post(change::relocate_to))
        .route("/api/mkdir", post(change::mkdir))
        .route("/api/list-files", post(list::list))
        .route("/api/exists", post(change::exists_at))
}
