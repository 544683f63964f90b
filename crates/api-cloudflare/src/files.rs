//! The routes for files. They act on the host's paths, as the server's user.

mod change;
mod content;
mod error;
mod list;
mod path;
mod read;
mod stream;

use axum::Router;
use axum::http::Method;
use axum::routing::post;

use super::api::ApiState;

pub(crate) use error::file_error;
pub(crate) use path::resolve;
pub(crate) use stream::{READ_RAW, SIZE, WRITE_STREAM, stream_routes};

/// The routes that change nothing although their method is POST.
const READS: [&str; 6] =
    ["/api/read", "/api/read/stream", "/api/list-files", "/api/exists", "/api/watch", "/api/watch/check"];

/// Tells whether a request of this API changes nothing.
pub(crate) fn only_reads(method: &Method, path: &str) -> bool {
    method.is_safe() || (*method == Method::POST && READS.contains(&path))
}

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
